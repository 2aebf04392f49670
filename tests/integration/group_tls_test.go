package integration

import (
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The Sentinels of this test have a CA, a user and a password that the masters do not know, and the masters have
// others.
func TestSentinelsAndMastersHaveTLSAndCredentialsApart(t *testing.T) {
	testkit.OnlyAddrs(t, "it has Sentinels of its own")
	t.Parallel()
	ca, watchers := redistest.NewCA(t), redistest.NewCA(t)
	servers := redistest.StartWith(t, 3, redistest.Options{TLS: &redistest.TLS{CA: ca}, Args: []string{
		"--user", "locks", "on", ">of-the-master", "~*", "&*", "+@all"}})
	sentinel := redistest.StartSentinel(t, redistest.Options{TLS: &redistest.TLS{CA: watchers}, Args: []string{
		"--user", "reader", "on", ">of-the-sentinel", "+@all"}})
	nodes := make([]rueidis.ClientOption, len(servers))
	for i, s := range servers {
		host, port, _ := net.SplitHostPort(s.TLSAddr())
		sentinel.MustDo("SENTINEL", "MONITOR", s.Addr(), host, port, "1")
		nodes[i] = quorumlock.Sentinel(s.Addr(), sentinel.TLSAddr())
		nodes[i].Username, nodes[i].Password, nodes[i].TLSConfig = "locks", "of-the-master", ca.ClientConfig()
		nodes[i].Sentinel.Username, nodes[i].Sentinel.Password, nodes[i].Sentinel.TLSConfig = "reader", "of-the-sentinel", watchers.ClientConfig()
	}
	opts := briefly()
	m := open(t, nodes, opts...)
	testkit.Released(t, testkit.Acquired(t, m, "job"))

	for claim, change := range map[string]func(*rueidis.ClientOption){
		"the Sentinel at .* says WRONGPASS.*; set Sentinel.Username and Sentinel.Password": func(o *rueidis.ClientOption) {
			o.Sentinel.Password = o.Password
		},
		"WRONGPASS.*; set Username and Password": func(o *rueidis.ClientOption) { o.Password = o.Sentinel.Password },
		"no majority of the 1 Sentinels names a master: .*certificate": func(o *rueidis.ClientOption) {
			o.Sentinel.TLSConfig = o.TLSConfig
		},
		"certificate signed by unknown authority": func(o *rueidis.ClientOption) { o.TLSConfig = o.Sentinel.TLSConfig },
	} {
		t.Run(claim, func(t *testing.T) {
			wrong := nodes[0]
			change(&wrong)
			refusedAs(t, wrong, claim, opts...)
		})
	}
}

// The certificate of a cluster's master is checked like a single server's.
func TestTheOwnerOfASlotIsReachedOverTLS(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	ca, other := redistest.NewCA(t), redistest.NewCA(t)
	server := redistest.StartOwners(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca}, Args: []string{"--tls-cluster", "yes"}})[0]
	node := quorumlock.ClusterSlot(tag, server.TLSAddr())
	node.TLSConfig = ca.ClientConfig()
	opts := append(briefly(), quorumlock.WithPrefix(tag+":"))
	m := open(t, []rueidis.ClientOption{node}, opts...)
	testkit.Released(t, testkit.Acquired(t, m, "job"))
	node.TLSConfig = other.ClientConfig()
	refusedAs(t, node, "certificate signed by unknown authority", opts...)
}

// briefly returns options of groups with a short first quarantine.
func briefly() []quorumlock.Option {
	const ttl = time.Second
	return []quorumlock.Option{quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(300 * time.Millisecond),
		quorumlock.WithRestartGuard(ttl + window), quorumlock.WithFailover(window)}
}

// refusedAs checks the error of New for a node that cannot be used. Slow nodes may cause
// another error first.
func refusedAs(t *testing.T, node rueidis.ClientOption, pattern string, opts ...quorumlock.Option) {
	t.Helper()
	var err error
	testkit.Eventually(t, pattern, func() bool {
		_, err = quorumlock.New(background, []rueidis.ClientOption{node}, opts...)
		require.Error(t, err)
		return regexp.MustCompile(pattern).MatchString(err.Error())
	})
}
