package node_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// The cost of refusing a permit depends little on the number of permits, and no script of refusals takes long, even if
// the set of the slots is lost. The server's own clock measures it. The machine may be busy, so the shortest of many
// runs counts.
func TestManyPermitsCostLittleMoreThanFew(t *testing.T) {
	const few, many, callers = 4, 1024, 8 // a script has that many operations on 1,024 permits
	least := map[string]int64{}
	for _, limit := range []int{few, many} {
		server := redistest.Start(t, 1)[0]
		server.MustDo("CONFIG", "SET", "slowlog-log-slower-than", "10")
		n, now := greeted(t, server.Addr())
		soon := now() + time.Hour
		permit := func(slot int) *wire.Request {
			return acquisition(wire.SlotKey("p:job", slot), ownerA, soon, func(a *wire.Acquisition) { a.Limit = limit })
		}
		post := func(kind string, requests ...*wire.Request) {
			t.Helper()
			var all sync.WaitGroup
			server.MustDo("SLOWLOG", "RESET")
			all.Add(len(requests))
			require.True(t, n.Post(wire.NewRead("p:busy", clock.Steady(now()+time.Minute)), receiver(func(*wire.Reply) {
				for _, req := range requests {
					assert.True(t, n.Post(req, receiver(func(r *wire.Reply) { assert.NoError(t, r.Err); all.Done() })))
				}
			})))
			all.Wait()
			longest := int64(0)
			for _, line := range server.MustDo("SLOWLOG", "GET", "64").([]any) {
				if entry := line.([]any); entry[3].([]any)[0] == "EVALSHA" {
					longest = max(longest, entry[2].(int64))
				}
			}
			if before, ok := least[fmt.Sprint(kind, limit)]; longest > 0 && (!ok || longest < before) {
				least[fmt.Sprint(kind, limit)] = longest
			}
		}
		for try := range 30 {
			server.MustDo("FLUSHDB")
			members := []string{"ZADD", wire.SlotsKey("p:job")}
			for slot := range limit {
				server.MustDo("SET", wire.SlotKey("p:job", slot), wire.Compose(ownerB, 0, metadata), "PX", "3600000")
				members = append(members, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), fmt.Sprint(slot))
			}
			var asks []*wire.Request
			for i := range callers {
				asks = append(asks, permit((try+i)%limit))
			}
			post("lost ", asks...)
			server.MustDo(members...) // as the holders write it when they renew
			post("refused ", asks...)
			if limit == few {
				for i := range callers {
					asks = append(asks, permit((try+i)%limit))
				}
				post("refused in a full script ", asks...)
			}
		}
	}
	t.Logf("µs of a script: %v", least)
	assert.LessOrEqual(t, least[fmt.Sprint("refused ", many)], 2*least[fmt.Sprint("refused ", few)])
	for kind, us := range least { // 2 ms where a full script of refusals takes 0.17 ms
		assert.LessOrEqual(t, us, 12*least[fmt.Sprint("refused in a full script ", few)], kind)
	}
}

// The first permit of a name makes the set of its slots, and a script stops the server for all clients while it runs.
func TestAScriptMakesTheSlotsOfFewNames(t *testing.T) {
	tr := newTraffic(t)
	for _, c := range []struct {
		claim        string
		names, limit int
		want         []int
	}{
		{"the largest sets", 16, 1024, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"sets that are small", 16, 10, []int{16}},
		{"one set for all", 1, 1024, []int{8, 8}},
	} {
		soon := tr.now() + time.Minute
		answered := make(chan wire.Reply, 16)
		tr.whileBusy(func() {
			for i := range cap(answered) {
				tr.post(acquisition(wire.SlotKey(fmt.Sprint("p:", c.limit, i%c.names), i), ownerA, soon, func(a *wire.Acquisition) { a.Limit = c.limit }),
					receiver(func(r *wire.Reply) { answered <- *r }))
			}
		})
		for range cap(answered) {
			r := <-answered
			assert.Equal(t, wire.Granted, r.Status, "%v", r.Err)
		}
		_, operations := tr.calls()
		assert.Equal(t, c.want, operations, c.claim)
	}
}
