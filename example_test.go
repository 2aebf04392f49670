package quorumlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

// A job that must run only once at a time. It gets a context that ends with the lease,
// and a fencing token to pass along.
func ExampleManager_Do() {
	ctx := context.Background()
	m, err := quorumlock.New(ctx, quorumlock.Addrs("redis-a:6379", "redis-b:6379", "redis-c:6379"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = m.Close(ctx) }()

	err = m.Do(ctx, "invoices/close-month", func(ctx context.Context, l *quorumlock.Lease) error {
		return closeMonth(ctx, l.Token())
	})
	if errors.Is(err, quorumlock.ErrLost) {
		log.Print("another client may have taken over: ", err)
	}
}

// Abort the work on a loss, and start nothing irreversible while the lease is at risk.
func ExampleLease_Lost() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	lease, err := m.Acquire(ctx, "reactor")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Release(ctx) }() // ErrLost after a loss, which Lost reports
	for careful := false; ; {
		select {
		case lost, ok := <-lease.Lost():
			if ok {
				log.Printf("aborting: %v, token %d", lost.Reason, lost.Token)
			}
			return // lost, or released
		case <-lease.AtRisk():
			careful = true
		case renewed := <-lease.Renewed():
			careful = renewed.Margin == 0 // of three nodes or more; one node never has a margin
		case <-time.After(time.Second):
			if lease.Valid() { // by the clocks, now
				step(ctx, careful, lease.Token())
			}
		}
	}
}

// Two servers, and a master set behind three Sentinels as the third node. The Sentinels have their own TLS and
// credentials.
func ExampleSentinel() {
	ctx := context.Background()
	group := quorumlock.Sentinel("mymaster", "sentinel-a:26379", "sentinel-b:26379", "sentinel-c:26379")
	group.Username, group.Password = "locks", "of-the-master"
	group.Sentinel.Username, group.Sentinel.Password = "reader", "of-the-sentinels"
	m, err := quorumlock.New(ctx, append(quorumlock.Addrs("redis-a:6379", "redis-b:6379"), group),
		quorumlock.WithTTL(10*time.Second),
		quorumlock.WithFailover(5*time.Second),      // leases continue for this long without the Sentinels
		quorumlock.WithRestartGuard(15*time.Second)) // TTL + lock delay + window, on every client
	if err != nil {
		log.Fatal(err)
	}
	_ = m.Close(ctx)
}

// One slot of a cluster, whose master may change. All keys lie in the slot of the tag.
func ExampleClusterSlot() {
	ctx := context.Background()
	slot := quorumlock.ClusterSlot("{locks}", "cluster-a:6379", "cluster-b:6379", "cluster-c:6379")
	slot.Username, slot.Password = "locks", "of-the-cluster"
	slot.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	m, err := quorumlock.New(ctx, []rueidis.ClientOption{slot}, quorumlock.WithPrefix("{locks}:"),
		quorumlock.WithTTL(10*time.Second), quorumlock.WithFailover(5*time.Second), quorumlock.WithRestartGuard(15*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	_ = m.Close(ctx)
}

// Names spread over the masters of a whole cluster.
func ExampleNewCluster() {
	ctx := context.Background()
	m, err := quorumlock.NewCluster(ctx, rueidis.ClientOption{InitAddress: []string{"cluster-a:6379", "cluster-b:6379", "cluster-c:6379", "cluster-d:6379", "cluster-e:6379"}},
		quorumlock.WithTTL(12*time.Second), quorumlock.WithFailover(2*time.Second), quorumlock.WithRestartGuard(14*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	leases, err := m.AcquireAll(ctx, []string{"{order/7}/stock", "{order/7}/invoice"}) // of one bucket
	if err != nil {
		log.Fatal(err)
	}
	_ = leases.Release(ctx)
	_ = m.Close(ctx)
}

// Try once, and print the holder on failure.
func ExampleManager_TryAcquire() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	lease, err := m.TryAcquire(ctx, "report", quorumlock.WithTTL(time.Minute))
	var held *quorumlock.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println(held) // the holder, if it is known, and when to come back
	case errors.Is(err, quorumlock.ErrNoQuorum):
		fmt.Println("too few nodes:", err)
	case err == nil:
		defer func() { _ = lease.Release(ctx) }()
	}
}

// From this renewal on the lease lives five minutes at a time, as after Refresh of redislock.
func ExampleLease_Renew() {
	ctx := context.Background()
	var lease *quorumlock.Lease // from Acquire
	if err := lease.Renew(ctx, quorumlock.WithTTL(5*time.Minute)); err != nil {
		log.Print(err) // ErrLost, or no majority has confirmed it yet: the next round asks again
	}
}

// Each host starts a job once a minute, and one of them runs it: the name stays taken for 50 s, however short the job is.
func ExampleWithMinHold() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	job := func(ctx context.Context, _ *quorumlock.Lease) error { return closeMonth(ctx, 0) }
	err := m.Do(ctx, "job", job, quorumlock.WithWait(0), quorumlock.WithMinHold(50*time.Second))
	if errors.Is(err, quorumlock.ErrHeld) {
		fmt.Println("another host runs it:", err)
	}
}

// Lead until the service stops.
func ExampleManager_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var m *quorumlock.Manager // from New
	err := m.Lead(ctx, "scheduler", func(ctx context.Context, l *quorumlock.Lease) error {
		<-ctx.Done() // the term has ended: the lease was lost, or the service is stopping
		return nil
	})
	log.Print("no longer a candidate: ", err)
}

