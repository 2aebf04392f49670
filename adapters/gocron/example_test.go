package gocronlock_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/quorumlock"
	gocronlock "github.com/quorumlock/quorumlock/adapters/gocron"
)

// One process of several runs all jobs.
func ExampleElector() {
	var m *quorumlock.Manager                                // from New
	elector := gocronlock.NewElector(m, "reports/scheduler") // Close it before the Manager

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(func() {
		lease := elector.Lease()
		if lease == nil {
			return // the leadership went to another process just now
		}
		report(lease.Context(), lease.Token())
	}))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
}

// Several processes share the runs of the jobs.
func ExampleLocker() {
	var m *quorumlock.Manager // from New
	locker := gocronlock.NewLocker(m, time.Second)
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(func() {
		lease := locker.Lease("report")
		report(lease.Context(), lease.Token())
	}), gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
}

func report(context.Context, int64) {}
