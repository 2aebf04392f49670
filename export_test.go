package quorumlock

import "github.com/quorumlock/quorumlock/internal/wire"

// LocalCallers returns how many callers of a Manager queue for a name in this process: the
// one that asks the nodes, and those behind it.
func LocalCallers(m *Manager, name string) int {
	m.locals.mu.Lock()
	defer m.locals.mu.Unlock()
	q := m.locals.byKey[wire.LockKey(m.cfg.Prefix, name)]
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.callers)
}

// LocalQueues returns how many names a Manager has a queue for.
func LocalQueues(m *Manager) int {
	m.locals.mu.Lock()
	defer m.locals.mu.Unlock()
	return len(m.locals.byKey)
}