// Readers read the prices together, while no writer has them.
func ExampleShared() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	read := func(ctx context.Context, l *quorumlock.Lease) error { return nil }
	if err := m.Do(ctx, "prices", read, quorumlock.Shared()); err != nil {
		log.Print(err)
	}
}

// Four encoders at a time, wherever they run. Each has its own number.
func ExamplePermits() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	lease, err := m.Acquire(ctx, "encode", quorumlock.Permits(4))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Release(ctx) }()
	fmt.Println("encoder", lease.Slot())
}

// Three leaders, each for a third of the queues, and a follower that knows them.
func ExampleManager_Lead_several() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var m *quorumlock.Manager // from New
	three := quorumlock.Permits(3)
	go func() {
		err := m.Lead(ctx, "drain", func(ctx context.Context, l *quorumlock.Lease) error {
			return drain(ctx, l.Slot(), l.Token()) // until ctx ends
		}, three)
		log.Print("no longer a candidate: ", err)
	}()
	statuses, err := m.Observe(ctx, "drain", three)
	if err != nil {
		log.Print(err)
		return
	}
	for status := range statuses {
		for slot, leader := range status.Slots {
			log.Print(slot, " is led by ", leader.Holder.Label)
		}
	}
}

// Wait for the lease, and give it back when the work is done.
func ExampleManager_Acquire() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	lease, err := m.Acquire(ctx, "reports", quorumlock.WithWait(time.Minute))
	if errors.Is(err, quorumlock.ErrHeld) {
		fmt.Println("somebody else has worked for a minute:", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Release(ctx) }() // ErrLost: another client may have had it
	step(lease.Context(), true, lease.Token())
}

// A follower sends its writes to the current leader.
func ExampleManager_Observe() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()              // ends the channel
	var m *quorumlock.Manager // from New
	statuses, err := m.Observe(ctx, "scheduler")
	if err != nil {
		log.Print(err)
		return
	}
	for s := range statuses {
		switch {
		case !s.Known:
			log.Print("nobody knows: ", s.Err)
		case s.Held:
			log.Print(s.Holder.Label, " leads, with a token of at most ", s.Token)
		default:
			log.Print("nobody leads")
		}
	}
}

