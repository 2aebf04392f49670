package quorumlock

// LocalCallers returns how many callers of a Manager queue for a name in this process: the
// one that asks the nodes, and those behind it.
func LocalCallers(m *Manager, name string) int {
	return m.of(name).queues.Counts()[m.of(name).key(name)]
}

// LocalQueues returns how many names a Manager has a queue for.
func LocalQueues(m *Manager) int { return len(m.shards[0].queues.Counts()) }
