//go:build unix

package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	serverA  = Server{RunID: "a", ReplID: "1", Role: "master"}
	serverB  = Server{RunID: "b", ReplID: "2", Role: "master"}
	replicaA = Server{RunID: "a", ReplID: "2", Role: "slave"}
)

// script makes observations, one sample every 50 ms by default.
type script struct {
	Failover
	at     time.Duration
	number int
	last   map[int]int // by connection
}

// plainEndpoint is a sound endpoint with two replicas, of which one must follow.
func plainEndpoint() Node {
	return Node{Addr: "a:1", RunID: "a", ReplID: "1", Role: "master", Mode: "standalone", Version: "7.0.15",
		Replicas: 2, MinReplicas: "1", GoodNow: 2, Fenced: true, MaxLag: time.Second}
}

func observed() *script {
	return &script{Failover: Failover{Before: plainEndpoint(), Settle: 5 * time.Second}, last: map[int]int{}}
}

func (s *script) add(sample Sample) *script {
	sample.Sent, sample.Ended = s.at, s.at+time.Millisecond
	s.at += 50 * time.Millisecond
	s.Samples = append(s.Samples, sample)
	s.Lasted = s.at
	return s
}

// writes adds writes acknowledged by a server that knows all that it acknowledged over the same connection.
func (s *script) writes(n, conn int, server Server) *script {
	for range n {
		s.number++
		sample := Sample{Conn: conn, Number: s.number, Write: WriteAccepted, Server: server}
		if s.last[conn] == 0 {
			sample.Before = []int{}
		}
		s.last[conn] = s.number
		s.add(sample)
	}
	return s
}

// knows adds a write acknowledged by a server that knew these numbers before.
func (s *script) knows(conn int, server Server, before ...int) *script {
	s.number++
	s.last[conn] = s.number
	return s.add(Sample{Conn: conn, Number: s.number, Write: WriteAccepted, Server: server, Before: append([]int{}, before...)})
}

// held moves the last sample to a connection that the writer had left.
func (s *script) held() *script {
	s.Samples[len(s.Samples)-1].Held = true
	return s
}

func (s *script) fails(conn int, server Server, write Write, refusal string) *script {
	s.number++
	return s.add(Sample{Conn: conn, Number: s.number, Write: write, Refusal: refusal, Server: server})
}

func (s *script) looks(conn int, server Server) *script {
	return s.add(Sample{Conn: conn, Server: server})
}

func upTo(n int) (newest []int) {
	for ; n > 0 && len(newest) < historyLen; n-- {
		newest = append(newest, n)
	}
	return newest
}

