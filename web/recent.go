package web

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

// The numbers of events and losses that are kept, and of events that the subscription may have on the way.
const (
	keptEvents = 100
	keptLosses = 50
	onTheWay   = 256
)

// eventRow is one event on the page.
type eventRow struct {
	Key   int    `json:"key"`
	At    int64  `json:"at"` // Unix time, ms
	Level level  `json:"level"`
	What  string `json:"what"`
	Name  string `json:"name"`
	Query string `json:"query"`
	Text  string `json:"text"`
}

// recent has the last events of a Manager. Losses have a place of their own, so that a busy process does not push
// them out.
type recent struct {
	from *quorumlock.Subscription

	mu     sync.Mutex
	count  int
	lost   int
	events []eventRow // the oldest first
	losses []eventRow
}

// newRecent subscribes. The caller runs it.
func newRecent(m *quorumlock.Manager) *recent {
	return &recent{from: m.Subscribe(onTheWay, quorumlock.Acquired{}, quorumlock.AtRisk{}, quorumlock.Lost{}, quorumlock.Released{}, quorumlock.NodeChanged{})}
}

// run records events until the Manager is closed.
func (r *recent) run(now func() time.Time) {
	for e := range r.from.C() {
		r.add(e, now())
	}
}

func (r *recent) add(e quorumlock.Event, at time.Time) {
	row := rowOf(e, at)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	row.Key = r.count
	if _, lost := e.(quorumlock.Lost); lost {
		r.lost++
		r.losses = kept(r.losses, row, keptLosses)
		return
	}
	r.events = kept(r.events, row, keptEvents)
}

// kept appends an event, and drops the oldest beyond most.
func kept(rows []eventRow, row eventRow, most int) []eventRow {
	if len(rows) == most {
		copy(rows, rows[1:])
		rows = rows[:most-1]
	}
	return append(rows, row)
}

// latest returns the events and the losses, the latest first, and the numbers of all losses and of dropped events.
func (r *recent) latest() (events, losses []eventRow, lost int, dropped uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, losses = append([]eventRow{}, r.events...), append([]eventRow{}, r.losses...) // JSON for none is []
	slices.Reverse(events)
	slices.Reverse(losses)
	return events, losses, r.lost, r.from.Dropped()
}

// rowOf returns the row of an event.
func rowOf(e quorumlock.Event, at time.Time) eventRow {
	r := eventRow{At: at.UnixMilli(), Level: good}
	named := func(what, name string, token int64) {
		r.What, r.Name, r.Query, r.Text = what, shown(name, inTable), queryOf(name, 0), "token "+strconv.FormatInt(token, 10)
	}
	switch e := e.(type) {
	case quorumlock.Acquired:
		named("acquired", e.Name, e.Token)
		if e.Shared {
			r.Text += ", shared"
		}
	case quorumlock.Released:
		named("released", e.Name, e.Token)
	case quorumlock.AtRisk:
		named("at risk", e.Name, e.Token)
		r.Level = warn
		r.Text += fmt.Sprintf(", %v left, margin %d", e.Remaining.Round(10*time.Millisecond), e.Margin) + evidence(e.Nodes)
	case quorumlock.Lost:
		named("lost", e.Name, e.Token)
		r.Level, r.At = bad, e.At.UnixMilli()
		r.Text += ", " + string(e.Reason) + evidence(e.Nodes)
	case quorumlock.NodeChanged:
		r.What, r.Name, r.Text = "node grants locks", strconv.Itoa(e.Node)+" "+shown(e.Addr, inTable), problem(cmp.Or(e.Err, e.Warning), alone)
		switch {
		case e.QuarantinedFor > 0:
			r.What, r.Level = fmt.Sprintf("node in quarantine for %v", e.QuarantinedFor.Round(time.Second)), warn
		case e.Err != nil:
			r.What, r.Level = "node grants no locks", bad
		case e.Warning != nil:
			r.What, r.Level = "node warns", warn
		}
	}
	return r
}

// evidence returns the nodes' errors as text.
func evidence(nodes []*quorumlock.NodeError) string {
	text := ""
	for _, n := range nodes {
		text += "; " + problem(n, inTable)
	}
	return text
}
