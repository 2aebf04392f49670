package master

import (
	"errors"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// The Sentinel that leads a failover raises its config-epoch at the promotion, and shows the old address in SENTINEL
// MASTER until the replicas follow. The others show the new address by then.
func TestTheSentinelThatLeadsAFailoverNamesTheNewMaster(t *testing.T) {
	const unknown, noRight = "*-1\r\n", "-NOPERM this user has no permissions to run the 'sentinel|get-master-addr-by-name' command\r\n"
	known := func(a voter, id string) voter {
		a.id, a.others = bulkText(id), sentinelsWith("id0", "id1", "id2")
		return a
	}
	leads := known(voter{master: says("old", 7), addr: gives("new")}, "id0")
	follows := known(voter{master: says("new", 7)}, "id1")
	forbidden := known(voter{master: says("new", 7), addr: noRight}, "id2")
	for claim, c := range map[string]struct {
		voters []voter
		term   Term
		text   string // of the error
		config bool   // an operator must fix it
		fault  string // that shows next to a majority
	}{
		"one is down":                    {voters: []voter{leads, follows, {}}, term: Term{"new:6379", 7}},
		"another one is behind":          {voters: []voter{leads, follows, known(voter{master: says("old", 6)}, "id2")}, term: Term{"new:6379", 7}},
		"before the promotion":           {voters: []voter{known(voter{master: says("old", 6)}, "id0"), known(voter{master: says("old", 6)}, "id1"), {}}, term: Term{"old:6379", 6}},
		"IPv6":                           {voters: []voter{known(voter{master: says("::1", 7), addr: gives("::2")}, "id0")}, term: Term{"[::2]:6379", 7}},
		"one has no right to the answer": {voters: []voter{leads, follows, forbidden}, term: Term{"new:6379", 7}, fault: "give the Sentinels' user " + sentinelRights},
		"none has the right to it": {voters: []voter{forbidden, known(forbidden, "id1"), {}}, term: Term{"new:6379", 7},
			fault: "a Sentinel does not give clients the master's address (NOPERM this user has no permissions to run the 'sentinel|get-master-addr-by-name' command), so a failover may be noticed late"},
		"the leader has no right to it":   {voters: []voter{known(voter{master: says("old", 7), addr: noRight}, "id0"), follows, {}}, text: "no majority of the 3 Sentinels names a master"},
		"it has just forgotten the set":   {voters: []voter{known(voter{master: says("old", 7), addr: unknown}, "id0")}, text: `knows no master set "m"`, config: true},
		"an answer of one word":           {voters: []voter{known(voter{master: says("old", 7), addr: "*1\r\n" + bulkText("new")}, "id0")}, text: "not understood"},
		"an answer with an empty address": {voters: []voter{known(voter{master: says("old", 7), addr: gives("")}, "id0")}, text: "not understood"},
	} {
		t.Run(claim, func(t *testing.T) {
			g := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, c.voters...)
			term, err := g.resolve(t.Context())
			assert.Equal(t, c.term, term)
			if c.text != "" {
				require.ErrorContains(t, err, c.text)
				var config *wire.ConfigError
				assert.Equal(t, c.config, errors.As(err, &config))
				return
			}
			require.NoError(t, err)
			if c.fault == "" {
				testFaults(t, g)
				return
			}
			testFaults(t, g, c.fault)
			assert.Len(t, g.Faults(), 1, "said once")
		})
	}
}
