package contest

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	goredisclient "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

// renewals is how often a lock is extended within its TTL, by every contestant
// that leaves this to its user.
const renewals = 3

type redsyncClient struct {
	redsync  *redsync.Redsync
	settings Settings
	options  []redsync.Option
}

func connectRedsyncGoredis(_ context.Context, addrs []string, s Settings) (Client, error) {
	var pools []redsyncpool.Pool
	for _, addr := range addrs {
		pools = append(pools, goredis.NewPool(goredisclient.NewClient(&goredisclient.Options{Addr: addr})))
	}
	return newRedsync(pools, s), nil
}

func connectRedsyncRueidis(_ context.Context, addrs []string, s Settings) (Client, error) {
	var pools []redsyncpool.Pool
	for _, addr := range addrs {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true,
		})
		if err != nil {
			return nil, err
		}
		pools = append(pools, redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client)))
	}
	return newRedsync(pools, s), nil
}

func newRedsync(pools []redsyncpool.Pool, s Settings) Client {
	// It gives up after a number of tries; the benchmarks wait.
	options := []redsync.Option{redsync.WithExpiry(s.TTL), redsync.WithTries(math.MaxInt32)}
	if s.Poll > 0 {
		options = append(options, redsync.WithRetryDelay(s.Poll))
	}
	return &redsyncClient{redsync: redsync.New(pools...), settings: s, options: options}
}

// redsyncHeld is a redsync.Mutex with the method of Held.
type redsyncHeld redsync.Mutex

// Lock implements Client.
func (c *redsyncClient) Lock(ctx context.Context, name string) (Held, error) {
	mutex := c.redsync.NewMutex(name, c.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return (*redsyncHeld)(mutex), nil
}

var errNotUnlocked = errors.New("redsync: not unlocked")

// Release implements Held.
func (h *redsyncHeld) Release(ctx context.Context) error {
	ok, err := (*redsync.Mutex)(h).UnlockContext(ctx)
	if err == nil && !ok {
		err = errNotUnlocked
	}
	return err
}

// redsyncKept is a lock whose own goroutine extends it: redsync has no watchdog,
// and this is what its users write.
type redsyncKept struct {
	until atomic.Int64 // when the lock ends, in nanoseconds since 1970
}

// Keep implements Keeper.
func (c *redsyncClient) Keep(ctx context.Context, name string) (Kept, error) {
	mutex := c.redsync.NewMutex(name, c.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	kept := &redsyncKept{}
	kept.until.Store(mutex.Until().UnixNano())
	go func() {
		ticker := time.NewTicker(c.settings.TTL / renewals)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if kept.Lost() {
				return // a lock that was lost stays lost
			}
			if ok, err := mutex.ExtendContext(ctx); ok && err == nil {
				kept.until.Store(mutex.Until().UnixNano())
			}
		}
	}()
	return kept, nil
}

// Lost implements Kept.
func (k *redsyncKept) Lost() bool { return time.Now().UnixNano() > k.until.Load() }
