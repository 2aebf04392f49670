package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
)

// Refuse returns the first option in o that cannot work here and how to fix it, "" if
// there is none. It accepts options that are merely unused (client-side caching, pools,
// rings).
func Refuse(o *rueidis.ClientOption) (field, fix string) {
	kind, _ := master.Name(o)
	switch {
	case len(o.InitAddress) == 0 || o.InitAddress[0] == "":
		return "InitAddress is empty", "name one host:port or Unix socket for each node, or the Sentinels of a master set"
	case strings.TrimSpace(o.Sentinel.MasterSet) == "" && o.Sentinel.MasterSet != "":
		return "an empty master set", "name the master set as `sentinel monitor` does, such as mymaster"
	case kind == "slot" && !master.WholeTag(master.SlotTag(o)):
		return fmt.Sprintf("ClusterSlot tag %q", master.SlotTag(o)), "write a hash tag with its braces, such as {locks}"
	case len(master.Addresses(o)) == 0:
		return "InitAddress is empty", "name nodes of the cluster, three or more"
	case kind == "slot" && o.SelectDB != 0:
		return "SelectDB", "leave it 0: a cluster has one database"
	case kind == "" && len(o.InitAddress) > 1:
		return "InitAddress", "name one host:port for each node; several addresses are several nodes"
	case o.TLSConfig != nil && o.DialCtxFn == nil && o.DialFn == nil && IsSocket(o.InitAddress[0]):
		return "TLSConfig", "leave it nil: Redis does not speak TLS on a Unix socket"
	case len(o.Standalone.ReplicaAddress) > 0:
		return "Standalone.ReplicaAddress", "list independent masters: a replica cannot grant locks"
	case o.Standalone.EnableRedirect:
		return "Standalone.EnableRedirect", "list independent masters: a redirect would lock another server"
	case o.ReplicaOnly:
		return "ReplicaOnly", "list independent masters: a replica cannot grant locks"
	case o.SendToReplicas != nil && kind != "slot":
		return "SendToReplicas", "list independent masters: a replica cannot grant locks"
	case kind != "slot" && (o.ClusterOption.ShardsRefreshInterval != 0 || o.ClusterOption.MaxMovedRedirections != 0):
		return "ClusterOption", "list standalone masters: a cluster is one failure domain"
	case o.ConnLifetime != 0:
		return "ConnLifetime", "leave it 0: rueidis sends a command again when a connection expires"
	case o.DisableAutoPipelining:
		return "DisableAutoPipelining", "leave it false: one ordered connection keeps each release behind its acquire"
	case o.PipelineMultiplex > 0:
		return "PipelineMultiplex", "leave it 0: one ordered connection keeps each release behind its acquire"
	}
	return "", ""
}

const (
	// keepAlive is how long a connection is idle before a PING goes over it.
	keepAlive = 500 * time.Millisecond
	// renewalTests is how long the PING waits for a renewal, which is enough with a TTL of 6 s. A node that hangs is found
	// that much later.
	renewalTests = 2200 * time.Millisecond
	// answerTimeout is how long the worker waits for the answer to a batch or a PING
	// before it abandons the connection.
	answerTimeout = time.Second
	// Measured on rueidis 1.0.79: it notices a stuck connection after at most
	// 2 × KeepAlive + ConnWriteTimeout, and its default buffers are 0.5 MiB each.
	writeTimeout = 500 * time.Millisecond
	bufferSize   = 16 << 10
	// rueidis makes a channel, two conditions and a mutex for each place of a ring, at each dial.
	ringScale   = 8 // several goroutines ask at a time
	workerScale = 1 // one call is on its way at a time
	maxDial     = 500 * time.Millisecond
)

