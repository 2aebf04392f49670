package quorum_test

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file decides everything a second time, as naively as possible: lists, maps,
// sorting, and trying every future. It must not share an idea with the package; where the
// two differ, one of them is wrong.

func dumbQuorum(n int) int {
	q := 1
	for 2*q <= n {
		q++
	}
	return q
}

// Answers of a node to an attempt.
const (
	silent = iota
	granted
	taken
	failed
)

func count(answers []int, what int) int {
	c := 0
	for _, a := range answers {
		if a == what {
			c++
		}
	}
	return c
}

// dumbTally tries every way in which the silent nodes can answer. A verdict is decided if
// it holds in every one of them.
func dumbTally(answers []int) quorum.Outcome {
	n, q := len(answers), dumbQuorum(len(answers))
	always := map[quorum.Outcome]bool{quorum.OutcomeWon: true, quorum.OutcomeHeld: true, quorum.OutcomeNoQuorum: true, quorum.OutcomeSplit: true}
	futures(answers, func(full []int) {
		won := count(full, granted) >= q
		held := n-count(full, taken) < q      // the others are not a majority
		noQuorum := n-count(full, failed) < q // likewise
		always[quorum.OutcomeWon] = always[quorum.OutcomeWon] && won
		always[quorum.OutcomeHeld] = always[quorum.OutcomeHeld] && held
		always[quorum.OutcomeNoQuorum] = always[quorum.OutcomeNoQuorum] && noQuorum
		always[quorum.OutcomeSplit] = always[quorum.OutcomeSplit] && !won && !held && !noQuorum
	})
	for _, o := range []quorum.Outcome{quorum.OutcomeWon, quorum.OutcomeHeld, quorum.OutcomeNoQuorum, quorum.OutcomeSplit} {
		if always[o] {
			return o
		}
	}
	return quorum.OutcomePending
}

// futures calls f with every completion of answers.
func futures(answers []int, f func(full []int)) {
	i := slices.Index(answers, silent)
	if i < 0 {
		f(answers)
		return
	}
	for _, a := range []int{granted, taken, failed} {
		answers[i] = a
		futures(answers, f)
	}
	answers[i] = silent
}

// dumbDeadline is the definition: the latest instant at which a majority still keeps the
// key.
func dumbDeadline(window []time.Duration) time.Duration {
	var latest time.Duration
	for _, e := range window {
		keep := 0
		for _, other := range window {
			if other >= e {
				keep++
			}
		}
		if keep >= dumbQuorum(len(window)) {
			latest = max(latest, e)
		}
	}
	return latest
}

// dumbMargin removes nodes one by one, until the removed nodes and the others are a
// majority.
func dumbMargin(n, held int) int {
	free, lost := n-held, 0
	if free >= dumbQuorum(n) { // already possible: count how many fewer would be enough
		for free > dumbQuorum(n) {
			free--
			lost--
		}
		return lost - 1
	}
	for free+lost+1 < dumbQuorum(n) {
		lost++
	}
	return lost
}

// dumbLease remembers every input, and computes everything else anew each time.
type dumbLease struct {
	terms  quorum.Terms // in force
	asks   []dumbAsk    // what it asked for, the last one from now on
	lag    time.Duration
	since  time.Duration
	rounds []*dumbRound
	kept   map[int][]time.Duration // for each node, the ends of the confirmations since the last denial
	next   time.Duration
	// lacking is the set of nodes whose last answer in this round was that the key is
	// missing, and that were not healed since.
	lacking map[int]bool

	ended    quorum.State // 0 while live
	why      quorum.Reason
	had      map[int]bool        // nodes that have confirmed
	denials  map[int]quorum.Kind // the latest denial of each of them, since it has confirmed
	unquorum bool                // the last round that closed or confirmed had no majority
	thin     bool
}

type dumbRound struct {
	began     time.Duration
	good, all map[int]bool
	confirmed bool
	closed    bool
}

