package doctor

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	dialTimeout = 2 * time.Second
	askTimeout  = 10 * time.Second
	samples     = 5 // of the clock: the sample with the shortest round trip counts
)

// Probe asks one node for everything that Judge needs. It writes two keys of its own, and deletes them.
func Probe(ctx context.Context, option rueidis.ClientOption, prefix string) Node {
	n := Node{Addr: option.InitAddress[0]}
	n.Plain = option.TLSConfig == nil && elsewhere(n.Addr)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	option.ForceSingleClient, option.DisableCache, option.DisableRetry = true, true, true
	option.ClientSetInfo = rueidis.DisableClientSetInfo
	option.PipelineMultiplex = -1
	option.Dialer = net.Dialer{Timeout: dialTimeout, KeepAlive: time.Second}
	option.ConnWriteTimeout = dialTimeout
	if option.TLSConfig != nil {
		option.DialCtxFn = n.dating(option.DialCtxFn)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		n.Fault = diagnose(ctx, option, err)
		return n
	}
	defer client.Close()
	if err := n.ask(ctx, client, prefix); err != nil {
		n.Fault = diagnose(ctx, option, err)
	}
	for range redials {
		n.redial(ctx, option)
	}
	return n
}

// dating returns a function that dials with TLS, and records until when the certificates are valid.
func (n *Node) dating(dial dialer) dialer {
	if dial == nil {
		dial = node.Dial
	}
	return func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, config)
		if secure, ok := conn.(*tls.Conn); ok && err == nil {
			for _, chain := range secure.ConnectionState().VerifiedChains {
				for _, certificate := range chain {
					if left := time.Until(certificate.NotAfter); n.Certificate == 0 || left < n.Certificate {
						n.Certificate = left
					}
				}
			}
		}
		return conn, err
	}
}

