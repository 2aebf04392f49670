package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
	cronlock "github.com/quorumlock/quorumlock/adapters/cron"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// A job that several processes schedule, and one of them runs.
func ExampleLocker_Job() {
	var m *quorumlock.Manager // from New
	locker := cronlock.NewLocker(m, cron.DefaultLogger, time.Second)
	c := cron.New(cron.WithLocation(time.UTC))
	_, err := c.AddJob("0 3 * * *", locker.Job("report", func(ctx context.Context, lease *quorumlock.Lease) {
		report(ctx, lease.Token())
	}))
	if err != nil {
		log.Fatal(err)
	}
	c.Start()
}

// Two processes at the same tick: cron calls Run in each of them.
func ExampleLocker_Wrapper() {
	cluster := quorumlocktest.NewCluster(3) // three nodes inside this process, in place of servers
	defer cluster.Close()
	logger := cron.VerbosePrintfLogger(log.New(os.Stderr, "cron: ", log.LstdFlags))
	for range 2 {
		m, err := quorumlock.New(context.Background(), cluster.Options())
		if err != nil {
			panic(err)
		}
		defer func() { _ = m.Close(context.Background()) }()
		locker := cronlock.NewLocker(m, logger, time.Second)
		chain := cron.NewChain(cron.Recover(logger), locker.Wrapper("vacuum"))
		chain.Then(cron.FuncJob(func() { fmt.Println("vacuum") })).Run()
	}
	// Output: vacuum
}

func report(context.Context, int64) {}