func newDumbLease(terms quorum.Terms, began time.Duration, voters, answered []int) *dumbLease {
	d := &dumbLease{
		terms: terms, asks: []dumbAsk{{began, terms}}, since: began, kept: map[int][]time.Duration{}, lacking: map[int]bool{}, next: time.Duration(quorum.Never),
		had: map[int]bool{}, denials: map[int]quorum.Kind{},
	}
	first := &dumbRound{began: began, good: map[int]bool{}, all: map[int]bool{}, confirmed: true}
	for _, i := range voters {
		d.confirm(quorum.Input{Node: i, At: clock.Validity(began)})
		first.good[i] = true
	}
	for _, i := range answered {
		first.all[i] = true
	}
	d.rounds = append(d.rounds, first)
	return d
}

func (d *dumbLease) round() *dumbRound { return d.rounds[len(d.rounds)-1] }

// denial is the strongest of the latest denials.
func (d *dumbLease) denial() quorum.Reason {
	why := quorum.ReasonMissing
	for _, kind := range d.denials {
		switch kind {
		case quorum.InputRevoked:
			return quorum.ReasonRevoked
		case quorum.InputTaken:
			why = quorum.ReasonTaken
		default:
		}
	}
	return why
}

func (d *dumbLease) keeps(i int) time.Duration {
	if len(d.kept[i]) == 0 {
		return 0
	}
	return slices.Max(d.kept[i])
}

func (d *dumbLease) deadline() time.Duration {
	all := make([]time.Duration, d.terms.Nodes)
	for i := range all {
		all[i] = d.keeps(i)
	}
	return dumbDeadline(all)
}

func (d *dumbLease) stop() time.Duration {
	stop := d.deadline() - d.terms.SafetyMargin
	if d.terms.MaxHold > 0 && d.since+d.terms.MaxHold < stop {
		stop = d.since + d.terms.MaxHold
	}
	return stop
}

func (d *dumbLease) end() time.Duration {
	end := d.deadline() - d.terms.SafetyMargin - d.terms.Early - d.lag
	if d.terms.MaxHold > 0 && d.since+d.terms.MaxHold < end {
		end = d.since + d.terms.MaxHold
	}
	return end
}

func (d *dumbLease) margin(now time.Duration) int {
	held := 0
	for i := range d.terms.Nodes {
		if now < d.keeps(i) {
			held++
		}
	}
	return dumbMargin(d.terms.Nodes, held)
}

func (d *dumbLease) state() quorum.State {
	switch {
	case d.ended != 0:
		return d.ended
	case d.unquorum || d.thin:
		return quorum.StateAtRisk
	default:
		return quorum.StateHeld
	}
}

func (d *dumbLease) due(now time.Duration) bool {
	return d.ended == 0 && d.round().closed && now >= d.next
}

func (d *dumbLease) wake() time.Duration {
	if d.ended != 0 {
		return time.Duration(quorum.Never)
	}
	if r := d.round(); !r.closed {
		return min(d.end(), r.began+d.terms.Timeout)
	}
	return min(d.end(), d.next)
}

func (d *dumbLease) step(now time.Duration, in quorum.Input) quorum.Output {
	if d.ended != 0 {
		return quorum.Output{}
	}
	unsettled := func() bool { r := d.round(); return !r.closed && !r.confirmed }
	expected := min(in.Lag, d.terms.MaxLag)
	if expected < d.lag || !unsettled() && in.Kind == quorum.InputTick {
		d.lag = expected
	}
	out := d.take(now, in)
	if out.Missed && !unsettled() {
		d.lag = expected
	}
	return out
}

