package quorumlock

import (
	"log/slog"
	"sync/atomic"
)

// reporter runs the user's code, log handlers and span processors, in a goroutine of its
// own: code that blocks must hold up neither the watchdog nor a node's worker. The spans
// of a call start and end in the caller's goroutine.
type reporter struct {
	// waiting has capacity 256. Reports that do not fit are dropped and counted, so that
	// add never blocks. Never closed: a lease with a watch may report its end while Close
	// ends.
	waiting chan func()
	dropped atomic.Int64
	halt    chan struct{} // closed by stop
	done    chan struct{} // closed by run when it ends
}

func newReporter() *reporter {
	return &reporter{waiting: make(chan func(), 256), halt: make(chan struct{}), done: make(chan struct{})}
}

// run is the reporter's goroutine. It ends after stop, when no report waits.
func (r *reporter) run(log *slog.Logger) {
	defer close(r.done)
	for {
		select {
		case report := <-r.waiting:
			r.pass(report, log)
			continue
		default:
		}
		select {
		case report := <-r.waiting:
			r.pass(report, log)
		case <-r.halt:
			return
		}
	}
}

func (r *reporter) pass(report func(), log *slog.Logger) {
	report()
	if n := r.dropped.Swap(0); n > 0 {
		log.Warn("quorumlock: a log handler or span processor is too slow: reports dropped", "reports", n)
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
