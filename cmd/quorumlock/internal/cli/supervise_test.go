//go:build unix

package cli

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

// fakeLease ends at an instant that a test moves.
type fakeLease struct {
	mu      sync.Mutex
	end     time.Time
	done    chan struct{}
	atRisk  chan quorumlock.AtRisk
	renewed chan quorumlock.Renewed
	wanted  chan quorumlock.Wanted
}

func (l *fakeLease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.end), 0)
}
func (l *fakeLease) Done() <-chan struct{}              { return l.done }
func (l *fakeLease) AtRisk() <-chan quorumlock.AtRisk   { return l.atRisk }
func (l *fakeLease) Renewed() <-chan quorumlock.Renewed { return l.renewed }
func (l *fakeLease) Wanted() <-chan quorumlock.Wanted   { return l.wanted }

func (l *fakeLease) renew(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = time.Now().Add(d)
}

func (l *fakeLease) lose() {
	l.renew(0)
	close(l.done)
}

// fakeGroup records the signals that it gets, and when.
type fakeGroup struct {
	begun       time.Time
	ignoresTerm bool // all except KILL
	done        chan struct{}

	mu      sync.Mutex
	got     []string
	remnant bool // the command leaves a process behind
	ended   bool
	resumed int
}

func (g *fakeGroup) Pass(s syscall.Signal) { g.End(s) }

func (g *fakeGroup) End(s syscall.Signal) {
	g.mu.Lock()
	g.got = append(g.got, fmt.Sprintf("%v at %v", s, time.Since(g.begun)))
	g.mu.Unlock()
	if s == syscall.SIGKILL || s == syscall.SIGTERM && !g.ignoresTerm {
		g.end(false)
	}
}

// end ends the command, which perhaps leaves a process behind.
func (g *fakeGroup) end(remnant bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.remnant = remnant; !g.ended {
		g.ended = true
		close(g.done)
	}
}

func (g *fakeGroup) Done() <-chan struct{} { return g.done }
func (g *fakeGroup) Alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended || g.remnant
}
func (g *fakeGroup) Resume() { g.resumed++ }

// supervised runs a supervisor in virtual time; script plays the environment.
func supervised(t *testing.T, ignoresTerm bool, script func(l *fakeLease, g *fakeGroup, signals chan<- os.Signal)) (g *fakeGroup, notes []string, lost bool) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLease{
			end: time.Now().Add(10 * time.Second), done: make(chan struct{}),
			atRisk: make(chan quorumlock.AtRisk, 1), renewed: make(chan quorumlock.Renewed, 1), wanted: make(chan quorumlock.Wanted, 1),
		}
		g = &fakeGroup{begun: time.Now(), ignoresTerm: ignoresTerm, done: make(chan struct{})}
		signals := make(chan os.Signal, 1)
		s := &supervisor{
			name: `"job"`, nodes: 3, lease: l, group: g, grace: 2 * time.Second, margin: 500 * time.Millisecond, signals: signals,
			note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
		}
		over := make(chan struct{})
		go func() { defer close(over); lost = s.run() }()
		script(l, g, signals)
		select {
		case <-over:
		case <-time.After(time.Hour):
			require.Fail(t, "the supervisor does not return")
		}
	})
	g.got = slices.Compact(g.got) // KILL is repeated until all are dead
	return g, notes, lost
}

func TestACommandGetsTERMAndThenKILLBeforeItsLeaseIsOver(t *testing.T) {
	g, notes, lost := supervised(t, true, func(*fakeLease, *fakeGroup, chan<- os.Signal) {})
	assert.True(t, lost)
	assert.Equal(t, []string{"terminated at 8s", "killed at 9.5s"}, g.got)
	assert.Equal(t, []string{`"job" is not renewed, 2s left: the command is stopped`}, notes)
}

func TestACommandThatHeedsTERMIsNotKilled(t *testing.T) {
	g, _, lost := supervised(t, false, func(*fakeLease, *fakeGroup, chan<- os.Signal) {})
	assert.True(t, lost)
	assert.Equal(t, []string{"terminated at 8s"}, g.got)
}

func TestALostLeaseKillsAtOnce(t *testing.T) {
	g, _, lost := supervised(t, true, func(l *fakeLease, _ *fakeGroup, _ chan<- os.Signal) {
		time.Sleep(3 * time.Second)
		l.lose()
	})
	assert.True(t, lost)
	assert.Equal(t, []string{"terminated at 3s", "killed at 3s"}, g.got)
}

func TestARenewedLeaseLeavesTheCommandAlone(t *testing.T) {
	g, notes, lost := supervised(t, false, func(l *fakeLease, g *fakeGroup, _ chan<- os.Signal) {
		for range 20 {
			time.Sleep(3 * time.Second)
			l.renew(10 * time.Second)
		}
		synctest.Wait()
		g.end(false)
	})
	assert.False(t, lost)
	assert.Empty(t, g.got)
	assert.Empty(t, notes)
}