// requiredOptions returns o with the settings that the protocol needs, see docs/adr/0002: one
// connection, in order, and no command sent twice. A retry after a lost reply would be answered
// "taken", by the client's own key; a pipeline longer than BlockingPipeline would go over
// another connection. A dial reports its connection to watched, and ends with life.
func requiredOptions(life context.Context, o rueidis.ClientOption, watched func(net.Conn) net.Conn) rueidis.ClientOption {
	return requiredWithin(life, maxDial, o, watched)
}

func requiredWithin(life context.Context, most time.Duration, o rueidis.ClientOption, watched func(net.Conn) net.Conn) rueidis.ClientOption {
	dial := dialer(o)
	o.ForceSingleClient, o.DisableCache, o.DisableRetry, o.AlwaysPipelining = true, true, true, true
	o.PipelineMultiplex, o.BlockingPipeline = -1, -1
	o.ConnWriteTimeout = writeTimeout
	o.ReadBufferEachConn, o.WriteBufferEachConn = bufferSize, bufferSize
	o.RingScaleEachConn = ringScale
	o.Dialer.KeepAlive = keepAlive
	o.OnInvalidations = nil     // nothing is cached, and rueidis calls it when a connection ends
	if o.ClientSetInfo == nil { // it needs a right of its own, and each refusal fills the server's ACL LOG
		o.ClientSetInfo = rueidis.DisableClientSetInfo
	}
	if o.Dialer.Timeout <= 0 || o.Dialer.Timeout > maxDial {
		o.Dialer.Timeout = maxDial
	}
	if credentials := o.AuthCredentialsFn; credentials != nil {
		o.AuthCredentialsFn = func(ctx rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			return callOrAbandon(life, "AuthCredentialsFn", func() (rueidis.AuthCredentials, error) { return credentials(ctx) }, nil)
		}
	}
	o.DialFn = nil
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		// A user's dial function may respect its context and not d.Timeout.
		ctx, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		conn, err := callOrAbandon(life, "the dial function", func() (net.Conn, error) { return dial(ctx, addr, d, config) }, func(late net.Conn) { _ = late.Close() })
		if err != nil {
			return nil, dialFailed(err, d.Timeout)
		}
		return watched(conn), nil
	}
	return o
}

// forWorker returns options for a client that one goroutine uses at a time. rueidis then writes and reads in that
// goroutine, which saves two changes of goroutine for each call. This requires the PINGs of rueidis to be off: the
// first one that met a batch would switch pipelining back on for good. The worker sends PINGs instead.
func forWorker(o rueidis.ClientOption) rueidis.ClientOption {
	o.AlwaysPipelining = false
	o.RingScaleEachConn = workerScale
	o.ConnWriteTimeout = answerTimeout // also bounds the wait for the answer
	o.Dialer.KeepAlive = -1
	return o
}

// forTrunk returns options for a client that several workers use at a time. Each worker bounds the wait for its own
// answers, see share.overdue: a PING of rueidis would end the connection of a process that is late.
func forTrunk(o rueidis.ClientOption) rueidis.ClientOption {
	o.Dialer.KeepAlive = -1
	return o
}

// callOrAbandon calls a function that may be the user's, and stops waiting for it when
// life ends. Such a function may ignore its context, and must hold up neither Close nor a
// New that has failed. late, if not nil, receives a value that comes after that. The
// goroutine ends when the function returns. A panic of the function becomes an error, because
// it would end the process: the function costs its own node and no other.
func callOrAbandon[T any](life context.Context, what string, f func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result) // unbuffered, so that a result after the end of life goes to late; never closed
	go func() {
		value, err := callSafely(what, f)
		select {
		case done <- result{value, err}:
		case <-life.Done():
			if err == nil && late != nil {
				_, _ = callSafely(what, func() (T, error) { late(value); return value, nil })
			}
		}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-life.Done():
		var none T
		return none, context.Cause(life)
	}
}

// callSafely calls a function that may be the user's, and returns its panic as an error.
func callSafely[T any](what string, f func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", what, p)
		}
	}()
	return f()
}
