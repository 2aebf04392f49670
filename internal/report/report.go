// Package report runs the user's code that reports: log handlers, span processors and
// instruments. They may hang or panic, and must hold up neither the watchdog nor a node's
// worker, so one goroutine of its own runs them all.
//
// Nothing here waits for any goroutine but that one. It has no mutex.
package report

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
)

// Reporter runs the user's code in the goroutine of Run. It survives a panic of that code, and
// logs the first one. The spans of a call start and end in the caller's goroutine, not here.
type Reporter struct {
	log *slog.Logger

	// waiting has capacity 256. Reports that do not fit are dropped and counted, so that
	// Add never blocks. Never closed: a lease with a watch may report its end while Close
	// ends.
	waiting chan func()
	dropped atomic.Int64
	halt    chan struct{} // closed by Stop
	done    chan struct{} // closed by Run when it ends

	// Used only by Run.
	panics int    // of the user's code
	first  string // the first panic, with its stack; "" when it has been logged
}

// New returns a reporter that logs to log.
func New(log *slog.Logger) *Reporter {
	return &Reporter{log: log, waiting: make(chan func(), 256), halt: make(chan struct{}), done: make(chan struct{})}
}

// Meters keep measurements for the user's instruments.
type Meters interface {
	// Pending delivers when measurements wait; nil if there never are any.
	Pending() <-chan struct{}
	// Flush passes what waits to the instruments, each in a call of its own, and returns how
	// many measurements were dropped.
	Flush(call func(func())) (dropped int64)
	// Close ends what the instruments call by themselves.
	Close()
}

// Run is the reporter's goroutine. It ends after Stop, when nothing waits.
func (r *Reporter) Run(meters Meters) {
	defer close(r.done)
	for {
		select {
		case report := <-r.waiting:
			r.call(report)
		case <-meters.Pending():
			r.dropped.Add(meters.Flush(r.call))
		case <-r.halt:
			for len(r.waiting) > 0 {
				r.call(<-r.waiting)
			}
			r.dropped.Add(meters.Flush(r.call))
			r.call(meters.Close)
			r.complain(true)
			return
		}
		r.complain(false)
	}
}

// call runs the user's code.
func (r *Reporter) call(report func()) {
	defer func() {
		if p := recover(); p != nil {
			if r.panics++; r.panics == 1 {
				r.first = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}
	}()
	report()
}

// complain logs that the user's code is too slow, or panics: the first panic, and the number
// of panics at the end.
func (r *Reporter) complain(last bool) {
	if n := r.dropped.Swap(0); n > 0 {
		r.call(func() {
			r.log.Warn("quorumlock: a log handler, span processor or meter is too slow: log lines, spans or metrics are missing; leases are not affected", "reports", n)
		})
	}
	if first := r.first; first != "" {
		r.first = ""
		r.call(func() {
			r.log.Warn("quorumlock: a log handler, span processor or meter panicked: its log line, span or metric is missing; leases are not affected", "panic", first)
		})
	}
	if n := r.panics; last && n > 1 {
		r.call(func() {
			r.log.Warn("quorumlock: a log handler, span processor or meter panicked several times", "times", n)
		})
	}
}

// Add queues a report, or drops and counts it.
func (r *Reporter) Add(report func()) {
	select {
	case r.waiting <- report:
	default:
		r.dropped.Add(1)
	}
}

// Stop lets Run end after the queued reports.
func (r *Reporter) Stop() { close(r.halt) }

// Done is closed when Run has ended.
func (r *Reporter) Done() <-chan struct{} { return r.done }

// Warn logs a warning without waiting for the handler.
func (r *Reporter) Warn(message string, args ...any) {
	r.Add(func() { r.log.Warn("quorumlock: "+message, args...) })
}