func TestTheCourseOfAFailoverFollowsFromTheSamples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim string
		seen  *script
		want  Course
	}{
		{"nothing is seen of a service that works", observed().writes(100, 1, serverA).looks(2, serverA), Course{Accepted: true, Acknowledged: 100}},
		{"a crash ends the connection",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").fails(0, Server{}, WriteBroken, "").knows(2, serverB, upTo(10)...).writes(5, 2, serverB),
			Course{Seen: true, After: 601 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 101 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"connection ended": 2}, Acknowledged: 16, Old: OldEnded}},
		{"a server that hangs is given up",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteSilent, "").knows(2, serverB, upTo(10)...),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"no answer": 1}, Acknowledged: 11, Old: OldSilent}},
		{"a demotion leaves the connection",
			observed().writes(10, 1, serverA).fails(1, replicaA, WriteRefused, "READONLY").knows(2, serverB, upTo(10)...).
				fails(1, replicaA, WriteRefused, "READONLY").held(),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"READONLY": 1}, Acknowledged: 11, Old: OldReadOnly}},
		{"a demoted server that ends later has left the connection first",
			observed().writes(10, 1, serverA).fails(1, replicaA, WriteRefused, "READONLY").knows(2, serverB, upTo(10)...).
				fails(1, Server{}, WriteBroken, "").held(),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"READONLY": 1}, Acknowledged: 11, Old: OldReadOnly}},
		{"another refusal is named",
			observed().writes(10, 1, serverA).fails(1, serverA, WriteRefused, "NOREPLICAS").knows(2, serverB, upTo(10)...),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"NOREPLICAS": 1}, Acknowledged: 11, Old: OldRefuses, OldRefusal: "NOREPLICAS"}},
		{"a connection can lead to the new master by itself",
			observed().writes(10, 1, serverA).knows(1, serverB, upTo(10)...).writes(5, 1, serverB),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Accepted: true, Acknowledged: 16, Old: OldMoved}},
		{"writes that the new master does not know are lost",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(7)...).writes(5, 2, serverB),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"connection ended": 1}, Acknowledged: 16, Lost: 3, Old: OldEnded}},
		{"a write without an answer does not hide those that were lost before it",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteSilent, "").knows(2, serverB, append([]int{11}, upTo(7)...)...),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"no answer": 1}, Acknowledged: 11, Lost: 3, Old: OldSilent}},
		{"numbers that are too old to be listed are not lost",
			observed().writes(500, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(490)...),
			Course{Seen: true, After: 25051 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"connection ended": 1}, Acknowledged: 501, Lost: 10, Old: OldEnded}},
		{"a server that knows nothing has lost all",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"connection ended": 1}, Acknowledged: 11, Lost: 10, Old: OldEnded}},
		{"two connections to one server lose nothing of each other",
			observed().writes(3, 1, serverA).knows(2, serverA, 3, 2, 1).knows(1, serverA, 4, 3, 2, 1).held().knows(2, serverA, 5, 4, 3, 2, 1).looks(3, serverA),
			Course{Accepted: true, Acknowledged: 6}},
		{"an old master that goes on is one of two, and what it takes is lost",
			observed().writes(10, 1, serverA).looks(2, serverB).knows(2, serverB, upTo(10)...).
				writes(1, 1, serverA).held().writes(1, 2, serverB).writes(1, 1, serverA).held().writes(2, 2, serverB).fails(1, replicaA, WriteRefused, "READONLY").held(),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Accepted: true, Acknowledged: 16, Lost: 2,
				Old: OldReadOnly, Window: 199 * time.Millisecond, TwoMasters: true}},
		{"an old master that does not stop still accepts writes in the end",
			observed().writes(10, 1, serverA).looks(2, serverB).writes(1, 1, serverA).knows(2, serverB, upTo(10)...).writes(1, 1, serverA).held().writes(1, 2, serverB),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Accepted: true, Acknowledged: 14, Lost: 2,
				Old: OldAccepts, Window: 149 * time.Millisecond, TwoMasters: true}},
		{"a master that is promoted again after the new one has died is no second master",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(10)...).fails(2, Server{}, WriteBroken, "").
				knows(3, serverA, upTo(10)...).writes(3, 3, serverA),
			Course{Seen: true, After: 551 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 151 * time.Millisecond, Accepted: true,
				Failures: map[string]int{"connection ended": 2}, Acknowledged: 15, Lost: 1, Old: OldEnded}},
		{"an endpoint that stays at the old server is not back",
			observed().writes(10, 1, serverA).fails(1, replicaA, WriteRefused, "READONLY").fails(2, replicaA, WriteRefused, "READONLY"),
			Course{Seen: true, After: 501 * time.Millisecond, Refused: 100 * time.Millisecond, Failures: map[string]int{"READONLY": 2}, Acknowledged: 10, Old: OldReadOnly}},
		{"a run_id that stays is no failover without another sign",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverA, upTo(10)...),
			Course{Accepted: true, Refused: 51 * time.Millisecond, Failures: map[string]int{"connection ended": 1}, Acknowledged: 11}},
		{"a replica behind a new connection is no failover while the master takes writes",
			observed().writes(10, 1, serverA).looks(2, Server{RunID: "r", ReplID: "1", Role: "slave"}).writes(1, 1, serverA), Course{Accepted: true, Acknowledged: 11}},
		{"a replica that takes writes is one",
			observed().writes(10, 1, serverA).writes(1, 1, replicaA).knows(2, serverB, upTo(11)...),
			Course{Seen: true, After: 501 * time.Millisecond, RunIDChanged: true, ReplIDChanged: true, Refused: 51 * time.Millisecond, Accepted: true,
				Acknowledged: 12, Old: OldAccepts}},
		{"a loss is a sign",
			observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverA, upTo(9)...),
			Course{Seen: true, After: 550 * time.Millisecond, Accepted: true, Refused: 51 * time.Millisecond, Failures: map[string]int{"connection ended": 1},
				Acknowledged: 11, Lost: 1, Old: OldEnded}},
		{"a server without ids shows a failover by its refusal",
			observed().writes(10, 1, Server{}).fails(1, Server{}, WriteRefused, "READONLY").knows(2, Server{}, upTo(10)...),
			Course{Seen: true, After: 501 * time.Millisecond, Accepted: true, Refused: 51 * time.Millisecond, Failures: map[string]int{"READONLY": 1},
				Acknowledged: 11, Old: OldReadOnly}},
		{"no sample is no failover", observed(), Course{}},
	} {
		if c.want.Failures == nil {
			c.want.Failures = map[string]int{}
		}
		assert.Equal(t, c.want, c.seen.Course(), c.claim)
	}
}