func (d *dumbLease) take(now time.Duration, in quorum.Input) (out quorum.Output) {
	if now >= d.end() {
		keys := d.deadline() - d.terms.SafetyMargin - d.terms.Early - d.lag
		old := d.terms.MaxHold > 0 && now >= d.since+d.terms.MaxHold
		ageFirst := old && d.since+d.terms.MaxHold <= keys
		d.ended, d.why = quorum.StateLost, quorum.ReasonExpired
		switch {
		case old && now < keys: // only the age is wrong
			d.why = quorum.ReasonMaxHold
		case in.Jump:
			d.why = quorum.ReasonSuspended
		case ageFirst:
			d.why = quorum.ReasonMaxHold
		}
		out.Events = quorum.Ended
		return out
	}
	answer := in.Kind == quorum.InputConfirmed || in.Kind == quorum.InputMissing || in.Kind == quorum.InputTaken || in.Kind == quorum.InputRevoked || in.Kind == quorum.InputNoAnswer
	r := d.round()
	late := in.At < clock.Validity(r.began)
	ours := answer && !late && d.of(in).TTL == d.asked().TTL
	switch in.Kind {
	case quorum.InputRelease:
		d.ended = quorum.StateReleased
		return out
	case quorum.InputBegin:
		other := in.Terms != nil && in.Terms.TTL != d.asked().TTL
		if !r.closed && !r.confirmed && now-r.began < d.terms.Timeout {
			if !other {
				break
			}
			r.closed = true
		}
		if other {
			d.ask(now, *in.Terms)
		}
		d.closeRound(&out)
		r = &dumbRound{began: now, good: map[int]bool{}, all: map[int]bool{}}
		d.rounds = append(d.rounds, r)
		d.lacking = map[int]bool{}
		out.Begin = true
	case quorum.InputConfirmed:
		d.confirm(in)
		delete(d.denials, in.Node)
		d.lacking[in.Node] = false
		if ours {
			r.all[in.Node] = true
			if !d.overtaken(in) {
				r.good[in.Node] = true
			}
		}
	case quorum.InputNoAnswer:
		if ours {
			r.all[in.Node] = true
		}
	case quorum.InputClockStep:
		for j := range d.kept[in.Node] {
			d.kept[in.Node][j] -= in.By
		}
		if len(d.kept[in.Node]) > 0 && d.keeps(in.Node) <= now {
			d.kept[in.Node] = nil
			if clock.Validity(d.next) != quorum.Never {
				d.next = now
			}
		}
		if now >= d.end() {
			d.ended, d.why = quorum.StateLost, d.denial()
			out.Events = quorum.Ended
			return out
		}
	case quorum.InputMissing, quorum.InputTaken, quorum.InputRevoked:
		if latest := max(time.Duration(in.At), d.asks[len(d.asks)-1].at); end(d.asked(), latest) < d.keeps(in.Node) {
			break
		}
		d.kept[in.Node] = nil
		if d.had[in.Node] {
			d.denials[in.Node] = in.Kind
		}
		if !late {
			r.all[in.Node] = true
			delete(r.good, in.Node)
		}
		if now >= d.end() {
			d.ended, d.why = quorum.StateLost, d.denial()
			out.Events = quorum.Ended
			return out
		}
		d.lacking[in.Node] = in.Kind == quorum.InputMissing
	}

	if !r.closed && !r.confirmed && len(r.good) >= dumbQuorum(d.terms.Nodes) {
		r.confirmed, d.unquorum, d.terms = true, false, d.asked()
		out.Confirmed = true
		out.Events |= quorum.Renewed
	}
	if len(r.all) == d.terms.Nodes || now >= r.began+d.terms.Timeout {
		d.closeRound(&out)
	}
	for i, lacking := range d.lacking {
		if lacking && (r.confirmed || r.closed) {
			out.Heal = out.Heal.With(i)
			d.lacking[i] = false
		}
	}
	thin := d.terms.Nodes > 1 && d.margin(now) <= 0
	if d.thin && !thin {
		d.thin = false
		if !d.unquorum {
			out.Events |= quorum.Renewed
		}
	}
	if thin && !d.thin && r.closed {
		d.thin = true
		out.Events |= quorum.AtRisk
	}
	return out
}

func (d *dumbLease) closeRound(out *quorum.Output) {
	r := d.round()
	if r.closed {
		return
	}
	r.closed = true
	for i := range d.terms.Nodes {
		if !r.all[i] {
			out.Silent = out.Silent.With(i)
		}
	}
	if !r.confirmed {
		d.unquorum = true
		out.Missed = true
		out.Events |= quorum.AtRisk
	}
}
