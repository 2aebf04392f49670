package battery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Every packet is late by up to two TTLs. The delay differs from node to node and changes continuously. Requests arrive
// when their callers no longer wait.
func TestALatePacketLocksNothingAndBringsNothingBack(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("packets late by 0 to 2 TTL, N=%d", n))
		const ttl = time.Second
		const timeout = ttl / 10 // the default
		servers := redistest.Start(t, n)
		logs := make([]*keyLog, n)
		for i, s := range servers {
			logs[i] = watchKeys(t, s)
		}
		until := time.Now().Add(time.Duration(count(100, 3)) * time.Second)

		var mu sync.Mutex
		ends := map[string]time.Time{} // of leases, by owner
		granted, failed, myself := 0, 0, 0
		// If the machine was too busy for any grant, the test has shown nothing yet.
		goOn := func() bool {
			mu.Lock()
			defer mu.Unlock()
			over := time.Since(until)
			return over < 0 || granted == 0 && over < time.Minute
		}
		var delayers, callers sync.WaitGroup
		for manager := range 4 {
			proxies, addrs := testkit.Proxied(t, servers)
			m := testkit.Connect(t, addrs, quorumlock.WithTTL(ttl))
			for _, p := range proxies {
				delayers.Go(func() {
					for goOn() {
						p.Delay(lateness(ttl))
						time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
					}
					p.Delay(0)
				})
			}
			for caller := range 12 {
				callers.Go(func() {
					for i := 0; goOn(); i++ {
						name := fmt.Sprintf("late-%d-%d-%d", manager, caller, i)
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(ttl))))
						ask := m.TryAcquire
						if i%2 == 0 {
							ask = m.Acquire
						}
						l, err := ask(ctx, name)
						cancel()
						mu.Lock()
						if err == nil {
							granted++
						} else {
							failed++
						}
						if errors.Is(err, quorumlock.ErrHeld) {
							myself++
							t.Log(err)
						}
						mu.Unlock()
						if err != nil {
							continue
						}
						select {
						case <-l.Done():
						case <-time.After(time.Duration(rand.Int64N(int64(ttl * 3 / 2)))):
						}
						end := time.Now()
						ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(ttl))))
						err = l.Release(ctx)
						cancel()
						var lost *quorumlock.LostError
						if errors.As(err, &lost) {
							end = lost.At
						}
						mu.Lock()
						ends[l.Owner()] = end
						mu.Unlock()
					}
				})
			}
		}
		callers.Wait()
		delayers.Wait()
		// Packets in flight arrive within 2 TTLs, and their keys expire one TTL later.
		time.Sleep(3 * ttl)
		left := 0
		within(limitOf(100*time.Millisecond), func() bool {
			left = 0
			for _, s := range servers {
				left += len(locksOn(s))
			}
			return left == 0
		})

		made, late, frozen, back, soon, beyond, lone := 0, 0, 0, 0, 0, 0, 0
		var orphaned, healed, overtaken []time.Duration
		undone := 0
		for i, log := range logs {
			for _, life := range log.stop() {
				made++
				// It allows for the precision of PX, and of the wall clock in "since".
				notAfter := life.since.Add(timeout + 5*time.Millisecond)
				end, wasGranted := ends[life.owner]
				switch {
				case life.lean && !wasGranted && life.from.After(notAfter) && !life.to.After(life.since.Add(ttl+5*time.Millisecond)):
					lone++ // a lone caller's script compares no instant, and its key ends when it should
				case !wasGranted && life.from.After(notAfter):
					late++
					if !life.looked.After(notAfter) {
						frozen++ // the server stood still in the middle of the script
					}
					t.Logf("node %d: %s made %v after not-after, by %s, which looked at the clock %v before", i, life.name, life.from.Sub(notAfter), life.by,
						life.from.Sub(life.looked))
				case !wasGranted || !life.from.After(end) || !life.from.After(notAfter):
				case strings.HasPrefix(life.by, "heal ") && !life.from.After(end.Add(timeout+5*time.Millisecond)):
					soon++ // by a heal that was sent before the end and isn't void yet
					healed = append(healed, life.to.Sub(end))
				default: // later events do not matter: until then no other client could have the lock
					back++
					t.Logf("node %d: %s came back %v after its end, by %s, and stayed until %v (deleted: %v)%s", i, life.name,
						life.from.Sub(end), life.by, life.to.Sub(end), life.deleted, log.releasesOf(life))
				}
				if released, behind := log.behind(life); behind {
					overtaken = append(overtaken, life.to.Sub(released))
					if life.deleted {
						undone++
					}
				}
				if !wasGranted {
					orphaned = append(orphaned, life.to.Sub(life.since))
					if life.to.After(notAfter.Add(ttl)) {
						beyond++
					}
				}
			}
		}
		r.figure(fmt.Sprintf("%d grants, %d failed attempts, %d keys made: taken by myself %d", granted, failed, made, myself), "0", myself == 0)
		r.figure(fmt.Sprintf("keys made after the attempt's not-after %d (%d of them by a server that stood still after its look at the clock, "+
			"not counting %d of lone callers that end by TTL); there later than not-after + TTL %d (of failed attempts: %s after it began)",
			late, frozen, lone, beyond, spread(orphaned)), "0, 0", late == 0 && beyond == 0)
		r.figure(fmt.Sprintf("locks that came back after release or loss %d (by a heal before its not-after: %d, gone after the end: %s); left at the end %d",
			back, soon, spread(healed), left),
			"0, within node timeout + TTL, 0", back == 0 && left == 0 && at(1, healed) <= timeout+ttl+5*time.Millisecond)
		r.figure(fmt.Sprintf("keys made behind a release of their own %d (%d of them released once more); gone after that: %s",
			len(overtaken), undone, spread(overtaken)), "within node timeout + TTL", at(1, overtaken) <= timeout+ttl+5*time.Millisecond)
		require.Positive(t, granted, "without grants there is nothing that could come back")
		require.NotEmpty(t, orphaned, "no packet of a failed attempt was late enough to lock")
	})
}

