package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Settings are the options of the nodes' clients.
type Settings struct {
	Guard  time.Duration // WithRestartGuard, 0 without
	Prefix string        // WithPrefix
}

// MaxSkew is how far a node's clock may differ from the others before that is a finding. Leases do not depend on it;
// tokens and places in queues do.
const MaxSkew = time.Second

// certificateDays is how many days before its end a certificate is a finding.
const certificateDays = 30

// Report is the verdict on all nodes.
type Report struct {
	Voting   int // nodes that can grant locks now
	Waiting  int // nodes that will, after the quarantine of the restart guard
	Quorum   int
	Findings []Finding // the worst first, by node within a level
}

// Worst returns the worst level of the findings, Note when nothing needs fixing.
func (r Report) Worst() Level { return worst(r.Findings) }

// worst takes findings in their order, the worst first.
func worst(sorted []Finding) Level {
	if len(sorted) == 0 {
		return Note
	}
	return sorted[0].Level
}

func rank(l Level) int { return slices.Index([]Level{Note, Warn, Fail}, l) }

// Judge finds what is wrong with the nodes, one by one and together.
func Judge(nodes []Node, s Settings) Report {
	j := &judge{nodes: nodes, settings: s}
	for i, n := range nodes {
		if n.Fault != nil {
			j.add(n.Fault.Level, i, n.Fault.Code, n.Fault.Problem, n.Fault.Fix)
			continue
		}
		j.kind(i, n)
		j.rights(i, n)
		j.refusals(i, n)
		j.data(i, n)
		j.replicas(i, n)
		j.guard(i, n)
		j.registers(i, n)
		j.lists(i, n)
	}
	j.pairs()
	j.clocks()
	r := Report{Quorum: len(nodes)/2 + 1}
	failed, waiting := map[int]bool{}, map[int]Level{}
	for _, f := range j.findings {
		failed[f.Node] = failed[f.Node] || f.Level == Fail
		if f.Code == CodeQuarantine {
			waiting[f.Node] = f.Level
		}
	}
	unused := 0 // nodes whose quarantine begins with the first client
	for i := range nodes {
		switch {
		case failed[i]:
		case waiting[i] == "":
			r.Voting++
		default:
			r.Waiting++
			if waiting[i] == Note {
				unused++
			}
		}
	}
	j.number(r, r.Voting+unused)
	r.Findings = j.sorted()
	return r
}

// farAhead is how far the base and the registers may be ahead of a node's clock if no clock was wrong: a restart guard
// of 48 h, the longest, puts them there.
const farAhead = 48 * time.Hour

type judge struct {
	nodes    []Node
	settings Settings
	findings []Finding
}

func (j *judge) add(level Level, node int, code, problem, fix string) {
	j.findings = append(j.findings, Finding{Level: level, Node: node, Code: code, Problem: problem, Fix: fix})
}

// sorted returns the findings, the worst first, by node within a level.
func (j *judge) sorted() []Finding {
	slices.SortStableFunc(j.findings, func(a, b Finding) int {
		if d := rank(b.Level) - rank(a.Level); d != 0 {
			return d
		}
		return a.Node - b.Node
	})
	return j.findings
}

// kind judges the kind of server that a node is.
func (j *judge) kind(i int, n Node) {
	switch n.Mode {
	case "", "standalone":
	case "sentinel":
		j.add(Fail, i, CodeSentinel, "the node is a Sentinel, which keeps no locks", "list the masters themselves, or the group as sentinel:SET@SENTINELS")
		return
	default:
		if j.slot(n) {
			break // if another server has the slot, this one refuses every command
		}
		j.add(Fail, i, CodeCluster, "the server runs in "+n.Mode+" mode, where the servers do not fail independently",
			"list stand-alone masters, or one slot of the cluster as slot:{TAG}@NODES, see https://github.com/quorumlock/quorumlock/blob/main/docs/managed.md; "+
				"its master is checked by quorumlock doctor --nodes MASTER --prefix '{TAG}:'")
	}
	if n.Role != "" && n.Role != "master" {
		j.add(Fail, i, CodeReplica, "the server is a replica of "+n.Master+" and does not count as a node", "list the master only")
	}
	if len(n.Others) > 0 {
		j.add(Fail, i, CodeSeveralServers, "the address leads to several servers: connections have reached run_id "+n.RunID+" and "+n.Others[0],
			"list each server by an address of its own, and not a headless service, a name with several addresses or a balancing proxy")
	}
	if wire.TooOld(n.Version) != nil {
		j.add(Fail, i, CodeOldVersion, "the server is Redis "+n.Version+", and locks need "+wire.OldestServer+" or later", "upgrade it")
	}
	if n.Plain {
		j.add(Note, i, CodePlain, "the connection is not encrypted: an attacker in the network reads the password, and can change answers", "use TLS on networks that you do not trust")
	}
	if days := int(n.Certificate / (24 * time.Hour)); n.Certificate != 0 && days < certificateDays {
		j.add(Warn, i, CodeTLSEnds, "the certificate of the node, or of its authority, ends in "+counted(days, "day")+": then no client connects",
			"put a new one into the files and load it, see https://github.com/quorumlock/quorumlock/blob/main/docs/redis.conf; one node after another")
	}
	if n.Loading {
		j.add(Fail, i, CodeLoading, "the node reads its data from disk and grants no locks yet", "wait, and ask again")
	}
	j.seen(i, n)
}

