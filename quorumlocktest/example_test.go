package quorumlocktest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/web"
)

func Example() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()

	ctx := context.Background()
	var clients []rueidis.Client
	for _, option := range cluster.Options() {
		client, err := rueidis.NewClient(option)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer client.Close()
		clients = append(clients, client)
	}

	cluster.Nodes()[1].Kill()

	for i, client := range clients {
		err := client.Do(ctx, client.B().Set().Key("lock").Value("me").Nx().PxMilliseconds(1000).Build()).Error()
		fmt.Println(i, err == nil)
	}
	_, err := cluster.Nodes()[1].Do("GET", "lock")
	fmt.Println("refused:", errors.Is(err, syscall.ECONNREFUSED))

	cluster.Nodes()[1].Restart()
	v, err := cluster.Nodes()[1].Do("GET", "lock")
	fmt.Println("restarted:", v, err)
	// Output:
	// 0 true
	// 1 false
	// 2 true
	// refused: true
	// restarted: <nil> <nil>
}

// A follower learns which process leads, or that none does; an operator lists what is held.
func Example_observe() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leader, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithHolder("host a"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = leader.Close(context.Background()) }()
	follower, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithHolder("host b"), quorumlock.WithObserveEvery(50*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = follower.Close(context.Background()) }()

	statuses, err := follower.Observe(ctx, "reports/leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", (<-statuses).Held)
	lease, err := leader.Acquire(ctx, "reports/leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	status := <-statuses
	fmt.Println("held:", status.Held, "by", status.Holder.Label, "with its token:", status.Token >= lease.Token())
	for listed, err := range follower.List(ctx, "reports/") {
		fmt.Println(listed.Name, "by", listed.Holder.Label, err)
	}
	fmt.Println(lease.Release(ctx))
	fmt.Println("held:", (<-statuses).Held)
	// Output:
	// held: false
	// held: true by host a with its token: true
	// reports/leader by host a <nil>
	// <nil>
	// held: false
}

// A job hangs and keeps its lease: an operator asks for it, and then takes it away. No other client gets the name while
// the job may still work.
func Example_revoke() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	job, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithTTL(time.Second), quorumlock.WithHolder("job"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = job.Close(ctx) }()
	operator, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithHolder("ops"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = operator.Close(ctx) }()

	lease, err := job.Acquire(ctx, "reports/leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	wanted := lease.Wanted()
	fmt.Println(operator.AskRelease(ctx, "reports/leader", "deploy"))
	w := <-wanted // with the next renewal
	fmt.Printf("%s asks: %s\n", w.By, w.Reason)

	revocation, err := operator.Revoke(ctx, "reports/leader", "it hangs")
	fmt.Println("revoked:", revocation.Holder.Label, err)
	lost := <-lease.Lost()
	fmt.Println(lost.Reason)
	next, err := operator.Acquire(ctx, "reports/leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a larger token:", next.Token() > lease.Token())
	fmt.Println(next.Release(ctx))
	// Output:
	// <nil>
	// ops asks: deploy
	// revoked: job <nil>
	// revoked by an operator
	// a larger token: true
	// <nil>
}

// A leader restarts: the old process detaches its lease, and the new one resumes it.
func Example_handover() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	before, err := quorumlock.New(ctx, cluster.Options())
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := before.Acquire(ctx, "reports/leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	handle, err := lease.Detach(ctx, 30*time.Second) // no other client gets the name
	fmt.Println(err, "valid:", lease.Valid())
	_ = before.Close(ctx)

	after, err := quorumlock.New(ctx, cluster.Options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = after.Close(ctx) }()
	_, err = after.TryAcquire(ctx, "reports/leader")
	fmt.Println("held:", errors.Is(err, quorumlock.ErrHeld))
	next, err := after.Resume(ctx, handle)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a larger token:", next.Token() > lease.Token())
	_, err = after.Resume(ctx, handle)
	fmt.Println("a second time:", errors.Is(err, quorumlock.ErrLost))
	// Output:
	// <nil> valid: false
	// held: true
	// a larger token: true
	// a second time: true
}

// A transfer needs both accounts: all or none, whatever order the callers name them in.
func Example_several() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	m, err := quorumlock.New(ctx, cluster.Options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	err = m.DoAll(ctx, []string{"account/42", "account/17"}, func(ctx context.Context, all *quorumlock.Leases) error {
		for _, l := range all.All() {
			fmt.Println(l.Name(), l.Token() > 0)
		}
		_, err := m.TryAcquire(context.Background(), "account/17")
		fmt.Println(errors.Is(err, quorumlock.ErrHeld))
		return nil
	})
	fmt.Println(err)
	// Output:
	// account/42 true
	// account/17 true
	// true
	// <nil>
}

// A cache has many readers, and a writer that needs it alone.
func Example_shared() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	m, err := quorumlock.New(ctx, cluster.Options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	writer, err := m.Acquire(ctx, "cache")
	if err != nil {
		fmt.Println(err)
		return
	}
	first, err := writer.Downgrade(ctx) // it continues as a reader
	fmt.Println(err, "writer:", writer.Valid(), "reader:", first.Shared())
	second, err := m.Acquire(ctx, "cache", quorumlock.Shared())
	fmt.Println(err, "a token behind the writer's:", second.Token() > writer.Token())
	_, err = m.TryAcquire(ctx, "cache")
	var held *quorumlock.HeldError
	fmt.Println(errors.As(err, &held), held.Readers, "readers")
	// Output:
	// <nil> writer: false reader: true
	// <nil> a token behind the writer's: true
	// true 2 readers
}

