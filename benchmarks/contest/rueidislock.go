package contest

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockTimeout bounds one attempt. The default of 20 ms is meant for
// several keys and would make attempts fail in a crowd.
const rueidislockTimeout = 500 * time.Millisecond

type rueidislockClient struct {
	locker rueidislock.Locker
}

// connectRueidislock uses one key on one Redis: several keys would be on that
// same server and protect against nothing.
func connectRueidislock(_ context.Context, addrs []string, s Settings) (Client, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: addrs[:1]},
		KeyMajority:    1,
		KeyValidity:    s.TTL,
		TryNextAfter:   rueidislockTimeout,
		NoLoopTracking: true, // otherwise its own renewals invalidate themselves
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockClient{locker}, nil
}

// rueidislockHeld releases a lock.
type rueidislockHeld context.CancelFunc

// Lock implements Client.
func (c *rueidislockClient) Lock(ctx context.Context, name string) (Held, error) {
	_, cancel, err := c.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld(cancel), nil
}

// Release implements Held. It has no context and no error to offer.
func (h rueidislockHeld) Release(context.Context) error {
	h()
	return nil
}

// rueidislockKept is the context of a lock, which ends when it is lost.
type rueidislockKept struct {
	held   context.Context
	cancel context.CancelFunc // kept, because it must stay reachable
}

// Keep implements Keeper.
func (c *rueidislockClient) Keep(ctx context.Context, name string) (Kept, error) {
	held, cancel, err := c.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return rueidislockKept{held, cancel}, nil
}

// Lost implements Kept.
func (k rueidislockKept) Lost() bool { return k.held.Err() != nil }