// A transfer needs both accounts. Callers may name them in any order, and never deadlock.
func ExampleManager_DoAll() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	err := m.DoAll(ctx, []string{"account/7", "account/3"}, func(ctx context.Context, all *quorumlock.Leases) error {
		step(ctx, true, all.Lease("account/7").Token()) // ctx ends with the first of the leases
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

// All names or none, held until Release.
func ExampleManager_AcquireAll() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	all, err := m.AcquireAll(ctx, []string{"disk/1", "disk/2"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = all.Release(ctx) }()
	for _, lease := range all.All() {
		fmt.Println(lease.Name(), lease.Token())
	}
}

// A process that is replaced leaves its lease to the next one.
func ExampleLease_Detach() {
	ctx := context.Background()
	var lease *quorumlock.Lease                      // from Acquire
	handle, err := lease.Detach(ctx, 30*time.Second) // no other client gets the name for this long
	if err != nil {
		log.Fatal(err) // ErrLost: there is nothing to hand over
	}
	fmt.Println(handle) // a string: write it where the next process reads it
}

// The next process continues with the lease, and with a larger token.
func ExampleManager_Resume() {
	ctx := context.Background()
	var m *quorumlock.Manager    // from New
	var handle quorumlock.Handle // from Detach, in another process
	lease, err := m.Resume(ctx, handle)
	if errors.Is(err, quorumlock.ErrLost) {
		fmt.Println("too late, or somebody has used it:", err)
		return
	}
	if err != nil {
		log.Fatal(err) // ErrNoQuorum: try again
	}
	defer func() { _ = lease.Release(ctx) }()
	step(lease.Context(), true, lease.Token())
}

// The holder finds the request on Lease.Wanted, and decides.
func ExampleManager_AskRelease() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	if err := m.AskRelease(ctx, "scheduler", "deploy of version 7"); err != nil {
		log.Print(err)
	}
}

// A holder that hangs loses its lease. No client is granted the name before that lease has ended.
func ExampleManager_Revoke() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	r, err := m.Revoke(ctx, "scheduler", "it hangs: ticket 4711")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Holder.Label, "is told, and its lease is over at", r.Until)
}

// Who holds a name, and how many wait for it.
func ExampleManager_Inspect() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	s, err := m.Inspect(ctx, "scheduler")
	if err != nil {
		log.Fatal(err) // ErrNoQuorum: s has the answers of the other nodes
	}
	if s.Held {
		fmt.Println(s.Holder.Label, "since", s.Holder.Since, "and", s.Waiters, "wait")
	}
}

// All names of a prefix that are held or waited for.
func ExampleManager_List() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	for s, err := range m.List(ctx, "reports/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Name, s.Holder.Label, s.TTL)
	}
}

// The state of each of some names, in one exchange for 64 of them.
func ExampleManager_InspectAll() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	for s, err := range m.InspectAll(ctx, []string{"shard/1", "shard/2", "shard/3"}) {
		if err != nil {
			log.Fatal(err) // the states after it are not known
		}
		fmt.Println(s.Name, s.Known, s.Held, s.Holder.Label)
	}
}

// One option, which the caller of a function chooses.
func ExampleKind() {
	var m *quorumlock.Manager // from New
	take := func(ctx context.Context, name string, kind quorumlock.Kind) (*quorumlock.Lease, error) {
		return m.TryAcquire(ctx, name, kind) // the zero Kind is an exclusive lease
	}
	_, _ = take(context.Background(), "prices", quorumlock.Kind{})
}

// The texts of the reasons, as logs and errors show them.
func ExampleLostReason() {
	for _, r := range []quorumlock.LostReason{
		quorumlock.LostExpired, quorumlock.LostMissing, quorumlock.LostTaken, quorumlock.LostRevoked, quorumlock.LostSuspended, quorumlock.LostMaxHold,
	} {
		fmt.Println(r)
	}
	// Output:
	// not renewed in time
	// lost by the nodes: too few of them still hold this lease
	// taken by another client: too few nodes still hold this lease
	// revoked by an operator
	// process stopped or suspended, or clock set forward
	// held for the maximum time of WithMaxHold
}

func drain(context.Context, int, int64) error { return nil }
func closeMonth(context.Context, int64) error { return nil }
func step(context.Context, bool, int64)       {}