// lateness returns a delay that is usually small, so that some leases are granted, and sometimes longer than a lease
// lives.
func lateness(ttl time.Duration) time.Duration {
	switch x := rand.IntN(10); {
	case x < 5:
		return time.Duration(rand.Int64N(int64(ttl / 50)))
	case x < 8:
		return time.Duration(rand.Int64N(int64(ttl / 2)))
	default:
		return time.Duration(rand.Int64N(int64(2 * ttl)))
	}
}

// keyLog records a server's changes of lock keys, from its own MONITOR. MONITOR has the server's time of each command
// in a script, which polling could not show.
type keyLog struct {
	conn net.Conn
	done chan struct{}
	err  error

	calls    []operation // of the running script
	lean     bool        // it is the one for lone callers
	from     string      // the connection over which the script came
	looked   time.Time   // when it read the time
	present  map[string]*keyLife
	past     []keyLife
	releases map[string][]keyRelease
}

// keyRelease is one release that a server has run.
type keyRelease struct {
	at    time.Time
	owner string
	by    string
}

// keyLife is one presence of a key: from the SET to the DEL or the expiry.
type keyLife struct {
	name, owner string
	since       time.Time // of the attempt, in the value
	from, to    time.Time
	looked      time.Time // when the script read the time: equal to from, unless the server stood still in between
	by          string    // operation and connection that made it
	lean        bool      // by the script for lone callers
	deleted     bool
}

func watchKeys(t *testing.T, s *redistest.Server) *keyLog {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	ok, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", ok)
	log := &keyLog{
		conn: conn, done: make(chan struct{}), present: map[string]*keyLife{}, releases: map[string][]keyRelease{},
	}
	go func() {
		defer close(log.done)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if log.err == nil {
				log.err = log.read(line)
			}
		}
	}()
	t.Cleanup(func() { require.NoError(t, log.err) })
	return log
}

