package hold

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A View is the state of a lock, for people who look at it.
type View struct {
	Tenant        Tenant         // the lease that stands on the lock
	Granted, Stop clock.Validity // when the lease began, and when work must stop
	State         quorum.State
	Margin        int
	Want          Want
	Errors        []error // the latest errors of the nodes, by node; nil for none
}

// All returns the locks of this process, with some that have ended.
func (s *Locks) All() []*Lock { return s.schedule.all() }

// View returns the state of the lock at an instant, and false if no lease stands on it. From the first call on, the
// lock remembers who wants it. The first call therefore calls first, which reports the callers of this process.
func (l *Lock) View(now clock.Validity, first func(key string)) (v View, ok bool) {
	l.mu.Lock()
	_, unknown := l.attend()
	l.mu.Unlock()
	if unknown {
		first(l.key) // without the mutex, which is taken after the queue's mutex
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over || l.is.vacant {
		return View{}, false
	}
	return View{
		Tenant: l.tenancy.tenant, Granted: l.tenancy.granted, Stop: l.machine.Stop(), State: l.machine.State(),
		Margin: l.machine.Margin(now), Want: l.others.wants.Load().sum(), Errors: slices.Clone(l.nodes),
	}, true
}
