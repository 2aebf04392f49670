// Package master finds the master of a failover group: a master, and replicas, one of which may
// take its place. It asks the Sentinels of a master set, or nodes of a cluster, and follows the
// majority of their answers.
//
// A [Term] is a stretch in which one server is the master. internal/failover decides which term
// may be used, and whether its votes count; a [Group] asks, counts the answers, and carries the
// decision out. A promoted replica may lack the last writes of the term before, so the restart
// guard starts a quarantine for every term: docs/managed.md has the rules, and docs/lemmas.md
// the proof.
//
// A Group has one goroutine, [Group.Run], and one for each question under way. Its mutexes,
// of a Group and of its voters, are never held together, nor during a question.
package master
