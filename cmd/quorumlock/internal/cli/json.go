package cli

import (
	"time"

	"github.com/quorumlock/quorumlock"
)

// The JSON of inspect and list. The keys are stable: new keys may be added, and no key changes its meaning.

type holderJSON struct {
	Label       string `json:"label"`
	Owner       string `json:"owner"`
	TraceParent string `json:"trace_parent"`
	Since       string `json:"since"`   // RFC 3339, empty when it isn't known
	Asked       string `json:"asked"`   // who has asked for the lock, and why
	Revoked     string `json:"revoked"` // who has revoked the lease, and why
	Detached    bool   `json:"detached"`
}

type statusJSON struct {
	Name    string      `json:"name"`
	Known   bool        `json:"known"` // the answers decide who holds it
	Held    bool        `json:"held"`
	Holder  *holderJSON `json:"holder"`  // null when no node names one
	Readers int         `json:"readers"` // how many hold the lock together, 0 if the holder has it alone
	// Holders are the readers that a majority names, 16 at most, the longest first; Holder is one of them.
	Holders   []*holderJSON `json:"holders"`
	Votes     int           `json:"votes"`
	Quorum    int           `json:"quorum"`
	TTLms     *float64      `json:"ttl_ms"`          // null when the lock has no end, or is not held
	Token     int64         `json:"token"`           // of the lease that is held, at most; 0 if the nodes show none
	Until     string        `json:"until,omitempty"` // as_of and ttl_ms later; RFC 3339
	AsOf      string        `json:"as_of,omitempty"` // just before the nodes were asked
	Fence     int64         `json:"fence"`
	Waiters   int           `json:"waiters"`
	Queue     []waiterJSON  `json:"queue,omitempty"` // the first waiters, 8 at most, of inspect without --permits
	NodeTable []nodeJSON    `json:"nodes"`
	Error     string        `json:"error"`
}

// permitsJSON is the answer of inspect --permits.
type permitsJSON struct {
	Name  string       `json:"name"`
	Held  int          `json:"held"`
	Limit int          `json:"limit"`
	Queue []waiterJSON `json:"queue,omitempty"` // the first waiters, 8 at most
	Slots []statusJSON `json:"slots"`
}

type waiterJSON struct {
	Process  string  `json:"process"`
	Since    string  `json:"since"` // RFC 3339, by this clock
	WaitedMs float64 `json:"waited_ms"`
	Shared   bool    `json:"shared"`
	Permits  int     `json:"permits"` // of this number of permits, it wants one; 0 for other leases
}

// queueOf returns the first waiters of a lock.
func queueOf(s quorumlock.Status) []waiterJSON {
	all := make([]waiterJSON, 0, len(s.Queue))
	for _, w := range s.Queue {
		all = append(all, waiterJSON{Process: w.Process, Since: timeOf(w.Since), WaitedMs: ms(s.AsOf.Sub(w.Since)), Shared: w.Shared, Permits: w.Permits})
	}
	return all
}

type nodeJSON struct {
	Addr          string      `json:"addr"`
	Holder        *holderJSON `json:"holder"`
	Readers       int         `json:"readers"`
	TTLms         *float64    `json:"ttl_ms"`
	Fence         int64       `json:"fence"`
	QuarantinedMs float64     `json:"quarantined_ms"`
	Warning       string      `json:"warning"`
	Error         string      `json:"error"`
}

func holderOf(h quorumlock.Holder) *holderJSON {
	if h == (quorumlock.Holder{}) {
		return nil
	}
	j := &holderJSON{Label: h.Label, Owner: h.Owner, TraceParent: h.TraceParent, Asked: h.Asked, Revoked: h.Revoked, Detached: h.Detached}
	j.Since = timeOf(h.Since)
	return j
}

// end returns how long a lock lives, nil for a lock without such a number.
func end(held bool, d time.Duration) *float64 {
	if !held || d < 0 {
		return nil
	}
	left := ms(d)
	return &left
}

// timeOf returns a time in RFC 3339, empty for none.
func timeOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err)
}

func lockJSON(s quorumlock.Status, quorum int) statusJSON {
	j := statusJSON{
		Name: s.Name, Known: s.Known, Held: s.Held, Token: s.Token, Until: timeOf(s.Until), AsOf: timeOf(s.AsOf), Error: textOf(s.Err), Holder: holderOf(s.Holder), Readers: s.Readers, Holders: []*holderJSON{}, Votes: s.Votes, Quorum: quorum,
		TTLms: end(s.Held, s.TTL), Fence: s.Fence, Waiters: s.Waiters, Queue: queueOf(s), NodeTable: []nodeJSON{},
	}
	for _, h := range s.Holders {
		j.Holders = append(j.Holders, holderOf(h))
	}
	for _, n := range s.Nodes {
		j.NodeTable = append(j.NodeTable, nodeJSON{
			Addr: n.Addr, Holder: holderOf(n.Holder), Readers: n.Readers, TTLms: end(hasKey(n), n.TTL), Fence: n.Fence,
			QuarantinedMs: ms(n.QuarantinedFor), Warning: textOf(n.Warning), Error: textOf(n.Err),
		})
	}
	return j
}