func TestAnOutageLongBeforeTheFailoverIsNotPartOfIt(t *testing.T) {
	t.Parallel()
	s := observed().writes(10, 1, serverA).fails(1, Server{}, WriteSilent, "").fails(0, Server{}, WriteSilent, "").knows(2, serverA, upTo(10)...).writes(400, 2, serverA)
	s.fails(2, Server{}, WriteBroken, "").knows(3, serverB, upTo(s.number)...).writes(400, 3, serverB).fails(3, serverB, WriteSilent, "").knows(4, serverB, upTo(s.number)...)
	c := s.Course()
	assert.Equal(t, 51*time.Millisecond, c.Refused)
	assert.Equal(t, map[string]int{"connection ended": 1}, c.Failures)
	assert.Zero(t, c.Lost)
	assert.Equal(t, OldEnded, c.Old)
}

func TestAFailoverIsOverWhenNothingHasChangedForAWhile(t *testing.T) {
	t.Parallel()
	failed := func() *script {
		return observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(10)...)
	}
	for _, c := range []struct {
		claim string
		seen  *script
		want  bool
	}{
		{"no failover", observed().writes(400, 1, serverA), false},
		{"just now", failed().writes(50, 2, serverB), false},
		{"long ago", failed().writes(200, 2, serverB), true},
		{"writes that fail", failed().writes(200, 2, serverB).fails(2, serverB, WriteRefused, "NOREPLICAS"), false},
		{"writes that have failed", failed().writes(200, 2, serverB).fails(2, serverB, WriteRefused, "NOREPLICAS").writes(110, 3, serverB), true},
		{"a third server", failed().writes(200, 2, serverB).looks(3, serverA), false},
		{"an old master that refuses", failed().writes(200, 2, serverB).fails(1, replicaA, WriteRefused, "READONLY").held(), true},
		{"an old master that goes on", failed().writes(200, 2, serverB).writes(1, 1, serverA).held(), false},
		{"only new connections", failed().looks(3, serverB), false},
	} {
		assert.Equal(t, c.want, c.seen.Settled(), c.claim)
	}
}