type dialer = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// elsewhere reports whether an address may belong to another host.
func elsewhere(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// redials is the number of further connections that check whether the address leads to one server.
const redials = 7

// redial records the run_id that a new connection reaches, if it is another one.
func (n *Node) redial(ctx context.Context, option rueidis.ClientOption) {
	client, err := rueidis.NewClient(option)
	if err != nil {
		return
	}
	defer client.Close()
	again := Node{}
	if again.info(ctx, client) == nil && again.RunID != "" && again.RunID != n.RunID {
		n.Others = append(n.Others, again.RunID)
	}
}

// ask fills in everything that the node reports. Its error is the reason why the node could not be asked.
func (n *Node) ask(ctx context.Context, client rueidis.Client, prefix string) error {
	clock := n.measure(ctx, client)
	if clock != nil && !answered(clock) {
		return clock
	}
	if err := n.info(ctx, client); err != nil {
		return err
	}
	if n.Mode == "sentinel" {
		return nil // which knows INFO, but not TIME
	}
	if clock != nil && !strings.HasPrefix(clock.Error(), "NOPERM") {
		return clock
	}
	n.config(ctx, client)
	if err := n.rights(ctx, client, prefix); err != nil {
		return err
	}
	n.marker(ctx, client, prefix)
	n.registers(ctx, client, prefix)
	n.lists(ctx, client, prefix)
	return nil
}

// measure reads the node's clock a few times.
func (n *Node) measure(ctx context.Context, client rueidis.Client) error {
	for range samples {
		begun := time.Now()
		clock, err := client.Do(ctx, client.B().Time().Build()).AsIntSlice()
		took := time.Since(begun)
		if err != nil {
			return err
		}
		if len(clock) != 2 || n.RoundTrip != 0 && took >= n.RoundTrip {
			continue
		}
		n.RoundTrip = took
		n.Clock = time.UnixMicro(clock[0]*1e6 + clock[1]).Sub(begun.Add(took / 2).Round(0))
	}
	return nil
}

// info reads INFO. A server that refuses it gets no further questions.
func (n *Node) info(ctx context.Context, client rueidis.Client) error {
	for _, section := range []string{"server", "replication", "memory", "persistence"} {
		text, err := client.Do(ctx, client.B().Info().Section(section).Build()).ToString()
		if err != nil && !answered(err) {
			return err
		}
		if err != nil {
			n.Unchecked = err.Error()
			return nil
		}
		n.readInfo(text)
	}
	return nil
}

// config reads settings. A user of locks has no right to that, and needs none.
func (n *Node) config(ctx context.Context, client rueidis.Client) {
	values := map[string]string{}
	for _, name := range []string{"appendfsync", "aof-load-truncated", "min-replicas-to-write", "min-replicas-max-lag"} {
		value, err := client.Do(ctx, client.B().ConfigGet().Parameter(name).Build()).AsStrMap()
		if err != nil {
			return
		}
		values[name] = value[name]
	}
	n.readConfig(values)
}

// marker reads the restart guard's marker: process, end in microseconds of the node's clock,
// time in milliseconds, nonce.
func (n *Node) marker(ctx context.Context, client rueidis.Client, prefix string) {
	values, err := client.Do(ctx, client.B().Mget().Key(prefix+"\xffg").Build()).ToArray()
	if err != nil || len(values) != 1 {
		return
	}
	text, err := values[0].ToString()
	if fields := strings.Fields(text); err == nil && len(fields) == 4 {
		n.Process, n.Marker = fields[0], time.Duration(number(fields[2]))*time.Millisecond
		end, _ := strconv.ParseInt(fields[1], 10, 64)
		// A more distant end was written before the node's clock was set back.
		now := time.Now().Add(n.Clock)
		n.Quarantine = min(time.UnixMicro(end).Sub(now), n.Marker)
		if !strings.HasSuffix(text, "open") {
			n.Binds = n.used(ctx, client, prefix, max(end, 0)+looks.Microseconds()) - time.Duration(now.UnixMicro())*time.Microsecond
		}
	}
}

// looks is how long a client with the guard may rely on a list of nodes that it registered before.
const looks = 30 * time.Second

// used returns the instant by the node's clock, since 1970, until which the marker binds clients without the guard, as
// in internal/wire/lua/guard.lua. It is when the last list of a client with the guard ends, or least, if that is later.
func (n *Node) used(ctx context.Context, client rueidis.Client, prefix string, least int64) time.Duration {
	lists, err := client.Do(ctx, client.B().Zrange().Key(prefix+"\xffl").Min("-2").Max("-1").Withscores().Build()).AsZScores()
	if err != nil {
		return time.Duration(least) * time.Microsecond
	}
	for _, list := range lists {
		if !strings.HasPrefix(list.Member, "node ") {
			least = max(least, int64(min(list.Score, 1<<53)))
		}
	}
	return time.Duration(least) * time.Microsecond
}

// lists reads which lists of nodes clients announce.
func (n *Node) lists(ctx context.Context, client rueidis.Client, prefix string) {
	all, err := client.Do(ctx, client.B().Zrange().Key(wire.InUseKey(prefix)).Min("0").Max("63").Withscores().Build()).AsZScores()
	if err != nil {
		return
	}
	n.InUse = map[string]time.Duration{}
	now := float64(time.Now().Add(n.Clock).UnixMicro())
	for _, list := range all {
		if left := time.Duration(min(list.Score-now, 1e12)) * time.Microsecond; left > 0 {
			n.InUse[list.Member] = max(wire.AnnouncedFor-left, 0)
		}
	}
}

// registers reads how far the fencing registers are ahead of the node's clock: their base,
// and the highest of them.
func (n *Node) registers(ctx context.Context, client rueidis.Client, prefix string) {
	now := time.Now().Add(n.Clock)
	ahead := func(micros float64) time.Duration {
		const century = 100 * 365 * 24 * time.Hour // more does not fit, and would not add information
		return time.Duration(min(micros-float64(now.UnixMicro()), float64(century.Microseconds()))) * time.Microsecond
	}
	values, err := client.Do(ctx, client.B().Mget().Key(prefix+"\xffb").Build()).ToArray()
	if err == nil && len(values) == 1 {
		if text, err := values[0].ToString(); err == nil {
			if base, err := strconv.ParseFloat(text, 64); err == nil {
				n.BaseAhead = max(ahead(base), 0)
			}
		}
	}
	highest, err := client.Do(ctx, client.B().Zrange().Key(prefix+"\xffr").Min("0").Max("0").Rev().Withscores().Build()).AsZScores()
	if err == nil && len(highest) == 1 {
		n.RegisterAhead = max(ahead(highest[0].Score), 0)
	}
}