// A command that was asked to stop does not continue if the lease recovers.
func TestThereIsNoWayBackFromTERM(t *testing.T) {
	g, _, lost := supervised(t, true, func(l *fakeLease, _ *fakeGroup, _ chan<- os.Signal) {
		time.Sleep(8*time.Second + time.Millisecond)
		l.renew(10 * time.Second)
	})
	assert.True(t, lost)
	assert.Equal(t, []string{"terminated at 8s", "killed at 10s"}, g.got)
}

func TestWhatACommandLeavesBehindEndsBeforeTheRelease(t *testing.T) {
	g, _, lost := supervised(t, true, func(_ *fakeLease, g *fakeGroup, _ chan<- os.Signal) {
		time.Sleep(time.Second)
		g.end(true)
	})
	assert.False(t, lost, "the command ended by itself: its exit code counts")
	assert.Equal(t, []string{"terminated at 1s", "killed at 3s"}, g.got)
}

func TestSignalsGoToTheGroupAndThoseOfJobControlDoNot(t *testing.T) {
	g, notes, lost := supervised(t, true, func(_ *fakeLease, g *fakeGroup, signals chan<- os.Signal) {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGUSR1, syscall.SIGTSTP, syscall.SIGCONT} {
			signals <- s
			synctest.Wait()
		}
		g.end(false)
	})
	assert.False(t, lost)
	assert.Equal(t, []string{"interrupt at 0s", "user defined signal 1 at 0s"}, g.got)
	assert.Equal(t, 1, g.resumed)
	assert.Equal(t, []string{"a command that holds a lock is not suspended: it continues"}, notes)
}

func TestARiskIsToldOnceAndSoIsItsEnd(t *testing.T) {
	_, notes, _ := supervised(t, false, func(l *fakeLease, g *fakeGroup, _ chan<- os.Signal) {
		for range 2 {
			l.atRisk <- quorumlock.AtRisk{Name: "job", Remaining: 6 * time.Second, Confirmed: 1}
			synctest.Wait()
		}
		l.renewed <- quorumlock.Renewed{Name: "job", Confirmed: 2}
		synctest.Wait()
		l.renewed <- quorumlock.Renewed{Name: "job", Confirmed: 3, Margin: 1}
		synctest.Wait()
		g.end(false)
	})
	assert.Equal(t, []string{
		`"job" is at risk: 1 of 3 nodes confirmed its renewal, 6s left`,
		`"job" is safe again: 3 nodes confirmed it, margin 1`,
	}, notes)
}

// A lease that is lost while a command that was asked to stop still runs is a loss.
func TestALossAfterTheCommandWasAskedToStopIsALoss(t *testing.T) {
	for _, loses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLease{end: time.Now().Add(time.Hour), done: make(chan struct{}), wanted: make(chan quorumlock.Wanted, 1)}
			g := &fakeGroup{begun: time.Now(), ignoresTerm: true, done: make(chan struct{})}
			s := &supervisor{
				name: `"job"`, nodes: 3, lease: l, group: g, grace: 5 * time.Second, margin: 500 * time.Millisecond, yields: true,
				note: func(string, ...any) {},
			}
			over := make(chan bool, 1)
			go func() { over <- s.run() }()
			l.wanted <- quorumlock.Wanted{Waiters: 1, Asked: true}
			if time.Sleep(time.Second); loses {
				l.lose()
			}
			assert.Equal(t, loses, <-over)
			assert.True(t, g.ended)
		})
	}
}

func TestAnAskIsNotedOnceAndStopsACommandThatYields(t *testing.T) {
	for _, yields := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLease{end: time.Now().Add(time.Hour), done: make(chan struct{}), wanted: make(chan quorumlock.Wanted, 1)}
			g := &fakeGroup{begun: time.Now(), ignoresTerm: true, done: make(chan struct{})}
			var notes []string
			s := &supervisor{
				name: `"job"`, nodes: 3, lease: l, group: g, grace: 2 * time.Second, margin: 500 * time.Millisecond, yields: yields,
				note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) },
			}
			over := make(chan bool, 1)
			go func() { over <- s.run() }()
			for _, w := range []quorumlock.Wanted{
				{Waiters: 1}, {Waiters: 1, Asked: true, By: "ops\x1b", Reason: "deploy"}, {Waiters: 2, Asked: true, By: "ops", Reason: "deploy"},
			} {
				time.Sleep(time.Second)
				l.wanted <- w
			}
			time.Sleep(time.Minute)
			if !yields {
				assert.Empty(t, g.got)
				g.end(false)
			}
			assert.False(t, <-over, "the lease was not lost")
			if yields {
				assert.Equal(t, []string{"terminated at 2s", "killed at 4s"}, slices.Compact(g.got))
			}
			require.Len(t, notes, 1)
			assert.Regexp(t, `^"job" is asked for by ops.*: deploy$`, notes[0])
		})
	}
}
