package cli

import (
	"context"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
)

func (p *program) watchCommand() *cobra.Command {
	every, permits := config.DefaultObserveEvery, 0
	c := &cobra.Command{
		Use:   "watch NAME",
		Short: "Follow who holds a lock",
		Long: `Watch prints who holds the lock NAME, and a line for each change: another
holder, no holder, or that it is not known because too few nodes answer. It ends
with Ctrl-C.

Readers that hold NAME together count as one holder: a line says how many there
are, and none is printed when one comes or goes while others stay.

With --permits N it follows the first N permits of NAME, as run --permits takes
them, and a line says which of them has changed.

It asks every node once in --every. A holder that came and went in between is
not seen; the holders come in the order of their tokens.`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind := quorumlock.Kind{}
			if cmd.Flags().Changed("permits") {
				if err := checkPermits(permits); err != nil {
					return err
				}
				kind = quorumlock.Permits(permits)
			}
			return p.watch(cmd.Context(), args[0], every, kind)
		},
	}
	c.Flags().IntVar(&permits, "permits", 0, "follow the first `N` permits, 1 to 1024")
	c.Flags().Var(durationFlag{&every}, "every", "how often to ask the nodes, 50ms to 1m")
	return c
}

func (p *program) watch(ctx context.Context, name string, every time.Duration, kind quorumlock.Kind) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	m, err := p.connection.manager(ctx, quorumlock.WithObserveEvery(every))
	if err != nil {
		return err
	}
	defer closeManager(m)
	statuses, err := m.Observe(ctx, name, kind)
	if err != nil {
		return err
	}
	var before []quorumlock.Status
	for s := range statuses {
		if err := p.holdings(s, before); err != nil {
			return err
		}
		before = s.Slots
	}
	return nil
}

// holdings prints a line, or one for each slot that has changed.
func (p *program) holdings(s quorumlock.Status, before []quorumlock.Status) error {
	if s.Slots == nil {
		return p.holding(s, nil)
	}
	for i, slot := range s.Slots {
		if before != nil && sameHolding(before[i], slot) {
			continue
		}
		if err := p.holding(slot, &i); err != nil {
			return err
		}
	}
	return nil
}

func sameHolding(a, b quorumlock.Status) bool {
	return a.Known == b.Known && a.Held == b.Held && a.Holder.Owner == b.Holder.Owner && a.Token == b.Token
}

// holdingJSON is one line of JSON. Its keys are stable.
type holdingJSON struct {
	At      string      `json:"at"`    // RFC 3339, when the nodes were asked
	Event   string      `json:"event"` // held, "nobody" or unknown
	Name    string      `json:"name"`
	Slot    *int        `json:"slot,omitempty"` // only with --permits
	Holder  *holderJSON `json:"holder"`         // null unless held
	Readers int         `json:"readers"`        // how many hold the lock together, 0 if the holder has it alone
	Token   int64       `json:"token"`          // at or above the lease's token, 0 if none is known
	Until   string      `json:"until"`          // RFC 3339, empty unless held, and for keys without an end
	Waiters int         `json:"waiters"`
	Error   string      `json:"error"` // of unknown
}

// holding prints one line. slot is nil without --permits.
func (p *program) holding(s quorumlock.Status, slot *int) error {
	j := holdingJSON{At: stamp(s.AsOf), Name: s.Name, Slot: slot, Holder: holderOf(s.Holder), Readers: s.Readers, Token: s.Token, Waiters: s.Waiters, Error: textOf(s.Err)}
	if !s.Until.IsZero() {
		j.Until = stamp(s.Until)
	}
	text, name := "", s.Name
	if slot != nil {
		name += ", permit " + strconv.Itoa(*slot)
	}
	switch {
	case !s.Known:
		j.Event, text = "unknown", ": "+j.Error
	case s.Held:
		j.Event, text = "held", " by "+called(s.Holder, s.Readers)
		if s.Token > 0 {
			text += ", token at most " + strconv.FormatInt(s.Token, 10)
		}
		text += ", waiters " + strconv.Itoa(s.Waiters)
	default:
		j.Event = "nobody"
	}
	if p.connection.json {
		return p.printJSON(j)
	}
	p.line("%s %-7s %s", j.At, j.Event, name+text)
	return nil
}

// stamp writes an instant to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
