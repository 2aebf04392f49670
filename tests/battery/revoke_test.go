//go:build linux

package battery

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// victimConfig configures a process that holds a lease until it is lost, again and again.
type victimConfig struct {
	Addrs []string
	Name  string
	TTL   time.Duration
}

// victimLoss is the process's report of each loss. It answers "held" before that.
type victimLoss struct {
	Reason     quorumlock.LostReason
	ValidUntil time.Time
	Valid      time.Time // before the last call of Valid that returned true
}

func init() { roles["victim"] = victimRole }

func victimRole() int {
	var c victimConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...), quorumlock.WithTTL(c.TTL))
	if err != nil {
		return roleFailed(err)
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		l, err := m.Acquire(context.Background(), c.Name)
		if err != nil {
			return roleFailed(err)
		}
		if err := answer("held"); err != nil {
			return roleFailed(err)
		}
		loss := victimLoss{}
		for at := time.Now(); l.Valid(); at = time.Now() {
			loss.Valid = at
			time.Sleep(100 * time.Microsecond)
		}
		lost := <-l.Lost()
		loss.Reason, loss.ValidUntil = lost.Reason, lost.ValidUntil
		if err := answer(loss); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// revokedRound is the result of one revocation.
type revokedRound struct {
	frozen  bool
	early   time.Duration // from the grant of the next holder to Until; for a frozen holder it must not be above 0
	after   time.Duration // from the revocation to that grant
	outlast time.Duration // from Until to the end of the victim's lease, by its own report
	both    time.Duration // from the grant of the next holder to the end of the victim's lease, by its report and by Valid
	reason  quorumlock.LostReason
}

// A lease is revoked while its holder is frozen, or runs. The next holder comes when the first lease has ended.
func TestARevokedLeaseIsOverBeforeTheNextHolderComes(t *testing.T) {
	const ttl, lanes = 3 * time.Second, 5
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("a lease is revoked, its holder frozen or alive, N=%d", n))
		addrs := redistest.Addrs(redistest.Start(t, n))
		operator, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs...), quorumlock.WithTTL(ttl), quorumlock.WithStartupWait(10*time.Second))
		require.NoError(t, err)
		defer func() { assert.NoError(t, operator.Close(context.Background())) }()
		var mu sync.Mutex
		var rounds []revokedRound
		var all sync.WaitGroup
		for lane := range lanes {
			victim := spawn(t, "victim", victimConfig{addrs, lockName(lane), ttl})
			all.Go(func() {
				for i := range count(100, 10) / lanes {
					round, err := revokeOnce(t.Context(), operator, victim, lockName(lane), i%2 == 0)
					if !assert.NoError(t, err) {
						return
					}
					mu.Lock()
					rounds = append(rounds, round)
					mu.Unlock()
				}
				assert.NoError(t, victim.end())
			})
		}
		all.Wait()
		var soonest, latest, slowest, outlast, both time.Duration
		frozen, alive, revoked := 0, 0, 0
		soonest, latest, outlast, both = time.Hour, -time.Hour, -time.Hour, -time.Hour
		for _, round := range rounds {
			outlast, both = max(outlast, round.outlast), max(both, round.both)
			if round.frozen {
				frozen++
				soonest, latest = min(soonest, -round.early), max(latest, -round.early)
			} else {
				alive++
				slowest = max(slowest, round.after)
				if round.reason == quorumlock.LostRevoked {
					revoked++
				}
			}
		}
		r.figure(fmt.Sprintf("frozen %d times: the next grant %v to %v after Until", frozen, soonest.Round(time.Millisecond), latest.Round(time.Millisecond)),
			"0 to 1 s", frozen > 0 && soonest >= 0 && latest <= time.Second)
		r.figure(fmt.Sprintf("alive %d times: the next grant within %v of the revocation, %d revoked", alive, slowest.Round(time.Millisecond), revoked),
			fmt.Sprintf("within %v, all", ttl/3+time.Second), alive > 0 && slowest <= ttl/3+time.Second && revoked == alive)
		r.figure(fmt.Sprintf("the first holder's lease ends %v after Until at the latest", outlast.Round(time.Millisecond)), "not after", outlast <= 0)
		r.figure(fmt.Sprintf("in %d rounds the first holder's lease ends %v after the next grant at the latest", len(rounds), both.Round(time.Millisecond)),
			"not after", both <= 0 && len(rounds) == frozen+alive)
	})
}

// revokeOnce revokes the lease of a process.
func revokeOnce(ctx context.Context, m *quorumlock.Manager, victim *child, name string, frozen bool) (round revokedRound, err error) {
	var said string
	if err := victim.send("take"); err != nil {
		return round, err
	}
	if err := victim.receive(&said); err != nil {
		return round, err
	}
	granted := make(chan time.Time, 1)
	failed := make(chan error, 1)
	go func() {
		l, err := m.Acquire(ctx, name)
		at := time.Now()
		if err == nil {
			err = l.Release(ctx)
		}
		granted <- at
		failed <- err
	}()
	// The revocation comes at any instant between two renewals of the holder.
	time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Second))))
	if frozen {
		if _, err := victim.pause(); err != nil {
			return round, err
		}
	}
	began := time.Now()
	r, err := m.Revoke(ctx, name, "battery")
	if err != nil {
		return round, err
	}
	at := <-granted
	if frozen {
		if _, err := victim.resume(); err != nil {
			return round, err
		}
	}
	var loss victimLoss
	if err := victim.receive(&loss); err != nil {
		return round, err
	}
	round = revokedRound{
		frozen: frozen, early: r.Until.Sub(at), after: at.Sub(began), outlast: loss.ValidUntil.Sub(r.Until), reason: loss.Reason,
		both: max(loss.ValidUntil.Sub(at), loss.Valid.Sub(at)),
	}
	return round, <-failed
}
