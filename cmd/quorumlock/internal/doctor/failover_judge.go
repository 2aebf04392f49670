package doctor

import (
	"fmt"
	"time"
)

// Row is the kind of node that an endpoint is, by its behaviour in a failover. The names are stable.
type Row string

// The rows, from the best.
const (
	RowFenced   Row = "fenced"    // a master that is cut off from its replicas stops taking writes
	RowCrash    Row = "crash"     // it failed over as after a crash, and nothing bounds a split
	RowLossy    Row = "lossy"     // acknowledged writes were lost, and nothing bounds a split
	RowSplit    Row = "split"     // the old master and the new one took writes at the same time
	RowUnseen   Row = "unseen"    // run_id does not show the failover
	RowNotBack  Row = "not_back"  // no write was accepted after the failover
	RowNotSeen  Row = "not_seen"  // there was no failover
	RowNotTried Row = "not_tried" // the endpoint does not answer, or takes no writes
)

const (
	// fenceDelay is the time that min-replicas needs in addition to min-replicas-max-lag: 2 s, because Redis counts the
	// lag in whole seconds and checks it once a second, and 2 s for the commands that a frozen master may run before it
	// checks. It does not bound a master that is stopped again and again, see docs/managed.md.
	fenceDelay = 4 * time.Second
	// defaultLag is Redis's own min-replicas-max-lag.
	defaultLag = 10 * time.Second
	// unfencedWindow is the measured window of a master that stood still, without min-replicas and without a split.
	unfencedWindow = 10 * time.Second
)

// FailoverReport is the verdict on an endpoint at which a failover was forced.
type FailoverReport struct {
	Course
	Row      Row
	Meaning  string        // the row in plain words
	Advice   string        // what to set or to do, empty where the findings are enough
	Advised  time.Duration // window for WithFailover, 0 where none makes this endpoint safe alone
	Findings []Finding     // the worst first
}

// Worst returns the worst level of the findings, Note when nothing needs fixing.
func (r FailoverReport) Worst() Level { return worst(r.Findings) }

// JudgeFailover judges the effect of this endpoint's failover on a lock. It depends only on the observations.
func JudgeFailover(f Failover) FailoverReport {
	n := f.Before
	j := &judge{nodes: []Node{n}, settings: Settings{Guard: time.Second}} // a failover needs the guard, of any time
	r := FailoverReport{Course: f.Course()}
	if n.Fault != nil {
		j.add(n.Fault.Level, 0, n.Fault.Code, n.Fault.Problem, n.Fault.Fix)
	} else {
		j.kind(0, n)
		j.rights(0, n)
		j.data(0, n)
	}
	switch {
	case n.Fault != nil:
		r.Row, r.Meaning = RowNotTried, "the endpoint could not be asked"
	case f.NotWritable != "":
		r.Row, r.Meaning = RowNotTried, "nothing could be written"
		j.add(Fail, 0, CodeNotWritable, "the first write failed, so nothing was tried: "+f.NotWritable,
			"list an endpoint that leads to the master, and give the user the rights in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights")
	default:
		fenced := j.fence(n)
		r.row(n, fenced)
		j.course(f, r, fenced)
	}
	r.Findings = j.sorted()
	return r
}

const (
	threeNodes = "list three nodes, of which any may be such a service"
	notAlone   = "do not use this service as the only node: " + threeNodes
	sameOnAll  = ", the same on all clients: "
)

// fence judges whether a master that is cut off from its replicas stops taking the writes of scripts.
func (j *judge) fence(n Node) (fenced bool) {
	if n.Unchecked != "" {
		return false // this has its own finding
	}
	most := max(1, majority(n.Replicas))
	if !n.Fenced {
		second := ""
		if n.Replicas < 2 { // the new master would have none, and take no writes
			second = "add a second replica and "
		}
		j.add(Warn, 0, CodeNeverFenced,
			"writes are never fenced: INFO shows no min_slaves_good_slaves, so a master that is cut off from its replicas continues to acknowledge writes",
			fmt.Sprintf("%sset min-replicas-to-write %d and min-replicas-max-lag 1 on all servers of the service, or %s", second, most, threeNodes))
		return false
	}
	fenced = true
	if least := number(n.MinReplicas); n.MinReplicas != "set" && least < most {
		fenced = false
		j.add(Warn, 0, CodeFewReplicas, fmt.Sprintf("min-replicas-to-write %d is too few for %s: a master that is cut off together with %d of them continues to acknowledge writes",
			least, counted(n.Replicas, "replica"), least), fmt.Sprintf("set min-replicas-to-write %d on all servers of the service", most))
	}
	if n.Replicas == 1 {
		j.add(Warn, 0, CodeOneReplica, "after a failover the new master has no replica, so it takes no writes until one follows it", "add a second replica")
	}
	return fenced
}