// stop ends the log and returns the life of every key. Keys that still exist count as if
// they expired.
func (log *keyLog) stop() []keyLife {
	_ = log.conn.Close()
	<-log.done
	for _, life := range log.present {
		log.past = append(log.past, *life)
	}
	slices.SortFunc(log.past, func(a, b keyLife) int { return a.from.Compare(b.from) })
	return log.past
}

// releasesOf lists the node's releases of a key, for a failure message.
func (log *keyLog) releasesOf(life keyLife) (text string) {
	for _, r := range log.releases[life.name] {
		text += fmt.Sprintf("; %s ran %v before", r.by, life.from.Sub(r.at))
	}
	return text
}

// behind returns when the node ran the first release of the key's owner, if that was
// before the key was made.
func (log *keyLog) behind(life keyLife) (at time.Time, behind bool) {
	for _, r := range log.releases[life.name] {
		if r.owner == life.owner && r.at.Before(life.from) {
			return r.at, true
		}
	}
	return at, false
}

// read parses lines such as:
//
//	+1700000000.123456 [0 127.0.0.1:54321] "EVALSHA" "(digest)" "5" "quorumlock:\xffr" …
//	+1700000000.123456 [0 lua] "SET" "quorumlock:job" "(value)" "NX" "PXAT" "1700000001123"
func (log *keyLog) read(line string) error {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "+"), " ")
	from, rest, _ := strings.Cut(strings.TrimPrefix(rest, "[0 "), "] ")
	var words []string
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		words, rest = append(words, word), rest[len(quoted):]
	}
	seconds, micros, _ := strings.Cut(stamp, ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	now := time.Unix(s, us*1000)
	switch {
	case from == "lua" && words[0] == "TIME":
		log.looked = now
	case from == "lua" && len(words) > 1 && !strings.Contains(words[1], "\xff"): // the tag of companion keys
		return log.apply(now, words)
	case words[0] == "EVALSHA":
		calls, known := operations(words)
		if !known {
			return fmt.Errorf("no call of ours: %q", words)
		}
		log.calls, log.from, log.lean = calls, from, isLean(words)
		for _, op := range calls {
			if op.kind() == "release" {
				log.releases[op.key] = append(log.releases[op.key], keyRelease{now, strings.TrimSpace(op.args[0]), op.name + " over " + from})
			}
		}
	}
	return nil
}

// maker returns the operation that makes a key, and the connection over which it came.
func (log *keyLog) maker(key, owner string) string {
	for _, op := range log.calls {
		if op.key == key && (op.kind() == "acquire" || op.name == "heal") && strings.HasPrefix(op.args[0], owner) {
			return op.name + " over " + log.from
		}
	}
	return "nothing of ours over " + log.from
}

func (log *keyLog) apply(now time.Time, words []string) error {
	key := words[1]
	life := log.present[key]
	if life != nil && life.to.Before(now) {
		log.past = append(log.past, *life)
		delete(log.present, key)
		life = nil
	}
	switch words[0] {
	case "SET":
		v := wire.ParseValue(words[2])
		if slices.Contains(words, "KEEPTTL") || life != nil && slices.Contains(words, "NX") {
			return nil // another token, or no value
		}
		at := slices.Index(words, "PXAT")
		if v.Since.IsZero() || at < 0 || at+1 == len(words) {
			return fmt.Errorf("no lock of ours: %q", words)
		}
		life = &keyLife{name: key, owner: v.Owner, since: v.Since, from: now, looked: log.looked, to: unixMilli(words[at+1]), by: log.maker(key, v.Owner), lean: log.lean}
		log.present[key] = life
	case "PEXPIREAT":
		if life != nil {
			life.to = unixMilli(words[2])
		}
	case "DEL":
		if life != nil {
			life.to, life.deleted = now, true
			log.past = append(log.past, *life)
			delete(log.present, key)
		}
	}
	return nil
}

func unixMilli(text string) time.Time {
	ms, _ := strconv.ParseInt(text, 10, 64)
	return time.UnixMilli(ms)
}
