package election_test

import (
	"context"
	"log"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
)

// A candidate that works while it leads, and knows who leads otherwise. Example (Election) of package quorumlocktest
// runs two candidates with a Preference, without Redis.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var m *quorumlock.Manager // from quorumlock.New
	e := election.New(m, election.Config{
		Name: "scheduler",
		Lead: func(ctx context.Context, _ *quorumlock.Lease) error {
			<-ctx.Done() // the term has ended
			return nil
		},
		NewLeader: func(s quorumlock.Status) { log.Print(s.Holder.Label, " leads") },
	})
	log.Print("no longer a candidate: ", e.Run(ctx))
}
