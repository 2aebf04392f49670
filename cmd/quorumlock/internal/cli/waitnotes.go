package cli

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// stillWaiting is how often a command that waits says so. Tests shorten it.
var stillWaiting = time.Minute

// waitNotes tells a person what happens while a command waits: what the library logs about the nodes, and from time to
// time that it still waits. Once the lock is held, the supervisor says what a change means for the lease.
type waitNotes struct {
	note func(format string, args ...any) // never waits: a granted lock must not wait for stderr
	last func()                           // waits for the last notes, for a moment
	log  io.Writer
	on   atomic.Bool
	stop chan struct{} // closed by end
	done sync.WaitGroup
}

func (p *program) waitNotes() *waitNotes {
	note, flush := p.aside()
	return &waitNotes{note: note, last: flush, log: p.stderr, stop: make(chan struct{})}
}

// logger returns the logger for the library.
func (w *waitNotes) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// Write prints a line of the log, if the command waits.
func (w *waitNotes) Write(line []byte) (int, error) {
	if !w.on.Load() {
		return len(line), nil
	}
	return w.log.Write(line)
}

// begin prints from now on, until end.
func (w *waitNotes) begin(names []string) {
	if w.on.Swap(true) {
		return
	}
	began := time.Now()
	w.done.Go(func() {
		tick := time.NewTicker(stillWaiting)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.note("still waiting for %s after %s: quorumlock inspect shows the holder, quorumlock doctor the nodes",
					quoted(names), short(time.Since(began)))
			case <-w.stop:
				return
			}
		}
	})
}

// end prints nothing more.
func (w *waitNotes) end() {
	w.on.Store(false)
	close(w.stop)
	w.done.Wait()
	w.last()
}
