package contest

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	goredisclient "github.com/redis/go-redis/v9"
)

// redislockPoll is how long redislock waits between two attempts if the workload sets nothing: by default it does not
// wait for a lock at all.
const redislockPoll = 100 * time.Millisecond

type redislockClient struct {
	client   *redislock.Client
	settings Settings
	options  *redislock.Options
}

func connectRedislock(_ context.Context, addrs []string, s Settings) (Client, error) {
	poll := s.Poll
	if poll <= 0 {
		poll = redislockPoll
	}
	return &redislockClient{
		client:   redislock.New(goredisclient.NewClient(&goredisclient.Options{Addr: addrs[0]})),
		settings: s,
		options:  &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)},
	}, nil
}

// Lock implements Client.
func (c *redislockClient) Lock(ctx context.Context, name string) (Held, error) {
	// Its own bound on waiting is the TTL, unless ctx has a deadline.
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	lock, err := c.client.Obtain(ctx, name, c.settings.TTL, c.options)
	if err != nil {
		return nil, err
	}
	return lock, nil
}
