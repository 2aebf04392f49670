package contest

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// prefix is what the keys of quorumlock's locks begin with: its default.
const prefix = "quorumlock:"

// Registers is the key of the fencing registers of quorumlock on each node.
var Registers = wire.RegistersKey(prefix)

type quorumlockClient struct {
	manager *quorumlock.Manager
}

// connectQuorumlock returns a function that connects with these options.
func connectQuorumlock(opts ...quorumlock.Option) func(context.Context, []string, Settings) (Client, error) {
	return func(ctx context.Context, addrs []string, s Settings) (Client, error) {
		manager, err := quorumlock.New(ctx, quorumlock.Addrs(addrs...), append(slices.Clone(opts), quorumlock.WithTTL(s.TTL))...)
		if err != nil {
			return nil, err
		}
		return quorumlockClient{manager}, nil
	}
}

// Lock implements Client.
func (c quorumlockClient) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := c.manager.Acquire(ctx, name)
	if err != nil {
		return nil, err // not lease: a nil pointer is not a nil Held
	}
	return lease, nil
}

// permits is how many of the callers that want one name work at once.
const permits = 4

// permitsClient acquires a permit of the name.
type permitsClient struct{ quorumlockClient }

func connectPermits(ctx context.Context, addrs []string, s Settings) (Client, error) {
	c, err := connectQuorumlock()(ctx, addrs, s)
	if err != nil {
		return nil, err
	}
	return permitsClient{c.(quorumlockClient)}, nil
}

// Lock implements Client.
func (c permitsClient) Lock(ctx context.Context, name string) (Held, error) {
	lease, err := c.manager.Acquire(ctx, name, quorumlock.Permits(permits))
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// readersClient acquires a shared lease of one name, whatever name it is given.
type readersClient struct{ quorumlockClient }

func connectReaders(ctx context.Context, addrs []string, s Settings) (Client, error) {
	c, err := connectQuorumlock()(ctx, addrs, s)
	if err != nil {
		return nil, err
	}
	return readersClient{c.(quorumlockClient)}, nil
}

// Lock implements Client.
func (c readersClient) Lock(ctx context.Context, _ string) (Held, error) {
	lease, err := c.manager.Acquire(ctx, "read by all", quorumlock.Shared())
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// How clients use a Redis Cluster, as docs/cluster.md advises.
const (
	slotTag        = "{benchmarks}"
	failoverWindow = 2 * time.Second
	patience       = time.Minute // a busy machine answers late
	seeds          = 5           // of the addresses, masters first
)

// onCluster returns the options that every client of a Redis Cluster needs.
func onCluster(s Settings) []quorumlock.Option {
	return []quorumlock.Option{
		quorumlock.WithTTL(s.TTL), quorumlock.WithFailover(failoverWindow), quorumlock.WithRestartGuard(s.TTL + failoverWindow),
		quorumlock.WithStartupWait(patience),
	}
}

func connectNewCluster(ctx context.Context, addrs []string, s Settings) (Client, error) {
	manager, err := quorumlock.NewCluster(ctx, rueidis.ClientOption{InitAddress: addrs[:seeds]}, onCluster(s)...)
	if err != nil {
		return nil, err
	}
	return quorumlockClient{manager}, nil
}

func connectClusterSlot(ctx context.Context, addrs []string, s Settings) (Client, error) {
	slot := []rueidis.ClientOption{quorumlock.ClusterSlot(slotTag, addrs[:seeds]...)}
	manager, err := quorumlock.New(ctx, slot, append(onCluster(s), quorumlock.WithPrefix(slotTag+":"))...)
	if err != nil {
		return nil, err
	}
	return quorumlockClient{manager}, nil
}

type quorumlockKept struct{ *quorumlock.Lease }

// Keep implements Keeper.
func (c quorumlockClient) Keep(ctx context.Context, name string) (Kept, error) {
	lease, err := c.manager.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	return quorumlockKept{lease}, nil
}

// Lost implements Kept.
func (k quorumlockKept) Lost() bool { return !k.Valid() }

// renewalBuffer is how many events may wait while the counter is not running.
const renewalBuffer = 1 << 17

// CountRenewals implements Renewals. A dropped event is an extension that is not
// counted; the buffer is large enough for one round of the leases measured.
func (c quorumlockClient) CountRenewals(add func()) {
	subscription := c.manager.Subscribe(renewalBuffer)
	go func() {
		for event := range subscription.C() {
			if _, renewed := event.(quorumlock.Renewed); renewed {
				add()
			}
		}
	}()
}

// Close implements Closer.
func (c quorumlockClient) Close(ctx context.Context) error { return c.manager.Close(ctx) }

// LockKey implements Closer.
func (c quorumlockClient) LockKey(name string) string { return prefix + name }
