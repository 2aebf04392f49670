package campaign

import (
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/report"
)

// backoffPatience is how long a call waits for the user's backoff, once: its attempt may hold
// locks until then, and other callers of the process wait for its turn.
const backoffPatience = 50 * time.Millisecond

// Delays are the delays between the attempts of one call that waits.
//
// The user's backoff runs in a goroutine of its own, because it may hang. Then the default
// takes its place until it answers.
type Delays struct {
	user     func() backoff.BackOff // nil for the default
	reporter *report.Reporter
	standard backoff.BackOff // the default

	// users is the user's backoff, once its function has returned it. Only the goroutine that
	// asks uses it.
	users backoff.BackOff
	// answers has capacity 1: the answer to a question. Never closed.
	answers chan answer
	asked   bool // a question has no answer yet
	hangs   bool // the answer did not come in time
}

// An answer of the user's backoff.
type answer struct {
	delay    time.Duration
	panicked any // the value of the panic, nil for none
}

// NewDelays returns the delays of a call; user makes the user's backoff, nil for the default.
func NewDelays(user func() backoff.BackOff, reporter *report.Reporter) *Delays {
	d := &Delays{user: user, reporter: reporter, standard: config.DefaultRetry()}
	if user != nil {
		d.answers = make(chan answer, 1)
	}
	return d
}

// Next returns the next delay, backoff.Stop if the user's backoff has stopped. A panic of the
// user's backoff continues in the caller's goroutine.
func (d *Delays) Next() time.Duration {
	if d.answers == nil {
		return d.standard.NextBackOff()
	}
	if !d.asked {
		d.asked = true
		go d.ask()
	}
	a, ok := d.answer()
	switch {
	case !ok:
		return d.standard.NextBackOff()
	case a.panicked != nil:
		panic(a.panicked)
	}
	return a.delay
}

// answer waits for the answer. After one wait without an answer, it does not wait again.
func (d *Delays) answer() (a answer, ok bool) {
	patience := backoffPatience
	if d.hangs {
		patience = 0
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a = <-d.answers:
		d.asked, d.hangs = false, false
		return a, true
	case <-timer.C:
	}
	if !d.hangs {
		d.hangs = true
		d.reporter.Warn("the function of WithRetryBackoff does not return: the default backoff is used until it does", "after", backoffPatience)
	}
	return a, false
}

// ask asks the user's backoff for one delay.
func (d *Delays) ask() {
	var a answer
	returned := false
	defer func() {
		if a.panicked = recover(); returned || a.panicked != nil { // otherwise it has ended the goroutine
			d.answers <- a
		}
	}()
	if d.users == nil {
		if d.users = d.user(); d.users == nil {
			d.users = config.DefaultRetry()
		}
	}
	a.delay = d.users.NextBackOff()
	returned = true
}