// majority returns the smallest min-replicas-to-write with which no two servers of a master and k replicas can both
// take writes.
func majority(k int) int { return (k + 1) / 2 }

// fenceWindow is how long an old master can continue under min-replicas.
func fenceWindow(n Node) time.Duration {
	if n.MaxLag > 0 {
		return n.MaxLag + fenceDelay
	}
	return defaultLag + fenceDelay
}

// row sets the row, its plain words, and the settings to change.
func (r *FailoverReport) row(n Node, fenced bool) {
	switch {
	case !r.Seen:
		r.Row, r.Meaning = RowNotSeen, "no failover was seen"
	case !r.Accepted:
		r.Row, r.Meaning = RowNotBack, "a failover after which no write was accepted"
	case !r.RunIDChanged, r.Old == OldMoved:
		r.Row, r.Meaning = RowUnseen, "the restart guard cannot see a failover of this service"
		r.Advice = notAlone
	case r.Window > 0 && !fenced:
		r.Row, r.Meaning = RowSplit, "two masters at the same time, and nothing bounds for how long"
		r.Advice = notAlone
	case r.Window > fenceWindow(n):
		r.Row, r.Meaning = RowSplit, "two masters at the same time, for longer than min-replicas allows"
		r.Advice = notAlone
	case fenced:
		r.Row, r.Meaning = RowFenced, "a failover group with min-replicas: an old master stops taking writes by itself"
		r.Advised = fenceWindow(n)
		r.Advice = guardFor(r.Advised) + sameOnAll + fmt.Sprintf("the window is min-replicas-max-lag (%v) and %v", n.MaxLag, fenceDelay)
		if n.MaxLag == 0 {
			r.Advice = guardFor(r.Advised) + sameOnAll + fmt.Sprintf("the window is min-replicas-max-lag and %v; this user may not read that setting, so it counts as %v, Redis's default",
				fenceDelay, defaultLag)
		}
		if n.MinReplicas == "set" {
			r.Advice += fmt.Sprintf("; make sure that min-replicas-to-write is %d at least", max(1, majority(n.Replicas)))
		}
	case r.Lost > 0:
		r.Row, r.Meaning = RowLossy, "writes were lost after they were acknowledged: one such node alone is not safe without min-replicas"
		r.Advice = notAlone
	default:
		r.Row, r.Meaning = RowCrash, "a crash-like failover, no acknowledged write lost"
		r.Advised = unfencedWindow
		r.Advice = guardFor(r.Advised) + sameOnAll + "the window is what was measured for a master that stands still for a while. " +
			"This failover was not a split, and nothing bounds one: set min-replicas as above, or " + threeNodes
	}
}

func guardFor(window time.Duration) string {
	return fmt.Sprintf("WithRestartGuard(TTL + lock delay + %v) with WithFailover(%[1]v)", window)
}

// course judges the course of the failover.
func (j *judge) course(f Failover, r FailoverReport, fenced bool) {
	refused := r.Refused.Round(time.Millisecond)
	switch {
	case !r.Seen:
		problem := fmt.Sprintf("no failover was seen in %v", f.Lasted.Round(time.Millisecond))
		if refused > 0 {
			problem += fmt.Sprintf("; writes were refused for %v, and run_id and master_replid are the same as before: if that was the failover, the restart guard cannot see it", refused)
		}
		j.add(Warn, 0, CodeNoFailover, problem, "run this again, and force a failover in the service's console while it runs")
		return
	case !r.Accepted:
		j.add(Fail, 0, CodeNotAccepted, fmt.Sprintf("the last %v of the probe saw no write accepted", refused),
			"look at the service, and run this again with a longer --for")
	case !r.RunIDChanged && f.Before.RunID != "":
		j.add(Fail, 0, CodeRunIDKept, "run_id does not change on a failover: the restart guard cannot see it", notAlone)
	case r.Old == OldMoved:
		j.add(Fail, 0, CodeMoved, "the old connection now leads to the new master: a client reads run_id only when it connects and every 10 s, and until it does, the new master grants locks without a quarantine", notAlone)
	}
	if r.Window > 0 {
		level, fix := Note, "give a window that is longer than that"
		if r.Row == RowSplit {
			level, fix = Fail, notAlone
		}
		j.add(level, 0, CodeTwoMasters, fmt.Sprintf("the old master acknowledged writes until %v after the new one had answered; the failover window is longer than that",
			r.Window.Round(time.Millisecond)), fix)
	}
	if r.Lost > 0 {
		level, problem, fix := Fail, fmt.Sprintf("the failover lost %d of %s", r.Lost, counted(r.Acknowledged, "acknowledged write")), notAlone
		if fenced && r.Row == RowFenced {
			level, problem, fix = Note, problem+"; the restart guard covers locks that are lost this way", "give all clients the guard below"
		}
		j.add(level, 0, CodeWritesLost, problem, fix)
	}
}
