package web

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
)

// This file turns the Manager's answers into what the page shows. The script of the page reads the types; they are not
// an API. All durations are in milliseconds.

// mostLeases is how many leases the page shows.
const mostLeases = 100

// level is how bad something is; the style sheet has a colour for each.
type level string

const (
	good level = "good"
	warn level = "warn"
	bad  level = "bad"
)

// overview is the state that a viewer gets every second.
type overview struct {
	Process string     `json:"process"`
	At      int64      `json:"at"` // Unix time
	Verdict verdict    `json:"verdict"`
	Nodes   []nodeRow  `json:"nodes"`
	Leases  []leaseRow `json:"leases"` // the first ones by margin
	Total   int        `json:"total"`  // of the leases
	Losses  []eventRow `json:"losses"` // the latest first
	Lost    int        `json:"lost"`   // how many in all
	Events  []eventRow `json:"events"`
	Dropped uint64     `json:"dropped"`
}

// verdict is the part that a person reads first.
type verdict struct {
	Level  level  `json:"level"`
	Text   string `json:"text"`
	Detail string `json:"detail"`
}

type nodeRow struct {
	Number     int     `json:"number"`
	Addr       string  `json:"addr"`
	Level      level   `json:"level"`
	State      string  `json:"state"`
	Quarantine float64 `json:"quarantine"`
	RoundTrip  float64 `json:"roundTrip"`
	Offset     float64 `json:"offset"`
	Version    string  `json:"version"`
	Problem    string  `json:"problem"`
}

