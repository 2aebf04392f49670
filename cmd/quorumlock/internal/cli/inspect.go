package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/shown"
	"github.com/quorumlock/quorumlock/internal/config"
)

func (p *program) inspectCommand() *cobra.Command {
	permits := 0
	c := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock, and the answer of each node",

		SuggestFor: []string{"status", "show"},
		Long: `Inspect asks every node who holds the lock NAME, and takes nothing. It exits
with 0 whether the lock is held or free, and with 69 when too few nodes answer.
If readers share it, inspect names up to 16 of them. Of the processes that wait
it shows the first 8, by the random number that each Manager has.

With --permits N it shows the first N permits of NAME, as run --permits takes
them.`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("permits") {
				return p.inspectPermits(cmd.Context(), args[0], permits)
			}
			return p.inspect(cmd.Context(), args[0])
		},
	}
	c.Flags().IntVar(&permits, "permits", 0, "show the first `N` permits, 1 to 1024")
	return c
}

func checkPermits(n int) error {
	if n < 1 || n > config.MaxPermits {
		return usagef("--permits %d: must be 1 to %d", n, config.MaxPermits)
	}
	return nil
}

func (p *program) inspectPermits(ctx context.Context, name string, limit int) error {
	if err := checkPermits(limit); err != nil {
		return err
	}
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	s, err := m.Inspect(ctx, name, quorumlock.Permits(limit))
	if err != nil && !errors.Is(err, quorumlock.ErrNoQuorum) {
		return err
	}
	taken := 0
	for _, slot := range s.Slots {
		if slot.Held {
			taken++
		}
	}
	if p.connection.json {
		all := permitsJSON{Name: name, Held: taken, Limit: limit, Queue: queueOf(s), Slots: []statusJSON{}}
		for _, slot := range s.Slots {
			all.Slots = append(all.Slots, lockJSON(slot, p.connection.quorum()))
		}
		return errors.Join(p.printJSON(all), err)
	}
	writeAll(p.stdout, p.permitsOf(s, taken))
	return err
}

// permitsOf formats the state of the permits of a name for people.
func (p *program) permitsOf(s quorumlock.Status, taken int) string {
	t := &table{width: p.columns()}
	t.row("SLOT", "HOLDER", "OWNER", "EXPIRES IN", "SINCE")
	for i, slot := range s.Slots {
		switch {
		case slot.Held:
			t.row(strconv.Itoa(i), cmp.Or(slot.Holder.Label, "-"), slot.Holder.Owner, left(true, slot.TTL), short(max(time.Since(slot.Holder.Since), 0))+" ago")
		case slot.Votes > 0:
			t.row(strconv.Itoa(i), "no majority agrees", "", "", "")
		default:
			t.row(strconv.Itoa(i), "free", "", "", "")
		}
	}
	return fmt.Sprintf("%-8s %s\n%-8s %d of %d permits\n%-8s %d\n\n", "name", cut(shown.Text(s.Name), p.columns()-9), "held", taken, len(s.Slots), "waiters", s.Waiters) + t.String() + p.queueOf(s)
}

func (p *program) inspect(ctx context.Context, name string) error {
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	s, err := m.Inspect(ctx, name)
	if err != nil && !errors.Is(err, quorumlock.ErrNoQuorum) {
		return err
	}
	if p.connection.json {
		return errors.Join(p.printJSON(lockJSON(s, p.connection.quorum())), err)
	}
	writeAll(p.stdout, p.inspection(s))
	return err
}

// inspection formats the status of a lock for people.
func (p *program) inspection(s quorumlock.Status) string {
	style := p.style()
	state := style.green("free")
	switch voting := votingNow(s.Nodes); {
	case s.Held && s.Readers > 0:
		state = style.bold("held by " + countedReaders(s.Readers))
	case s.Held:
		state = style.bold("held")
	case s.Votes > 0:
		state = style.yellow("no majority agrees on a holder")
	case !s.Known:
		state = style.yellow("not known: too few nodes answer")
	case voting < p.connection.quorum():
		state = style.yellow(fmt.Sprintf("free, but only %d of %d nodes grant locks now", voting, len(s.Nodes)))
	case s.Waiters > 0:
		state = "free, but others wait"
	}
	var facts strings.Builder
	fact := func(key, value string) { fmt.Fprintf(&facts, "%-8s %s\n", key, cut(shown.Text(value), p.columns()-9)) }
	fact("name", s.Name)
	fmt.Fprintf(&facts, "%-8s %s\n", "state", state) // it may have a colour
	if s.Votes > 0 {
		holderFacts(fact, s)
	}
	fact("token", token(s))
	fact("held on", heldOn(s, p.connection.quorum()))
	fact("waiters", strconv.Itoa(s.Waiters))
	nodes := &table{width: p.columns()}
	nodes.row("", "NODE", "HOLDER", "EXPIRES IN", "TOKEN")
	for i, n := range s.Nodes {
		nodes.row(strconv.Itoa(i), n.Addr, nodeHolder(n), left(hasKey(n), n.TTL), nodeToken(n))
	}
	text := facts.String() + p.readersOf(s) + p.queueOf(s) + "\n" + nodes.String()
	for i, n := range s.Nodes {
		if n.Err != nil {
			text += "\n" + style.red("node "+strconv.Itoa(i)) + " gave no answer that counts\n" + wrap("  ", oneLine(n.Err))
		}
		if n.Warning != nil {
			what := " has a warning\n"
			if !n.Voting && n.QuarantinedFor == 0 {
				what = " grants no locks\n"
			}
			text += "\n" + style.yellow("node "+strconv.Itoa(i)) + what + wrap("  ", oneLine(n.Warning))
		}
		if n.QuarantinedFor > 0 {
			text += "\n" + style.yellow("node "+strconv.Itoa(i)) + " grants no locks for " + short(n.QuarantinedFor) + " more: it may have lost locks\n"
		}
	}
	return text
}

