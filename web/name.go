package web

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock"
)

// This file has the page's views of one name, and of the names of a prefix.

// Bounds of the requests to the nodes, and of the rows.
const (
	mostPermits = 1024 // of a name, as Permits allows
	mostHolders = 64   // rows of permits
	mostListed  = 200  // names of a prefix
)

// revokedReaders is the owner of a lock whose readers were revoked.
const revokedReaders = "00000000000000000000000000000000"

// absent is the TTL of a node that has no lock.
const absent = -2 * time.Millisecond

// nameView is the page's view of a name that someone looks at.
type nameView struct {
	Name    string      `json:"name"`
	Query   string      `json:"query"`
	At      int64       `json:"at"` // Unix time, ms
	Level   level       `json:"level"`
	Text    string      `json:"text"`
	Error   string      `json:"error"`
	Here    string      `json:"here"` // what this process holds or asks of it
	Waiters int         `json:"waiters"`
	Queue   []waiterRow `json:"queue"` // the first of them
	Fence   string      `json:"fence"`
	Holders []holderRow `json:"holders"`
	More    int         `json:"more"` // holders without a row
	Slots   int         `json:"slots"`
	Nodes   []answerRow `json:"nodes"`
}

type holderRow struct {
	Key     string  `json:"key"`
	Slot    string  `json:"slot"` // of a permit
	Label   string  `json:"label"`
	Owner   string  `json:"owner"`
	Held    float64 `json:"held"` // since it was granted; -1 if that is not known
	Since   int64   `json:"since"`
	Token   string  `json:"token"` // at most
	TTL     float64 `json:"ttl"`   // negative for no end
	Waiters int     `json:"waiters"`
	Notes   string  `json:"notes"`
	Trace   string  `json:"trace"`
}

type waiterRow struct {
	Key     string  `json:"key"`
	Process string  `json:"process"`
	Own     bool    `json:"own"`
	Waited  float64 `json:"waited"`
	Since   int64   `json:"since"` // Unix time, ms
	Wants   string  `json:"wants"`
}

// answerRow is one node's answer about the name.
type answerRow struct {
	Number  int     `json:"number"`
	Addr    string  `json:"addr"`
	Level   level   `json:"level"`
	Says    string  `json:"says"`
	TTL     float64 `json:"ttl"`
	Problem string  `json:"problem"`
}

// ofName makes the view of a name from the results of Inspect. leases are the leases of this process.
func ofName(name string, permits int, s *quorumlock.Status, err error, leases []quorumlock.LeaseStatus, link string, now time.Time) nameView {
	v := nameView{
		Name: shown(name, alone), Query: queryOf(name, permits), At: now.UnixMilli(), Level: good, Error: problem(err, alone),
		Waiters: s.Waiters, Slots: len(s.Slots), Here: here(name, leases), Holders: []holderRow{}, Nodes: []answerRow{}, Queue: waiterRows(s), // JSON for none is []
	}
	if s.Fence > 0 {
		v.Fence = strconv.FormatInt(s.Fence, 10)
	}
	held := 0
	if s.Slots != nil {
		for i := range s.Slots {
			if slot := &s.Slots[i]; slot.Held {
				if held++; held > mostHolders {
					v.More++
					continue
				}
				v.Holders = append(v.Holders, holderOf(&slot.Holder, slot, strconv.Itoa(i), link, now))
			}
		}
		v.Text = fmt.Sprintf("%d of %d permits are held.", held, len(s.Slots))
	} else {
		v.Holders, v.More = holdersOf(v.Holders, s, link, now)
		v.Text = heldBy(s)
		v.Nodes = answerRows(s.Nodes)
	}
	switch {
	case !s.Known:
		v.Level = bad
	case s.Waiters > 0:
		v.Level = warn
		v.Text += " " + are(s.Waiters, "process waits.", "processes wait.")
	}
	return v
}

// heldBy says who holds a name.
func heldBy(s *quorumlock.Status) string {
	switch {
	case !s.Known && s.Votes > 0:
		return fmt.Sprintf("It is not known who holds it: %s the holder below, and too few have answered.", are(s.Votes, "node names", "nodes name"))
	case !s.Known:
		return "It is not known who holds it: too few nodes have answered."
	case s.Held && s.Readers > 0:
		return are(s.Readers, "reader holds it.", "readers hold it together.")
	case s.Held:
		return "It is held."
	case s.Votes > 0:
		return "No one holds it: a minority of the nodes has a key, which is being acquired or released, or was left behind."
	}
	return "No one holds it."
}

// holdersOf appends the holders of a name without permits, and returns how many more readers there are.
func holdersOf(rows []holderRow, s *quorumlock.Status, link string, now time.Time) (_ []holderRow, more int) {
	if s.Readers > 0 {
		for i := range s.Holders {
			rows = append(rows, holderOf(&s.Holders[i], s, "", link, now))
		}
		return rows, max(s.Readers-len(rows), 0)
	}
	if s.Votes > 0 {
		rows = append(rows, holderOf(&s.Holder, s, "", link, now))
	}
	return rows, 0
}

