package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// oneServer records whether the address of a node leads to one server. Clients that reach different servers do not
// exclude each other. No restart brings a process back: a process that is met again, after another one was met at the
// address, has been running all the time. Only the worker uses the fields that are not atomic.
type oneServer struct {
	probed uint64       // the newest connection of the worker that was compared with a second one
	lookAt clock.Steady // when it is compared again
	met    []Identity   // the newest one last
	fault  error        // two servers were found
	agreed int          // later probes in a row that found one server

	looks   sync.WaitGroup // only the worker calls Go
	looking atomic.Bool
	id      atomic.Pointer[string]    // the run_id that the worker met last
	differs atomic.Pointer[[2]string] // that run_id, and another one that was met after it
	check   func()                    // makes the worker greet the node again
}

const (
	// probesAgree is how many probes in a row must find one server after two were found, one a second.
	probesAgree = 20
	// lookLeast is the least time between two comparisons: each greeting that is due by checkEvery makes one.
	lookLeast = checkEvery / 2
	// metMax is how many run_ids are remembered.
	metMax = 8
)

// several returns a fault if no vote counts because the address leads to more than one server; nil if it seems to lead
// to one. now was just read over this connection of the worker. A new connection is compared with another one before it
// votes: with the last one, if both have reached one process, and otherwise, or in a failover group, with a second one,
// which costs the renewals behind it a dial and two round trips. Later comparisons run aside, and delay no renewal. If
// one of these is the first to reach another server, moved is an error that ends the worker's connection: the address may
// lead only there now.
func (o *oneServer) several(l *link, now Identity, connection uint64) (fault, moved error) {
	id := now.RunID
	if id == "" {
		return o.fault, nil
	}
	if l.group != nil && connection != o.probed {
		o.met = nil // a group may return to a master that it had before
	}
	same := len(o.met) > 0 && o.met[len(o.met)-1].again(now)
	o.meet(now)
	if two := o.differs.Swap(nil); two != nil && two[0] == id {
		known := o.fault != nil
		if o.found(two[0], two[1]); !known { // once: behind a balancer each new connection differs
			return o.fault, &wire.AwayError{Err: errors.New(o.fault.Error())}
		}
	}
	o.id.Store(&id)
	switch {
	case connection != o.probed && !same || o.fault != nil:
		o.probed, o.lookAt = connection, l.now.Add(lookLeast)
		switch other := prober(l, vote.RetryEvery)(); other.RunID {
		case "":
		case id:
			if o.agreed++; o.agreed >= probesAgree {
				o.fault = nil
			}
		default:
			o.meet(other)
			if again := masterAt(l.life, l.client); again.RunID != "" {
				o.meet(again)
			}
		}
	case l.now >= o.lookAt && o.looking.CompareAndSwap(false, true):
		o.lookAt = l.now.Add(lookLeast)
		look := prober(l, checkEvery)
		o.looks.Go(func() {
			defer o.looking.Store(false)
			o.compare(look)
		})
	}
	return o.fault, nil
}

// again reports whether a process is met again, with the data that it had.
func (id Identity) again(now Identity) bool {
	return now.RunID == id.RunID && now.ReplID == id.ReplID
}

// meet records that the worker has met a process.
func (o *oneServer) meet(now Identity) {
	if at := slices.IndexFunc(o.met, func(before Identity) bool { return before.RunID == now.RunID }); at >= 0 {
		if last := o.met[len(o.met)-1]; last.RunID != now.RunID && !promotedAgain(o.met[at], last, now) {
			o.found(now.RunID, last.RunID)
		}
		o.met = slices.Delete(o.met, at, at+1)
	}
	if o.met = append(o.met, now); len(o.met) > metMax {
		o.met = o.met[1:]
	}
}

// promotedAgain reports whether a process that is met again has been a replica of the last one in between: its data
// differ from before, and it had the last one's data when it was promoted. So this is the second failover between the
// two, and not a balancer.
func promotedAgain(before, last, now Identity) bool {
	return now.ReplID != before.ReplID && now.Former != "" && now.Former == last.ReplID
}

// found records that two servers run at the address.
func (o *oneServer) found(one, other string) {
	o.agreed, o.fault = 0, &wire.ConfigError{
		Problem: "this address leads to several servers: one connection has reached run_id " + one + ", another one " + other,
		Fix: "list each server by an address of its own; a headless service, a name with several addresses or a balancing proxy " +
			"sends clients to different servers, which grant one lock twice", List: true,
	}
}

// compare asks over another connection than the worker's. If this reaches another process, the worker's next greeting
// decides whether the process that it had met still runs, or was restarted.
func (o *oneServer) compare(ask func() Identity) {
	before := o.id.Load()
	if before == nil {
		return
	}
	if other := ask().RunID; other != "" && other != *before {
		o.differs.Store(&[2]string{*before, other})
		o.check()
	}
}

// prober returns a function that probes the address. Nodes that share a trunk probe once within this time.
func prober(l *link, within time.Duration) func() Identity {
	ask := func() Identity { return probe(l) }
	if t, _ := l.trunk(); t != nil {
		return func() Identity { return t.facts.reached(within, ask) }
	}
	return ask
}

// probe returns the master that a new connection reaches, the zero Identity if it reaches none.
func probe(l *link) Identity {
	client, _ := rueidis.NewClient(forWorker(l.required(l.optionAgain(), l.conns.watchAside)))
	if client == nil {
		return Identity{}
	}
	defer client.Close()
	return masterAt(l.life, client)
}

// masterAt returns the master that a connection reaches now, the zero Identity if there is no answer. A replica grants
// nothing, and a failover may turn the server of either connection into one.
func masterAt(life context.Context, client rueidis.Client) Identity {
	ctx, cancel := context.WithTimeout(life, maxDial)
	defer cancel()
	id, _ := identify(client.DoMulti(ctx, client.B().Info().Section("server").Build(), client.B().Info().Section("replication").Build()))
	if id.replica() {
		return Identity{}
	}
	return id
}