type leaseRow struct {
	Key       string  `json:"key"`
	Name      string  `json:"name"`
	Query     string  `json:"query"` // of the page about the name
	Kind      string  `json:"kind"`
	Token     string  `json:"token"` // a script cannot hold every int64
	Held      float64 `json:"held"`
	TTL       float64 `json:"ttl"`
	Remaining float64 `json:"remaining"`
	Margin    int     `json:"margin"`
	Level     level   `json:"level"`
	Waiters   int     `json:"waiters"`
	Asked     string  `json:"asked"`
	Problem   string  `json:"problem"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// queryOf returns the query of the page about a name; permits is 0 for a name without.
func queryOf(name string, permits int) string {
	q := url.Values{"name": {name}}
	if permits > 0 {
		q.Set("permits", strconv.Itoa(permits))
	}
	return q.Encode()
}

// urgency orders leases: leases at risk first, then by margin, then by the time left. So the first hundred are the ones
// that an operator looks for.
func urgency(a, b *quorumlock.LeaseStatus) int {
	if a.AtRisk != b.AtRisk {
		if a.AtRisk {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(a.Margin, b.Margin),
		cmp.Compare(float64(a.Remaining)/float64(max(a.TTL, 1)), float64(b.Remaining)/float64(max(b.TTL, 1))),
		cmp.Compare(a.Name, b.Name), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Token, b.Token),
	)
}

// urgent returns the most urgent leases. Those with the same margin are in order by name: the time left changes with
// each renewal, and rows that change places cannot be read.
func urgent(all []quorumlock.LeaseStatus, most int) []quorumlock.LeaseStatus {
	slices.SortFunc(all, func(a, b quorumlock.LeaseStatus) int { return urgency(&a, &b) })
	all = all[:min(len(all), most)]
	slices.SortFunc(all, func(a, b quorumlock.LeaseStatus) int {
		a.Remaining, b.Remaining = 0, 0
		return urgency(&a, &b)
	})
	return all
}

func leaseRows(all []quorumlock.LeaseStatus, now time.Time) []leaseRow {
	rows := make([]leaseRow, len(all))
	for i := range all {
		l := &all[i]
		r := leaseRow{
			Key: fmt.Sprintf("%d/%d/%s", l.Slot, l.Token, l.Name), Name: shown(l.Name, inTable), Query: queryOf(l.Name, l.Slot+1), Kind: "exclusive",
			Token: strconv.FormatInt(l.Token, 10), Held: ms(now.Sub(l.Since)), TTL: ms(l.TTL), Remaining: ms(l.Remaining),
			Margin: l.Margin, Waiters: l.Wanted.Waiters, Problem: strings.TrimPrefix(evidence(l.Nodes), "; "),
		}
		switch {
		case l.Slot >= 0:
			r.Kind = "permit " + strconv.Itoa(l.Slot)
		case l.Shared:
			r.Kind = "shared"
		}
		if r.Level = riskOf(l); r.Level == good {
			r.Problem = "" // the list of nodes shows a node that is down
		}
		if l.Wanted.Asked {
			r.Asked = askedBy(l.Wanted.By, l.Wanted.Reason)
		}
		rows[i] = r
	}
	return rows
}

// riskOf returns the risk level of a lease. A round starts each third of the TTL, so a lease with less than half of it
// left has missed rounds. One with more is at risk because too few nodes hold it.
func riskOf(l *quorumlock.LeaseStatus) level {
	switch {
	case l.AtRisk && l.Remaining < l.TTL/2:
		return bad
	case l.AtRisk:
		return warn
	}
	return good
}

// askedBy says who has asked for a lease.
func askedBy(by, reason string) string {
	text := cmp.Or(shown(by, inTable), "someone") + " asks for it"
	if reason != "" {
		text += ": " + shown(reason, inTable)
	}
	return text
}

func nodeRows(nodes []quorumlock.NodeStatus) []nodeRow {
	rows := make([]nodeRow, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		r := nodeRow{
			Number: i, Addr: shown(n.Addr, inTable), Level: good, State: "grants locks", RoundTrip: ms(n.RoundTrip), Offset: ms(n.ClockOffset),
			Version: shown(n.Version, inTable), Problem: problem(errors.Join(n.Err, n.Warning), alone), Quarantine: ms(n.QuarantinedFor),
		}
		if n.Master != "" {
			r.Addr += ", master " + shown(n.Master, inTable)
		}
		switch {
		case n.QuarantinedFor > 0:
			r.Level, r.State = warn, "in quarantine"
		case !n.Voting:
			r.Level, r.State = bad, "grants no locks"
		case n.Warning != nil:
			r.Level, r.State = warn, "grants locks, with a warning"
		}
		rows[i] = r
	}
	return rows
}

// verdictOf judges whether names can be acquired now, and how far that is from changing. ready is the result of
// Manager.Ready.
func verdictOf(ready error, nodes []quorumlock.NodeStatus, leases []quorumlock.LeaseStatus) verdict {
	votes, warnings, atRisk, need, worst := 0, 0, 0, len(nodes)/2+1, good
	for i := range nodes {
		if nodes[i].Voting {
			votes++
		}
		if nodes[i].Warning != nil {
			warnings++
		}
	}
	for i := range leases {
		if risk := riskOf(&leases[i]); risk != good {
			if atRisk++; worst != bad {
				worst = risk
			}
		}
	}
	v := verdict{Level: good, Text: fmt.Sprintf("Locks are granted. %d of %s.", votes, are(len(nodes), "node is usable", "nodes are usable"))}
	noQuorum := (*quorumlock.QuorumError)(nil)
	switch {
	case errors.Is(ready, quorumlock.ErrClosed):
		return verdict{Level: bad, Text: "This Manager is closed.", Detail: "It holds nothing, and grants nothing."}
	case buckets(nodes) && votes < len(nodes):
		v.Level, v.Text = bad, fmt.Sprintf("Names in %s get no lock now. %d of %d are usable.", are(len(nodes)-votes, "bucket", "buckets"), votes, len(nodes))
	case ready != nil:
		v.Level, v.Text = bad, fmt.Sprintf("No lock is granted or renewed. %d of %s; %d are needed.", votes, are(len(nodes), "node is usable", "nodes are usable"), need)
	case votes == need && votes < len(nodes):
		v.Level, v.Detail = warn, "If one more node fails, no lock is granted or renewed."
	case votes < len(nodes):
		v.Level = warn
	case warnings > 0:
		v.Level, v.Detail = warn, are(warnings, "node has a warning.", "nodes have warnings.")
	}
	if errors.As(ready, &noQuorum) && noQuorum.RetryAfter > 0 {
		v.Detail = fmt.Sprintf("Quarantines end in %v, and then a majority can grant locks.", noQuorum.RetryAfter.Round(time.Second))
	}
	if atRisk > 0 {
		if worst == bad || v.Level == good {
			v.Level = worst
		}
		v.Detail = fmt.Sprintf("%s at risk here. %s", are(atRisk, "lease is", "leases are"), v.Detail)
	}
	return v
}

// buckets reports whether the nodes are the buckets of a whole cluster, of which each name needs one alone. No list has
// so many nodes.
func buckets(nodes []quorumlock.NodeStatus) bool {
	return len(nodes) == 16 && strings.HasPrefix(nodes[0].Addr, "slot:{")
}

// are returns a count and its noun.
func are(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + several
}