// seen judges whether INFO can be read, and names the process. Without that, the guard withholds every vote.
func (j *judge) seen(i int, n Node) {
	level, problem := Warn, "the node cannot be checked for replicas, doubles and evictions: "
	if j.settings.Guard > 0 {
		level, problem = Fail, "INFO cannot be read, so a restart is not seen, and with the restart guard it grants no locks: "
	}
	switch {
	case n.Unchecked != "":
		fix := "give the user +info"
		if code, _, otherwise := causeOf(n.Unchecked); code == CodeNoCommand {
			fix = otherwise
		}
		j.add(level, i, CodeUnchecked, problem+n.Unchecked, fix)
	case level == Fail && !n.guardable():
		j.add(Fail, i, CodeNoRunID, fmt.Sprintf("INFO names no run_id (%q), so a restart is not seen, and with the restart guard it grants no locks", n.RunID),
			"use a server or a service that shows one")
	}
}

// guardable reports whether the restart guard can see a restart of the node: its run id must be one word of the marker.
func (n Node) guardable() bool { return n.Unchecked == "" && len(strings.Fields(n.RunID)) == 1 }

// slot reports whether a node is checked as the server of one slot: all keys then begin with the hash tag of the prefix.
func (j *judge) slot(n Node) bool {
	tag := wire.HashTag(j.settings.Prefix)
	return n.Mode == "cluster" && tag != "" && strings.HasPrefix(j.settings.Prefix, tag)
}

// dispensable are the rights that no lock needs to work.
var dispensable = []struct {
	rule         string
	level        Level
	problem, fix string
}{
	{"+ping", Warn, "the user may not send PING: every refusal fills the server's ACL LOG", "give the user +ping"},
	{"+dbsize", Note, "the user lacks a right that only WithTrustEmptyNodes needs", "give the user +dbsize before that option is used"},
	{"+pubsub|numsub", Note, "the user may not send PUBSUB NUMSUB: counts of waiters include killed processes until their turns come", "give the user +pubsub|numsub"},
	{"+pubsub|shardnumsub", Note, "the user may not send PUBSUB SHARDNUMSUB: counts of waiters include killed processes until their turns come", "give the user +pubsub|shardnumsub"},
}

// rights judges what the user may do. A lock works without some rights until it is contended or the node restarts, and
// that is too late to find out.
func (j *judge) rights(i int, n Node) {
	missing := slices.Clone(n.Missing)
	if n.Unchecked != "" {
		missing = slices.DeleteFunc(missing, func(rule string) bool { return rule == "+info" }) // has its own finding
	}
	for _, f := range dispensable {
		if at := slices.Index(missing, f.rule); at >= 0 {
			missing = slices.Delete(missing, at, at+1)
			j.add(f.level, i, CodeMissingRights, f.problem, f.fix)
		}
	}
	if len(missing) > 0 && n.Mode != "sentinel" {
		j.add(Fail, i, CodeMissingRights, "the user lacks rights that locks need: "+strings.Join(missing, " "),
			"give the user "+strings.Join(missing, " ")+", see https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights")
	}
}