// Two encoders at a time, wherever they run.
func Example_permits() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	m, err := quorumlock.New(ctx, cluster.Options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	const limit = 2
	first, err := m.Acquire(ctx, "encode", quorumlock.Permits(limit))
	fmt.Println(err)
	second, err := m.Acquire(ctx, "encode", quorumlock.Permits(limit))
	fmt.Println(err, "slots:", first.Slot()+second.Slot())
	_, err = m.TryAcquire(ctx, "encode", quorumlock.Permits(limit))
	fmt.Println(errors.Is(err, quorumlock.ErrHeld))
	_ = first.Release(ctx)
	third, err := m.Acquire(ctx, "encode", quorumlock.Permits(limit))
	fmt.Println(err, third.Slot() == first.Slot())
	// Output:
	// <nil>
	// <nil> slots: 1
	// true
	// <nil> true
}

// A step takes longer than the TTL allows for, and the holder may be cut off during the step. So it asks for a longer
// TTL. Afterwards it returns to the usual one: if the process dies, the name must not stay taken for that long.
func Example_ttl() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	m, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithTTL(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	err = m.Do(ctx, "backup", func(ctx context.Context, lease *quorumlock.Lease) error {
		if err := lease.Renew(ctx, quorumlock.WithTTL(time.Hour)); err != nil {
			return err
		}
		fmt.Println("the disk may be switched off for", lease.Remaining().Round(30*time.Minute))
		if err := lease.Renew(ctx, quorumlock.WithTTL(10*time.Second)); err != nil {
			return err
		}
		status, err := m.Inspect(ctx, "backup")
		fmt.Println("others wait for at most 10 s:", status.TTL <= 10*time.Second+time.Millisecond)
		return err
	})
	fmt.Println(err)
	// Output:
	// the disk may be switched off for 1h0m0s
	// others wait for at most 10 s: true
	// <nil>
}

// Names are spread over the masters of a Redis Cluster. One master is killed, and its replica takes its place: the
// lease continues.
func ExampleNewRedisCluster() {
	cluster := quorumlocktest.NewRedisCluster(3)
	defer cluster.Close()
	ctx := context.Background()
	m, err := quorumlock.NewCluster(ctx, cluster.Option(),
		quorumlock.WithTTL(3*time.Second), quorumlock.WithFailover(2*time.Second), quorumlock.WithRestartGuard(5*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	fmt.Println(len(m.Nodes()), "buckets")
	lease, err := m.Acquire(ctx, "job") // after the first quarantine
	if err != nil {
		fmt.Println(err)
		return
	}
	master := cluster.MasterOf("job")
	cluster.Kill(master)
	cluster.Failover(master)
	time.Sleep(4 * time.Second)
	fmt.Println("held:", lease.Valid(), "by another master:", cluster.MasterOf("job") != master)
	fmt.Println(lease.Release(ctx))
	// Output:
	// 16 buckets
	// held: true by another master: true
	// <nil>
}

// A candidate in the region of the data joins, and the leader, which is elsewhere, yields to it: package election.
func Example_election() {
	cluster := quorumlocktest.NewCluster(3)
	defer cluster.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	led := make(chan struct{}, 2) // one for each reign
	var candidates sync.WaitGroup
	join := func(region string, preference int) {
		m, err := quorumlock.New(ctx, cluster.Options())
		if err != nil {
			panic(err)
		}
		e := election.New(m, election.Config{
			Name: "reports/leader", Preference: func() int { return preference },
			TTL: 2 * time.Second, MinReign: 6 * time.Second, // the defaults are 10 s and 10 min
			Lead: func(ctx context.Context, _ *quorumlock.Lease) error {
				fmt.Println(region, "leads")
				led <- struct{}{}
				<-ctx.Done()
				fmt.Println(region, "ends:", context.Cause(ctx))
				return nil
			},
		})
		candidates.Go(func() {
			_ = e.Run(ctx)
			_ = m.Close(context.Background())
		})
	}
	join("far", 1)
	<-led
	join("near", 2)
	<-led
	stop()
	candidates.Wait()
	// Output:
	// far leads
	// far ends: election: yielded to a better candidate
	// near leads
	// near ends: context canceled
}

// The page of package web, and the events of its stream about a name. Without a name the stream has only the state.
func Example_page() {
	cluster := quorumlocktest.NewCluster(1)
	defer cluster.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m, err := quorumlock.New(ctx, cluster.Options(), quorumlock.WithHolder("billing-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close(ctx) //nolint:errcheck // an example
	if _, err := m.Acquire(ctx, "orders/4711"); err != nil {
		fmt.Println(err)
		return
	}

	server := httptest.NewServer(http.StripPrefix("/debug/locks", web.Handler(m))) // open server.URL + "/debug/locks/"
	defer server.Close()
	answer, err := http.Get(server.URL + "/debug/locks/events?name=orders/4711") //nolint:noctx // an example
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close() //nolint:errcheck // an example
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		var event struct {
			Verdict struct{ Text string }
			Text    string
			Holders []struct{ Label string }
		}
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			fmt.Println(err)
			return
		}
		if event.Holders == nil { // the state comes first
			fmt.Println(event.Verdict.Text)
			continue
		}
		fmt.Println(event.Text, event.Holders[0].Label)
		return
	}
	// Output:
	// Locks are granted. 1 of 1 node is usable.
	// It is held. billing-1
}