func TestEveryKindOfFailoverHasItsRowAndItsFindings(t *testing.T) {
	t.Parallel()
	crash := func() *script {
		return observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(10)...).writes(5, 2, serverB)
	}
	lossy := func() *script {
		return observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverB, upTo(8)...)
	}
	split := func(n int) *script {
		s := observed().writes(10, 1, serverA).looks(2, serverB).knows(2, serverB, upTo(10)...)
		for range n {
			s.writes(1, 1, serverA).held().writes(1, 2, serverB)
		}
		return s
	}
	with := func(s *script, change func(*Failover)) Failover {
		change(&s.Failover)
		return s.Failover
	}
	unfenced := func(f *Failover) { f.Before.Fenced, f.Before.MinReplicas, f.Before.MaxLag = false, "", 0 }
	for _, c := range []struct {
		claim   string
		seen    Failover
		row     Row
		advised time.Duration
		want    []string
		set     string
	}{
		{"a fenced group needs nothing", crash().Failover, RowFenced, 5 * time.Second, nil, "WithRestartGuard(TTL + lock delay + 5s) with WithFailover(5s)"},
		{"a lag that nobody may read is Redis's default", with(crash(), func(f *Failover) { f.Before.MaxLag, f.Before.MinReplicas = 0, "set" }),
			RowFenced, 14 * time.Second, nil, "min-replicas-to-write is 1 at least"},
		{"a fenced group may lose what the guard covers", lossy().Failover, RowFenced, 5 * time.Second, nil, "WithFailover(5s)"},
		{"a fenced group may have two masters for the window", split(10).Failover, RowFenced, 5 * time.Second, nil, "WithFailover(5s)"},
		{"but for no longer", split(100).Failover, RowSplit, 0, []string{"fail two_masters 0", "fail writes_lost 0"}, "three nodes"},
		{"a crash without min-replicas", with(crash(), unfenced), RowCrash, 10 * time.Second, []string{"warn never_fenced 0"}, "WithFailover(10s)"},
		{"a loss without min-replicas", with(lossy(), unfenced), RowLossy, 0, []string{"fail writes_lost 0", "warn never_fenced 0"}, "three nodes"},
		{"a split without min-replicas", with(split(2), unfenced), RowSplit, 0, []string{"fail two_masters 0", "fail writes_lost 0", "warn never_fenced 0"}, "three nodes"},
		{"min-replicas that is no majority", with(crash(), func(f *Failover) { f.Before.Replicas = 3 }), RowCrash, 10 * time.Second, []string{"warn fence_without_majority 0"}, ""},
		{"Valkey has no such scripts", with(crash(), func(f *Failover) { f.Before.Version = "valkey 8.1.0" }), RowFenced, 5 * time.Second, nil, ""},
		{"one replica", with(crash(), func(f *Failover) { f.Before.Replicas = 1 }), RowFenced, 5 * time.Second, []string{"warn one_replica 0"}, ""},
		{"a run_id that stays", with(observed().writes(10, 1, serverA).fails(1, replicaA, WriteRefused, "READONLY").knows(2, serverA, upTo(10)...), func(*Failover) {}),
			RowUnseen, 0, []string{"fail run_id_kept 0"}, "do not use this service as the only node"},
		{"no run_id", with(observed().writes(10, 1, Server{}).fails(1, Server{}, WriteRefused, "READONLY").knows(2, Server{}, upTo(10)...), func(f *Failover) { f.Before.RunID = "" }),
			RowUnseen, 0, []string{"fail no_run_id 0"}, "do not use this service as the only node"},
		{"no failover", with(observed().writes(10, 1, serverA), func(*Failover) {}), RowNotSeen, 0, []string{"warn no_failover 0"}, ""},
		{"never back", observed().writes(10, 1, serverA).fails(1, replicaA, WriteRefused, "READONLY").Failover, RowNotBack, 0, []string{"fail not_accepted_again 0"}, ""},
		{"a connection that leads to the new master", observed().writes(10, 1, serverA).knows(1, serverB, upTo(10)...).Failover,
			RowUnseen, 0, []string{"fail connection_moved 0"}, "do not use this service as the only node"},
		{"evictions", with(crash(), func(f *Failover) { f.Before.MaxMemory, f.Before.Eviction = true, "volatile-lru" }), RowFenced, 5 * time.Second, []string{"fail eviction 0"}, ""},
		{"an endpoint that refuses writes", Failover{Before: plainEndpoint(), NotWritable: "NOREPLICAS"}, RowNotTried, 0, []string{"fail not_writable 0"}, ""},
		{"an endpoint that does not answer", Failover{Before: Node{Addr: "a:1", Fault: &Finding{Level: Fail, Code: CodeUnreachable, Problem: "p", Fix: "f"}}},
			RowNotTried, 0, []string{"fail unreachable 0"}, ""},
	} {
		r := JudgeFailover(c.seen)
		assert.Equal(t, c.row, r.Row, c.claim)
		assert.Equal(t, c.advised, r.Advised, c.claim)
		assert.ElementsMatch(t, c.want, found(Report{Findings: r.Findings}), "%s: %+v", c.claim, r.Findings)
		assert.Contains(t, r.Advice, c.set, c.claim)
		assert.NotEmpty(t, r.Meaning, c.claim)
		for _, f := range r.Findings {
			assert.NotEmpty(t, f.Problem, c.claim)
			assert.NotEmpty(t, f.Fix, c.claim)
		}
	}
}

func TestAnInterruptionWithTheSameIdsIsReportedAsWhatItMayBe(t *testing.T) {
	t.Parallel()
	r := JudgeFailover(observed().writes(10, 1, serverA).fails(1, Server{}, WriteBroken, "").knows(2, serverA, upTo(10)...).Failover)
	require.Equal(t, []string{"warn no_failover 0"}, found(Report{Findings: r.Findings}))
	assert.Contains(t, r.Findings[0].Problem, "writes were refused for 51ms")
}

func TestOneReplicaIsTooFewForTheFenceThatIsAdvised(t *testing.T) {
	t.Parallel()
	for replicas, second := range []bool{true, true, false, false} {
		s := observed().writes(10, 1, serverA)
		s.Before.Replicas, s.Before.Fenced, s.Before.MinReplicas = replicas, false, ""
		r := JudgeFailover(s.Failover)
		require.Equal(t, CodeNeverFenced, r.Findings[0].Code)
		assert.Equal(t, second, strings.Contains(r.Findings[0].Fix, "second replica"), "%d replicas", replicas)
	}
}

func TestNoTwoServersOfAMajorityTakeWrites(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 10; k++ {
		m := majority(k)
		assert.Greater(t, 2*(m+1), k+1, "%d replicas", k)
		assert.LessOrEqual(t, 2*m, k+1, "%d replicas: one less would do", k)
	}
}