// named returns the label of a holder, "" for none, and the beginning of its owner value. It returns neither a value nor
// a time for readers that were revoked: the nodes no longer name them.
func named(h *quorumlock.Holder, most int) (label, owner string, since time.Time) {
	if h.Owner == revokedReaders {
		return "revoked readers", "", time.Time{}
	}
	return shown(h.Label, most), shown(h.Owner[:min(len(h.Owner), 8)], inTable), h.Since
}

func holderOf(h *quorumlock.Holder, s *quorumlock.Status, slot, link string, now time.Time) holderRow {
	label, owner, since := named(h, alone)
	r := holderRow{
		Key: slot + "/" + shown(h.Owner, inTable), Slot: slot, Label: label, Owner: owner,
		Held: -1, TTL: ms(s.TTL), Trace: traceOf(link, h.TraceParent), Waiters: s.Waiters,
	}
	if !since.IsZero() {
		r.Since, r.Held = since.UnixMilli(), ms(max(now.Sub(since), 0))
	}
	if s.Token > 0 {
		r.Token = strconv.FormatInt(s.Token, 10)
	}
	note := func(text, of string) {
		if of != "" {
			r.Notes += text + shown(of, inTable) + ". "
		}
	}
	note("Asked to release by ", h.Asked)
	note("Revoked by ", h.Revoked)
	if h.Detached {
		r.Notes += "Detached for another process. "
	}
	return r
}

// waiterRows returns the first waiters, in their order. A process may have several, such as readers. Since is measured
// anew each time, so it cannot be a key.
func waiterRows(s *quorumlock.Status) []waiterRow {
	rows, nth := make([]waiterRow, len(s.Queue)), map[string]int{}
	for i, w := range s.Queue {
		nth[w.Process]++
		r := waiterRow{
			Key: fmt.Sprintf("%s/%d", w.Process, nth[w.Process]), Process: shown(w.Process, inTable), Own: w.Own, Since: w.Since.UnixMilli(),
			Waited: ms(max(s.AsOf.Sub(w.Since), 0)), Wants: "exclusive",
		}
		switch {
		case w.Permits > 0:
			r.Wants = "1 of " + are(w.Permits, "permit", "permits")
		case w.Shared:
			r.Wants = "shared"
		}
		rows[i] = r
	}
	return rows
}

// here says what this process holds of a name.
func here(name string, leases []quorumlock.LeaseStatus) string {
	held := 0
	for i := range leases {
		if leases[i].Name == name {
			held++
		}
	}
	if held == 0 {
		return ""
	}
	return are(held, "lease of it is of this process.", "leases of it are of this process.")
}

func answerRows(nodes []quorumlock.NodeStatus) []answerRow {
	rows := make([]answerRow, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		r := answerRow{Number: i, Addr: shown(n.Addr, inTable), Level: good, Says: "free", Problem: problem(cmp.Or(n.Err, n.Warning), inTable)}
		switch {
		case n.Err != nil:
			r.Level, r.Says = bad, "no answer"
		case n.Readers > 0:
			r.Says, r.TTL = are(n.Readers, "reader", "readers"), ms(n.TTL)
		case n.TTL != absent: // another program's lock may have an empty value
			label, _, _ := named(&n.Holder, inTable)
			r.Says, r.TTL = "held by "+cmp.Or(label, "someone without a label"), ms(n.TTL)
		}
		if n.Warning != nil {
			r.Level = warn
		}
		rows[i] = r
	}
	return rows
}

// listView is the names of a prefix.
type listView struct {
	At     int64     `json:"at"` // Unix time, ms
	Took   float64   `json:"took"`
	Prefix string    `json:"prefix"`
	Rows   []listRow `json:"rows"`
	More   bool      `json:"more"` // names were left out
	Error  string    `json:"error"`
}

type listRow struct {
	Name    string  `json:"name"`
	Query   string  `json:"query"`
	Level   level   `json:"level"`
	Holder  string  `json:"holder"`
	Held    float64 `json:"held"` // -1 if that is not known
	Waiters int     `json:"waiters"`
}

func listRowOf(s *quorumlock.Status, now time.Time) listRow {
	label, owner, since := named(&s.Holder, inTable)
	r := listRow{Name: shown(s.Name, inTable), Query: queryOf(s.Name, 0), Level: good, Holder: label, Held: -1, Waiters: s.Waiters}
	if !since.IsZero() {
		r.Held = ms(max(now.Sub(since), 0))
	}
	switch {
	case s.Held && s.Readers > 0:
		r.Holder = are(s.Readers, "reader", "readers")
	case !s.Known:
		r.Level, r.Holder = bad, "not known"
	case !s.Held:
		r.Holder, r.Held = "no one", -1
	case r.Holder == "":
		r.Holder = "no label, owner " + owner
	}
	if s.Waiters > 0 {
		r.Level = warn
	}
	return r
}
