package integration

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Invalid values that another program or an attacker may write into the fencing registers: the sorted set of all names,
// and the base that is their lower bound.

// exact is the first number at which Lua and Redis no longer count exactly.
const exact = int64(1) << 53

// register returns the command that sets the register of the job.
func register(score string) []string {
	return []string{"ZADD", registersKey, score, testkit.Prefix + "job"}
}

// base returns the command that sets the base.
func base(value string) []string { return []string{"SET", baseKey, value} }

// spoil replaces the key of a command on servers by running the command.
func spoil(servers []*redistest.Server, command []string) {
	for _, s := range servers {
		s.MustDo("DEL", command[1])
		s.MustDo(command...)
	}
}

func TestAnInvalidRegisterGrantsNothingAndLeavesNoLock(t *testing.T) {
	t.Parallel()
	for claim, command := range map[string][]string{
		"infinite":             register("inf"),
		"2^53":                 register(fmt.Sprint(exact)),
		"the largest token":    register(fmt.Sprint(exact - 1)),
		"1e308":                register("1e308"),
		"a list":               {"RPUSH", registersKey, "item"},
		"a hash":               {"HSET", registersKey, "field", "v"},
		"a text":               {"SET", registersKey, "text"},
		"base: text":           base("text"),
		"base: empty":          base(""),
		"base: inf":            base("inf"),
		"base: nan":            base("nan"),
		"base: 1e308":          base("1e308"),
		"base: beyond int64":   base("99999999999999999999999999"),
		"base: the last token": base(fmt.Sprint(exact - 1)),
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := testkit.Start(t, 3, "--enable-debug-command", "local")
			m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
			spoil(servers, command)
			key := command[1]
			before := dump(servers, key)
			bounded(t, refused(t, m, "job"))
			assert.Equal(t, before, dump(servers, key), "untouched")
			testkit.Eventually(t, "no lock is left", func() bool { return testkit.Locks(t, servers, "job") == 0 })
			assert.Equal(t, before, dump(servers, key), "the release leaves it untouched too")

			// One such node of three neither blocks the grant nor affects the token.
			servers[1].MustDo("DEL", key)
			servers[2].MustDo("DEL", key)
			l := testkit.Acquired(t, m, "job")
			assert.InDelta(t, time.Now().UnixMicro(), l.Token(), 600e6)
			for range 3 {
				testkit.Renewed(t, l)
			}
			testkit.Confirmed(t, l.Verify)
			testkit.Released(t, l)
			next := testkit.Acquired(t, m, "job")
			assert.Greater(t, next.Token(), l.Token())
			assert.Less(t, next.Token(), exact)
			testkit.Released(t, next)
			testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
			assert.Equal(t, before, dump(servers, key), "never touched")
			if _, err := m.Inspect(background, "job"); err != nil {
				assert.ErrorIs(t, err, quorumlock.ErrNoQuorum)
			}
		})
	}
}

func TestAValidRegisterIsCountedFrom(t *testing.T) {
	t.Parallel()
	for claim, c := range map[string]struct {
		command []string
		token   int64 // 0: the token is a current timestamp
	}{
		"negative":           {command: register("-5")},
		"a fraction":         {command: register("1.5")},
		"-inf":               {command: register("-inf")},
		"base: zero":         {command: base("0")},
		"base: negative":     {command: base("-5")},
		"the last but one":   {command: register(fmt.Sprint(exact - 4)), token: exact - 2},
		"far ahead":          {command: register(fmt.Sprint(exact / 2)), token: exact/2 + 2},
		"base: far ahead":    {command: base(fmt.Sprint(exact / 2)), token: exact/2 + 2},
		"base: leading zero": {command: base(fmt.Sprint("00", exact/2)), token: exact/2 + 2},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := testkit.Start(t, 3)
			m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
			spoil(servers, c.command)
			l := testkit.Acquired(t, m, "job")
			if c.token != 0 {
				assert.Equal(t, c.token, l.Token())
			} else {
				assert.InDelta(t, time.Now().UnixMicro(), l.Token(), 600e6)
			}
			testkit.Renewed(t, l)
			testkit.Released(t, l)
			if c.token < exact-2 {
				next := testkit.Acquired(t, m, "job")
				assert.Greater(t, next.Token(), l.Token())
				testkit.Released(t, next)
			}
		})
	}
}

// Registers that become invalid while a lease is held do not affect it.
func TestARegisterThatTurnsInvalidUnderALeaseDoesNotEndIt(t *testing.T) {
	for claim, command := range map[string][]string{
		"inf": register("inf"), "hash": {"HSET", registersKey, "field", "v"}, "text": {"SET", registersKey, "text"},
		"beyond": register(fmt.Sprint(uint64(math.MaxUint64))), "base: text": base("text"), "base: nan": base("nan"),
		"base: 1e308": base("1e308"),
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := testkit.Start(t, 3)
			m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
			l := testkit.Acquired(t, m, "job")
			testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == len(servers) })
			spoil(servers, command)
			for range 3 {
				testkit.Renewed(t, l)
			}
			testkit.Confirmed(t, l.Verify)
			testkit.Released(t, l)
		})
	}
}

// A base was a year ahead while a name was locked, and an operator has lowered it as docs/runbook.md describes. The
// tokens of that name continue to increase, because its register has stayed; a new name has an ordinary token.
func TestTokensGoOnIncreasingWhenABaseThatWasAYearAheadIsLowered(t *testing.T) {
	servers := testkit.Start(t, 3)
	m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
	lower := func(to time.Time) { spoil(servers, base(fmt.Sprint(to.UnixMicro()))) }
	year := time.Now().Add(365 * 24 * time.Hour)
	lower(year)
	token := func(name string) int64 {
		l := testkit.Acquired(t, m, name)
		defer testkit.Released(t, l)
		return l.Token()
	}
	high := token("job")
	assert.Equal(t, year.UnixMicro()|1+1, high, "registers are even")
	lower(time.Now())
	assert.Equal(t, high+2, token("job"))
	assert.Less(t, token("new"), time.Now().Add(time.Minute).UnixMicro())
}
