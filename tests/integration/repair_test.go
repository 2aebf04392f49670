package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// An operator removes a right or changes the password, and corrects that some seconds later. The previous leader leads
// again.
func TestLeadOutlivesRightsAndPasswordsThatAreWrongForSeconds(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the users of servers")
	t.Parallel()
	const password = "the-old-one"
	rules := []string{"on", "resetpass", ">" + password, "~*", "&*", "+@all"}
	for fault, wrong := range map[string][]string{
		"rights":   {"-evalsha"},
		"password": {"resetpass", ">another"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3, append([]string{"--user", "app"}, rules...)...)
			setUser := func(rules ...string) {
				for _, s := range servers {
					s.MustDo(append([]string{"ACL", "SETUSER", "app"}, rules...)...)
					s.MustDo("CLIENT", "KILL", "USER", "app") // an established connection is not asked for a password
				}
			}
			nodes := over(t, redistest.Addrs(servers), func(o *rueidis.ClientOption) { o.Username, o.Password = "app", password })
			var log transcript
			m := open(t, nodes, testkit.Options(quorumlock.WithTTL(2*time.Second), quorumlock.WithLogger(log.logger()))...)
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			began, led := make(chan struct{}, 100), make(chan error, 1)
			go func() {
				led <- m.Lead(ctx, "leader", func(ctx context.Context, _ *quorumlock.Lease) error {
					began <- struct{}{}
					<-ctx.Done()
					return nil
				})
			}()
			<-began
			setUser(wrong...)
			time.Sleep(6 * time.Second)
			require.Empty(t, led, "it campaigns")
			assert.Contains(t, log.String(), "waits for nodes that an operator must repair")
			for len(began) > 0 {
				<-began
			}
			setUser(rules...)
			testkit.Eventually(t, "it leads again", func() bool { return len(began) > 0 })
			cancel()
			require.ErrorIs(t, <-led, context.Canceled)
		})
	}
}

// A rotation changes the nodes one by one, and a program that starts in between must not fail.
func TestNewStartsWhenOneOfThreeNodesRefusesItsPassword(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the users of servers")
	t.Parallel()
	servers := redistest.Start(t, 3)
	for i, s := range servers {
		password := "new"
		if i == 2 {
			password = "old"
		}
		s.MustDo("ACL", "SETUSER", "app", "on", ">"+password, "~*", "&*", "+@all")
	}
	nodes := over(t, redistest.Addrs(servers), func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "new" })
	var log transcript
	m := open(t, nodes, patient(quorumlock.WithLogger(log.logger()))...)
	testkit.Eventually(t, "the log says so", func() bool {
		return strings.Contains(log.String(), "node grants no locks") && strings.Contains(log.String(), "WRONGPASS")
	})
	assert.False(t, m.Nodes()[2].Voting)
	l := testkit.Acquired(t, m, "job")
	servers[2].MustDo("ACL", "SETUSER", "app", "resetpass", ">new")
	testkit.Eventually(t, "the third node joins", func() bool { return m.Nodes()[2].Voting })
	testkit.Eventually(t, "and has the lock", func() bool { _ = l.Renew(background); return testkit.Locks(t, servers, "job") == 3 })
	testkit.Released(t, l)
}
