package cli

import (
	"context"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
)

func (p *program) watchCommand() *cobra.Command {
	every := quorumlock.DefaultObserveEvery
	c := &cobra.Command{
		Use:   "watch NAME",
		Short: "Follow who holds a lock",
		Long: `Watch prints who holds the lock NAME, and a line for each change: another
holder, nobody, or that it is not known because too few nodes answer. It ends
with Ctrl-C.

Readers that hold NAME together count as one holder: a line says how many there
are, and none is printed when one comes or goes beside others.

It asks every node once in --every. A holder that came and went in between is
not seen; the order of the holders is that of their tokens.`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE:        func(cmd *cobra.Command, args []string) error { return p.watch(cmd.Context(), args[0], every) },
	}
	c.Flags().Var(durationFlag{&every}, "every", "how often to ask the nodes, 50ms to 1m")
	return c
}

func (p *program) watch(ctx context.Context, name string, every time.Duration) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	holdings, err := m.Observe(ctx, name, quorumlock.ObserveEvery(every))
	if err != nil {
		return err
	}
	for h := range holdings {
		if err := p.holding(h); err != nil {
			return err
		}
	}
	return nil
}

// holdingJSON is one line of JSON. Its keys are stable.
type holdingJSON struct {
	At      string      `json:"at"`    // RFC 3339, when the nodes were asked
	Event   string      `json:"event"` // held, nobody or unknown
	Name    string      `json:"name"`
	Holder  *holderJSON `json:"holder"`  // null unless held
	Readers int         `json:"readers"` // how many hold the lock together, 0 if the holder has it alone
	Token   int64       `json:"token"`   // at or above that of the lease, 0 if none is known
	Until   string      `json:"until"`   // RFC 3339, empty unless held, and for keys without an end
	Waiters int         `json:"waiters"`
	Error   string      `json:"error"` // of unknown
}

// holding prints one line.
func (p *program) holding(h quorumlock.Holding) error {
	j := holdingJSON{At: stamp(h.AsOf), Name: h.Name, Holder: holderOf(h.Holder), Readers: h.Readers, Token: h.Token, Waiters: h.Waiters, Error: textOf(h.Err)}
	if !h.Until.IsZero() {
		j.Until = stamp(h.Until)
	}
	text := ""
	switch {
	case !h.Known:
		j.Event, text = "unknown", ": "+j.Error
	case h.Held:
		j.Event, text = "held", " by "+called(h.Holder, h.Readers)
		if h.Token > 0 {
			text += ", token at most " + strconv.FormatInt(h.Token, 10)
		}
		text += ", waiters " + strconv.Itoa(h.Waiters)
	default:
		j.Event = "nobody"
	}
	if p.connection.json {
		return p.printJSON(j)
	}
	p.printf("%s %-7s %s\n", j.At, j.Event, printable(h.Name+text))
	return nil
}

// stamp writes an instant to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
