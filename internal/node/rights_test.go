package node_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// scriptCommands returns the commands that the script calls, in lower case.
func scriptCommands() (names []string) {
	for _, call := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(wire.Apply, -1) {
		names = append(names, strings.ToLower(call[1]))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestTheScriptLooksForEveryRightThatItNeeds(t *testing.T) {
	list := regexp.MustCompile(`local ours = '(.*)'`).FindStringSubmatch(wire.Apply)
	require.Len(t, list, 2)
	others := []string{"mget", "time", "scan", "spublish"} // two that end the script, one that no lock needs, and a cluster's form of publish
	assert.Equal(t, scriptCommands(), slices.Sorted(slices.Values(append(others, strings.Fields(list[1])...))))
}

// An operator must know which right is missing.
func TestEveryMissingRightOfTheScriptIsNamed(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	for _, command := range scriptCommands() {
		if command == "spublish" {
			continue // tests/integration has a cluster
		}
		t.Run(command, func(t *testing.T) {
			server.MustDo("FLUSHALL")
			server.MustDo("ACL", "SETUSER", "u", "reset", "on", ">word", "~*", "&*", "+@all", "-"+command)
			errs := live(t, server)
			require.NotEmpty(t, errs)
			for _, err := range errs {
				var config *wire.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Regexp(t, fmt.Sprintf(`\+%s\b`, command), config.Error())
			}
		})
	}
}

// live takes a node of the user u through all operations, and returns the errors.
func live(t *testing.T, server *redistest.Server) (errs []error) {
	subscribed := make(chan struct{}, 16)
	n, now := run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "u", Password: "word"},
		Cap:    time.Second, Guard: time.Hour, Trust: true,
		Manager: subscriberManager, OnSubscribed: func(int) { subscribed <- struct{}{} },
	})
	if err := n.Health().Err; err != nil {
		return []error{err}
	}
	n.Subscribe()
	<-subscribed
	soon := now() + 20*time.Second
	do := func(req *wire.Request) {
		answer := make(answers, 1)
		require.True(t, n.Post(req, answer))
		if r := answer.Next(t); r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	ticket := ticketOf("000000000000000150")
	waits := func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = ticket, "5" }
	do(acquisition("p:job", ownerA, soon))
	server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata))
	do(acquisition("p:job", ownerB, soon, waits))
	do(renewals([]string{"p:job"}, ownerA, 7, "10000", soon))
	do(heals([]string{"p:healed"}, "10000", soon))
	do(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Raise(1<<52, clock.Steady(soon)))
	do(wire.NewRead("p:job", clock.Steady(soon)))
	do(wire.NewScan("p:", wire.LastPage, 10, clock.Steady(soon)))
	server.MustDo("ZADD", wire.QueueKey("p:job"), "5", ticket)
	server.MustDo("SET", wire.HintKey("p:"), "1")
	do(release("p:job", ownerA, soon))
	server.MustDo("DEL", "p:job")
	server.MustDo("ZADD", wire.QueueKey("p:job"), "5", ticket)
	do(release("p:job", ownerA, soon))
	server.MustDo("ZADD", wire.RegistersKey("p:"), "5", "p:old")
	do(node.NewForget(soon))
	return errs
}

// docs/reference.md lists the rights without which leases are lost.
func TestARenewalNeedsTheDocumentedRights(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	sentence := regexp.MustCompile(`A renewal needs (.*?), a shared lease also (.*?), a permit (.*?), and under the guard`).
		FindStringSubmatch(strings.Join(strings.Fields(string(text)), " "))
	require.Len(t, sentence, 4)
	rights := func(texts ...string) (names []string) {
		for _, right := range regexp.MustCompile("`[+](\\w+)`").FindAllStringSubmatch(strings.Join(texts, " "), -1) {
			names = append(names, right[1])
		}
		slices.Sort(names)
		return names
	}
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "u", "reset", "on", ">word", "~*", "&*", "+@all")
	n, now := run(t, node.Config{Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "u", Password: "word"}, Cap: time.Second})
	require.NoError(t, n.Health().Err)
	soon := now() + time.Minute
	answer := make(answers, 1)
	slot := wire.SlotKey("p:permits", 2)
	for claim, c := range map[string]struct {
		entry wire.Entry
		want  []string
		takes func(*wire.Acquisition)
		lost  []string // what may be lost or end before
	}{
		"a lock": {wire.Entry{Lock: "p:lock", Value: wire.Compose(ownerA, 7, metadata)}, rights(sentence[1]), func(*wire.Acquisition) {}, []string{"EXISTS", "p:none"}},
		"a shared lease": {
			wire.Entry{Lock: "p:shared", Value: wire.Compose(ownerA, 0, metadata), Shared: true}, rights(sentence[1], sentence[2]),
			func(a *wire.Acquisition) { a.Shared = true }, []string{"PEXPIRE", "p:shared", "5000"},
		},
		"a permit": {
			wire.Entry{Lock: slot, Value: wire.Compose(ownerA, 7, metadata)}, rights(sentence[1], sentence[3]),
			func(a *wire.Acquisition) { a.Limit = 3 }, []string{"DEL", wire.SlotsKey("p:permits")},
		},
	} {
		require.True(t, n.Post(acquisition(c.entry.Lock, ownerA, soon, c.takes, func(a *wire.Acquisition) { a.Value = c.entry.Value }), answer))
		got := answer.Next(t)
		require.Equal(t, wire.Granted, got.Status, "%s: %v", claim, got.Err)
		var needed []string
		for _, command := range append(scriptCommands(), "evalsha") {
			renewed := true
			for _, lost := range []bool{false, true} {
				if lost {
					server.MustDo(c.lost...)
				}
				server.MustDo("ACL", "SETUSER", "u", "-"+command)
				renewal := wire.NewBatch(wire.Extend, 1, clock.Steady(soon))
				c.entry.Extend(renewal, "10000")
				require.True(t, n.Post(renewal, answer))
				got := answer.Next(t)
				renewed = renewed && len(got.Answers) == 1 && (got.Answers[0] == wire.Ours || got.Answers[0] == wire.OursWithoutToken)
				server.MustDo("ACL", "SETUSER", "u", "+"+command)
			}
			if !renewed {
				needed = append(needed, command)
			}
		}
		slices.Sort(needed)
		assert.Equal(t, c.want, needed, claim)
	}
}
