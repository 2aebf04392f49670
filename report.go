package quorumlock

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
)

// reporter runs the user's code, log handlers, span processors and instruments, in a
// goroutine of its own: code that blocks must hold up neither the watchdog nor a node's
// worker. The spans of a call start and end in the caller's goroutine.
//
// It survives a panic of that code, and logs the first one.
type reporter struct {
	// waiting has capacity 256. Reports that do not fit are dropped and counted, so that
	// add never blocks. Never closed: a lease with a watch may report its end while Close
	// ends.
	waiting chan func()
	dropped atomic.Int64
	halt    chan struct{} // closed by stop
	done    chan struct{} // closed by run when it ends

	// Used only by run.
	panics int    // of the user's code
	first  string // the first panic, with its stack; "" when it has been logged
}

func newReporter() *reporter {
	return &reporter{waiting: make(chan func(), 256), halt: make(chan struct{}), done: make(chan struct{})}
}

// run is the reporter's goroutine. It ends after stop, when nothing waits.
func (r *reporter) run(log *slog.Logger, meters *instruments) {
	defer close(r.done)
	for {
		select {
		case report := <-r.waiting:
			r.call(report)
		case <-meters.pending():
			r.dropped.Add(meters.flush(r.call))
		case <-r.halt:
			for len(r.waiting) > 0 {
				r.call(<-r.waiting)
			}
			r.dropped.Add(meters.flush(r.call))
			r.call(meters.close)
			r.complain(log, true)
			return
		}
		r.complain(log, false)
	}
}

// call runs the user's code.
func (r *reporter) call(report func()) {
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
func (r *reporter) complain(log *slog.Logger, last bool) {
	if n := r.dropped.Swap(0); n > 0 {
		r.call(func() {
			log.Warn("quorumlock: a log handler, span processor or meter is too slow: reports dropped", "reports", n)
		})
	}
	if first := r.first; first != "" {
		r.first = ""
		r.call(func() {
			log.Warn("quorumlock: a log handler, span processor or meter panics; what it was to report is lost", "panic", first)
		})
	}
	if n := r.panics; last && n > 1 {
		r.call(func() { log.Warn("quorumlock: a log handler, span processor or meter has panicked", "times", n) })
	}
}

// add queues a report, or drops and counts it.
func (r *reporter) add(report func()) {
	select {
	case r.waiting <- report:
	default:
		r.dropped.Add(1)
	}
}

// stop lets run end after the queued reports.
func (r *reporter) stop() { close(r.halt) }

// warn logs a warning without waiting for the handler.
func (m *Manager) warn(message string, args ...any) {
	m.reporter.add(func() { m.cfg.log.Warn("quorumlock: "+message, args...) })
}
