package doctor

import (
	"slices"
	"strings"
)

// noReplicas begins the answer to a write when too few replicas follow.
const noReplicas = "NOREPLICAS"

// refusals judges which commands that locks need the server refuses, regardless of the user's rights. Commands with one
// cause are one finding.
func (j *judge) refusals(i int, n Node) {
	if n.Mode == "sentinel" || n.Mode == "cluster" && !j.slot(n) || n.Role == "slave" {
		return // these have their own findings, with the reason
	}
	type cause struct{ code, problem, fix string }
	commands, order := map[cause][]string{}, []cause(nil)
	for _, r := range n.Refused {
		if r.Command == "INFO" || n.MinReplicas != "" && strings.HasPrefix(r.Text, noReplicas) {
			continue // the same: unchecked, or min_replicas
		}
		var c cause
		c.code, c.problem, c.fix = causeOf(r.Text)
		if !slices.Contains(order, c) {
			order = append(order, c)
		}
		if !slices.Contains(commands[c], r.Command) {
			commands[c] = append(commands[c], r.Command)
		}
	}
	for _, c := range order {
		level := Fail
		switch {
		case slices.Equal(commands[c], []string{"PING"}):
			level = Warn
		case slices.Equal(commands[c], []string{"DBSIZE"}): // only WithTrustEmptyNodes needs it
			level = Note
		}
		j.add(level, i, c.code, "locks need "+strings.Join(commands[c], ", ")+": "+c.problem, c.fix)
	}
}

// causeOf explains why a server refuses a command, by its answer.
func causeOf(text string) (code, problem, fix string) {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
	}
	switch {
	case has("OOM command not allowed"):
		return CodeFull, "the memory of the node is full, and it refuses writes (OOM): leases continue, and none is granted",
			"raise maxmemory, or delete other data; keep noeviction"
	case has("MISCONF"):
		return CodeWritesStopped, "the node has stopped writes, because it could not save its data: " + text,
			"free its disk and look at its log; where snapshots do not matter, set save \"\""
	case strings.HasPrefix(text, "MOVED "):
		return CodeCluster, "the slot of the prefix belongs to another server of the cluster: " + text, "give the address of its master, which this answer ends with"
	case has(noReplicas):
		return CodeMinReplicas, "the node refuses writes while too few replicas follow it: " + text,
			"bring the replicas back, or set min-replicas-to-write 0"
	case has("nknown command", "nknown Redis command", "nknown subcommand"):
		return CodeNoCommand, "the server does not have it under this name",
			"take the rename-command for it out of the server's configuration, or name the server itself where a proxy answers"
	}
	return CodeRedisAnswered, "the server refuses it: " + text, `look at the server's log, and at https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#errors-of-nodes`
}