// data judges whether the node keeps its locks.
func (j *judge) data(i int, n Node) {
	if n.Unchecked != "" || n.Mode == "sentinel" {
		return
	}
	if n.MaxMemory && n.Eviction != "noeviction" {
		level, problem := Warn, "the node may evict locks to make room"
		if j.settings.Guard > 0 {
			level, problem = Fail, "the node may evict locks unseen, so with the restart guard it grants no locks"
		}
		j.add(level, i, CodeEviction, problem+" (maxmemory-policy "+n.Eviction+")", "set maxmemory-policy noeviction")
	}
	if n.WriteFailed {
		j.add(Warn, i, CodeWriteFailed, "the last write to the append-only file failed", "fix the disk of the node")
	}
	if j.settings.Guard > 0 {
		return // it waits after every restart, whatever is on disk
	}
	const guard = "give all clients the restart guard, or set "
	switch {
	case !n.AOF:
		j.add(Warn, i, CodePersistence, "a restart of the node forgets locks that are held: there is no append-only file and no restart guard",
			guard+"appendonly yes, appendfsync always, aof-load-truncated no")
	case n.Fsync == "":
		j.add(Note, i, CodeWeakLog, "this user may not read how the append-only file is written",
			"make sure of appendfsync always and aof-load-truncated no, or give all clients the restart guard")
	case n.Fsync != "always" || n.LoadTruncated:
		j.add(Warn, i, CodeWeakLog, "a power failure of the node can forget the newest locks, and there is no restart guard: appendfsync is "+
			n.Fsync+", aof-load-truncated is "+yes(n.LoadTruncated), guard+"appendfsync always and aof-load-truncated no")
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// replicas judges the replicas of a node: replication is asynchronous, so a promoted replica lacks the newest locks.
func (j *judge) replicas(i int, n Node) {
	if n.Replicas > 0 && j.settings.Guard == 0 {
		j.add(Warn, i, CodeReplicas, fmt.Sprintf("the node has %s: one that is promoted lacks the newest locks, and there is no restart guard",
			counted(n.Replicas, "replica")), "make sure that nothing promotes a replica, or give all clients the restart guard")
	}
	if n.MinReplicas == "" {
		return
	}
	level := Note
	if n.GoodNow == 0 || n.MinReplicas != "set" && n.GoodNow < number(n.MinReplicas) {
		level = Warn
	}
	if slices.ContainsFunc(n.Refused, func(r Refusal) bool { return strings.HasPrefix(r.Text, noReplicas) }) {
		level = Fail
	}
	needs := "some"
	if n.MinReplicas != "set" {
		needs = n.MinReplicas
	}
	j.add(level, i, CodeMinReplicas, fmt.Sprintf("the node refuses locks while fewer replicas than min-replicas-to-write follow it: it needs %s and has %d",
		needs, n.GoodNow), "bring the replicas back. For a node that is one master, set min-replicas-to-write 0: it only costs locks there. For a service behind one address it bounds how long an old master continues, see https://github.com/quorumlock/quorumlock/blob/main/docs/managed.md")
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// guard compares the marker of the restart guard with the given setting.
func (j *judge) guard(i int, n Node) {
	switch given := j.settings.Guard; {
	case given == 0 && n.Marker == 0:
	case given > 0 && !n.guardable() && (n.Marker == 0 || n.Marker == given || n.Binds <= 0): // has its own finding, and no quarantine begins
	case n.Marker == 0, given == n.Marker && !n.marked():
		j.add(Note, i, CodeQuarantine, fmt.Sprintf("the node is new, or was restarted or promoted: from the first client with the restart guard on, it grants no locks for %v", given),
			"start the clients and wait. Only if no client has ever used these nodes, WithTrustEmptyNodes skips it")
	case given == n.Marker && n.Quarantine > 0:
		j.add(Warn, i, CodeQuarantine, fmt.Sprintf("the node is in quarantine and grants no locks for another %v: it is new, may have lost locks, or its clock stepped",
			n.Quarantine.Round(100*time.Millisecond)), "wait")
	case given == n.Marker:
	case given == 0 && n.Binds <= 0:
		j.add(Note, i, CodeGuardUnused, fmt.Sprintf("clients have used a restart guard of %v here; it is not in force now", n.Marker),
			fmt.Sprintf("give --restart-guard %v to check for it", n.Marker))
	case given == 0:
		life := (n.Marker + looks) * 101 / 100
		j.add(Fail, i, CodeGuardUnused, fmt.Sprintf("clients use a restart guard of %v here, so the node grants no locks to clients without it. "+
			"The last of them connected about %v ago; if none connects again, the guard ends in %v", n.Marker, max(life-n.Binds, 0).Round(time.Second), n.Binds.Round(time.Second)),
			fmt.Sprintf("give --restart-guard %v, and WithRestartGuard to every client; or stop all clients that have it and wait, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#turn-the-restart-guard-off", n.Marker))
	case n.Binds <= 0:
		j.add(Note, i, CodeQuarantine, fmt.Sprintf("the clients of this node have used a restart guard of %v: from the first client with %v on, it grants no locks for that time",
			n.Marker, given), "start the clients and wait")
	default:
		j.add(Fail, i, CodeGuardDiffers, fmt.Sprintf("the other clients of this node use a restart guard of %v, and this one %v, so the node grants it no locks", n.Marker, given),
			fmt.Sprintf("give --restart-guard %v; to change it for all clients, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#change-maxttl", n.Marker))
	}
}

// marked reports whether the guard's marker names this process. The marker of a failover group is RUNID.REPLID.EPOCH,
// because a server that is promoted again lacks writes, and "moved." stands before it while the slot moves.
func (n Node) marked() bool {
	return n.Process == n.RunID || strings.HasPrefix(n.Process, n.RunID+"."+n.ReplID+".")
}

// registers judges the fencing registers. The values that a wrong clock has written stay when the clock is right again:
// no token is wrong, and each grant costs one more round trip.
func (j *judge) registers(i int, n Node) {
	days := func(d time.Duration) string { return counted(int(d/(24*time.Hour)), "day") }
	const cost = "until the clock gets there, names cost one more round trip for each lease and their registers stay in memory"
	const fix = `read https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#registers-that-are-far-ahead before you change anything: a mistake makes tokens go back`
	if n.BaseAhead > farAhead {
		j.add(Warn, i, CodeBaseAhead, "the base of the fencing registers is "+days(n.BaseAhead)+" ahead of the node's clock, which was wrong once: "+cost, fix)
	}
	if n.RegisterAhead > farAhead {
		j.add(Warn, i, CodeRegisterAhead, "a fencing register is "+days(n.RegisterAhead)+" ahead of the node's clock, which was wrong once: "+cost, fix)
	}
}
