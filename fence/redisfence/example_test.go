package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fence/redisfence"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Holder A is paused past the end of its lease. Holder B gets the lock, with a
// larger token, and writes. A wakes up, does not look at its lease, and writes:
// Redis refuses.
func Example() {
	ctx := context.Background()
	cluster := quorumlocktest.NewCluster(3) // in-process nodes, in place of three Redis servers
	defer cluster.Close()
	m, err := quorumlock.New(ctx, cluster.Options())
	check(err)
	defer func() { _ = m.Close(ctx) }()
	data := quorumlocktest.NewCluster(1) // the Redis that has the data
	defer data.Close()
	client, err := rueidis.NewClient(data.Options()[0])
	check(err)
	defer client.Close()
	fences, err := redisfence.New(client)
	check(err)

	// A is paused: its lease is not renewed, and it does not notice.
	a, err := m.Acquire(ctx, "report", quorumlock.WithTTL(300*time.Millisecond), quorumlock.WithoutRenewal())
	check(err)
	check(fences.Set(ctx, "report", a.Token(), "begun by A"))

	b, err := m.Acquire(ctx, "report") // returns when A's lease has ended
	check(err)
	defer func() { _ = b.Release(ctx) }()
	check(fences.Set(ctx, "report", b.Token(), "written by B"))

	err = fences.Set(ctx, "report", a.Token(), "overwritten by A") // A wakes up
	var stale *redisfence.StaleError
	if errors.As(err, &stale) {
		fmt.Println("A's write was refused, and its token is lower:", stale.Token < stale.Seen)
	}
	text, err := client.Do(ctx, client.B().Get().Key("report").Build()).ToString()
	check(err)
	fmt.Println(text)
	// Output:
	// A's write was refused, and its token is lower: true
	// written by B
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