// votingNow returns how many nodes have answered and grant locks.
func votingNow(nodes []quorumlock.NodeStatus) (voting int) {
	for _, n := range nodes {
		if n.Err == nil && n.Voting {
			voting++
		}
	}
	return voting
}

// holderFacts adds who holds a lock, and for how long. Readers have a table, see readersOf.
func holderFacts(fact func(key, value string), s quorumlock.Status) {
	switch {
	case s.Readers > 0:
	case s.Holder.Owner == revokedReaders:
		fact("holder", cell(s.Holder, 0))
		fact("owner", s.Holder.Owner)
	default:
		fact("holder", cmp.Or(s.Holder.Label, "-"))
		fact("owner", s.Holder.Owner)
		fact("since", since(s.Holder.Since))
	}
	if s.Held { // otherwise the nodes show unlike ends
		fact("expires", expires(s))
	}
	if s.Holder.Asked != "" {
		fact("asked by", s.Holder.Asked)
	}
	if s.Holder.Detached {
		fact("detached", "kept for the process that has the handle, which may be at work")
	}
	if s.Holder.Revoked != "" {
		fact("revoked", "by "+s.Holder.Revoked)
	}
	if s.Holder.TraceParent != "" && s.Readers == 0 {
		fact("trace", s.Holder.TraceParent)
	}
}

// readersOf returns a line for each known reader of a lock, empty for none.
func (p *program) readersOf(s quorumlock.Status) string {
	if s.Readers == 0 {
		return ""
	}
	known := s.Holders
	if len(known) == 0 { // no majority names any
		known = []quorumlock.Holder{s.Holder}
	}
	t := &table{width: p.columns()}
	t.row("READER", "OWNER", "SINCE")
	for _, h := range known {
		t.row(cmp.Or(h.Label, "-"), h.Owner, short(max(time.Since(h.Since), 0))+" ago")
	}
	text := "\n" + t.String()
	if more := s.Readers - len(known); more > 0 {
		text += "and " + strconv.Itoa(more) + " more\n"
	}
	return text
}

// queueOf returns a line for each of the first waiters, empty for none.
func (p *program) queueOf(s quorumlock.Status) string {
	if len(s.Queue) == 0 {
		return ""
	}
	t := &table{width: p.columns()}
	t.row("WAITER", "WAITS FOR", "WANTS")
	for _, w := range s.Queue {
		wants := "the lock"
		switch {
		case w.Permits > 0:
			wants = fmt.Sprintf("a permit of %d", w.Permits)
		case w.Shared:
			wants = "to share it"
		}
		t.row(w.Process, short(s.AsOf.Sub(w.Since)), wants)
	}
	text := "\n" + t.String()
	if more := s.Waiters - len(s.Queue); more > 0 {
		text += "and " + strconv.Itoa(more) + " more\n"
	}
	return text
}

// heldOn describes how many nodes report a lock as held. For a free lock none do, which is not an outage.
func heldOn(s quorumlock.Status, quorum int) string {
	text := fmt.Sprintf("%d of %d nodes", s.Votes, len(s.Nodes))
	if s.Votes > 0 {
		text += fmt.Sprintf(", %d needed", quorum)
	}
	return text
}

// token describes the fencing register: while the lock is free it is an upper bound of the last holder's token.
func token(s quorumlock.Status) string {
	switch {
	case s.Held && (s.Readers > 0 || s.Holder.Owner == revokedReaders): // the token of readers is one above the register
		return "at most " + strconv.FormatInt(s.Fence+1, 10)
	case s.Fence == 0:
		return "none so far"
	case s.Held:
		return "at most " + strconv.FormatInt(s.Fence, 10)
	}
	return "at most " + strconv.FormatInt(s.Fence, 10) + ", the next is larger"
}

func since(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s ago by this clock)", t.UTC().Format(time.RFC3339), short(time.Since(t)))
}

// expires describes when the key expires. A revoked or detached lock is not renewed.
func expires(s quorumlock.Status) string {
	switch {
	case s.TTL < 0:
		return "never: the key has no TTL, so another program made or changed it"
	case s.Holder.Revoked != "" || s.Holder.Detached:
		return "in " + short(s.TTL)
	}
	return "in " + short(s.TTL) + " unless renewed"
}

func nodeHolder(n quorumlock.NodeStatus) string {
	if n.Err != nil {
		return "no answer"
	}
	if hasKey(n) && n.Holder == (quorumlock.Holder{}) {
		return "(empty value)" // another program's
	}
	return cell(n.Holder, n.Readers)
}

// absent is the TTL of a node that has no key for the lock.
const absent = -2 * time.Millisecond

// hasKey reports whether a node that answered has a key for the lock.
func hasKey(n quorumlock.NodeStatus) bool { return n.Err == nil && n.TTL != absent }

// left describes when a lock expires.
func left(held bool, ttl time.Duration) string {
	switch {
	case !held:
		return "-"
	case ttl < 0:
		return "never"
	}
	return short(ttl)
}

func nodeToken(n quorumlock.NodeStatus) string {
	if n.Err != nil || n.Fence == 0 {
		return "-"
	}
	return strconv.FormatInt(n.Fence, 10)
}
