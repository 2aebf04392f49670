package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	writeEvery  = 50 * time.Millisecond
	redialEvery = 100 * time.Millisecond // while writes fail
	scoutEvery  = 250 * time.Millisecond // between new connections while writes succeed
	judgeEvery  = 250 * time.Millisecond

	// patience is how long the library waits for an answer before it gives a connection up.
	patience = time.Second
	// keyTimeout is how much longer the key lives than the probe may run.
	keyTimeout = 10 * time.Minute

	probeBuffer = 16 << 10
)

// counterScript puts a number before those that the key holds, and returns those. It is a
// script, as every write of a lock is, and needs no right that locks do not need. A list
// of the last numbers and not the last one alone: a number that was written without an
// answer would otherwise hide those that were lost before it.
const counterScript = `local before = redis.call('GETRANGE', KEYS[1], 0, 799)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. before, 'PX', ARGV[2])
return before`

const infoScript = `return #redis.call('INFO', 'server')`

// FailoverSettings bound a probe.
type FailoverSettings struct {
	For    time.Duration // how long to wait for a failover, and for its end
	Settle time.Duration // how long nothing may change after it
	Ready  func()        // called when a failover may begin; nil for none
	Seen   func()        // called when one was seen; nil for none

	patience time.Duration // of tests on a machine that stands still; 0 for the usual one
}

// ProbeFailover writes to one endpoint while somebody forces a failover there. It returns
// when the failover is over, s.For has passed, or ctx ends. It writes one key, which no
// lock can have, and deletes it.
func ProbeFailover(ctx context.Context, option rueidis.ClientOption, prefix string, s FailoverSettings) Failover {
	f := Failover{Before: Probe(ctx, option, prefix), Settle: s.Settle}
	if f.Before.Fault != nil {
		return f
	}
	option.ForceSingleClient, option.DisableCache, option.DisableRetry = true, true, true
	option.ClientSetInfo = rueidis.DisableClientSetInfo
	option.PipelineMultiplex, option.BlockingPipeline = -1, -1
	option.ReadBufferEachConn, option.WriteBufferEachConn = probeBuffer, probeBuffer
	option.RingScaleEachConn = 2
	// No PING of rueidis: one goroutine uses a connection at a time, and finds its end itself.
	timeout := cmp.Or(s.patience, patience)
	option.Dialer = net.Dialer{Timeout: timeout, KeepAlive: -1}
	option.ConnWriteTimeout = timeout
	p := &failoverProbe{
		option: option, patience: timeout, key: prefix + "\xffd" + rand.Text(),
		ttl: strconv.FormatInt((s.For + keyTimeout).Milliseconds(), 10), begun: time.Now(),
	}
	c, err := p.dial()
	if err == nil {
		f.ScriptInfo = p.scriptInfo(c)
		p.begun = time.Now()
		_, _, err = p.write(c, false)
	}
	if err != nil {
		f.NotWritable = err.Error()
		if c != nil {
			c.client.Close()
		}
		return f
	}
	if s.Ready != nil {
		s.Ready()
	}
	f.Samples, f.Lasted = p.run(ctx, c, s)
	return f
}

// failoverProbe is a probe that runs. Three goroutines use one connection each: the writer
// that of a client that dials anew on every error, the keeper the one that the writer left
// last while it was up, and the scout a new one each time.
type failoverProbe struct {
	option   rueidis.ClientOption
	patience time.Duration
	key      string
	ttl      string // of the key, in ms
	begun    time.Time
	closer   sync.WaitGroup

	mu       sync.Mutex // guards all below, and connection.server and connection.wrote
	samples  []Sample
	conns    int           // connections dialled
	number   int           // that was written last
	writesTo *Server       // where the writer's last write was accepted, nil while writes fail
	found    *connection   // by the scout, for the writer
	held     *connection   // for the keeper
	dropped  []*connection // for the keeper to close, which may still use them
}

// connection is a client that has one connection, and is closed with it. It belongs to one
// goroutine at a time.
type connection struct {
	client rueidis.Client
	number int
	script string // digest of counterScript
	last   int    // number that was acknowledged last
	server Server
	wrote  bool
}

// run probes until the failover is over.
func (p *failoverProbe) run(ctx context.Context, c *connection, s FailoverSettings) ([]Sample, time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { p.keepWriting(ctx, c) })
	wg.Go(func() { p.keepHeld(ctx) })
	wg.Go(func() { p.scout(ctx) })
	for seen := false; sleep(ctx, judgeEvery); {
		f := p.observed(s.Settle)
		if first, found := f.first(); found && !seen {
			if _, seen = f.sign(first); seen && s.Seen != nil {
				s.Seen()
			}
		}
		if seen && f.Settled() {
			break
		}
	}
	f := p.observed(s.Settle)
	cancel()
	wg.Wait()
	p.clean()
	p.closer.Wait()
	return f.Samples, f.Lasted
}

// observed returns what was seen so far.
func (p *failoverProbe) observed(settle time.Duration) Failover {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Failover{Samples: p.samples[:len(p.samples):len(p.samples)], Lasted: time.Since(p.begun), Settle: settle}
}

// keepWriting writes as a client does that dials anew on every error, and on a connection
// whose server is no master any more.
func (p *failoverProbe) keepWriting(ctx context.Context, c *connection) {
	for pause := writeEvery; sleep(ctx, pause); {
		if found := p.takeFound(); found != nil {
			if c != nil {
				p.hold(c)
			}
			c = found
		}
		pause = redialEvery
		if c == nil {
			sent := time.Since(p.begun)
			var err error
			if c, err = p.dial(); err != nil {
				p.record(Sample{Sent: sent}, err)
				continue
			}
		}
		switch accepted, alive, _ := p.write(c, false); {
		case accepted:
			pause = writeEvery
		case alive:
			p.hold(c)
			c = nil
		default:
			p.close(c)
			c = nil
		}
	}
	if c != nil {
		p.hold(c)
	}
}

// keepHeld goes on writing over the connection that the writer left while it was up.
func (p *failoverProbe) keepHeld(ctx context.Context) {
	for sleep(ctx, writeEvery) {
		p.mu.Lock()
		c, dropped := p.held, p.dropped
		p.dropped = nil
		p.mu.Unlock()
		for _, d := range dropped {
			p.close(d)
		}
		if c == nil {
			continue
		}
		if _, alive, _ := p.write(c, true); !alive {
			p.mu.Lock()
			if p.held == c {
				p.held, p.dropped = nil, append(p.dropped, c)
			} // else it was dropped meanwhile
			p.mu.Unlock()
		}
	}
}

// scout dials while writes are accepted, to find another master behind the endpoint.
func (p *failoverProbe) scout(ctx context.Context) {
	for sleep(ctx, scoutEvery) {
		if p.writing() == nil {
			continue // the writer dials
		}
		c, err := p.dial()
		if err != nil {
			continue
		}
		sent := time.Since(p.begun)
		server, err := p.ask(c)
		if err != nil {
			p.close(c)
			continue
		}
		p.mu.Lock()
		c.server = server
		p.add(Sample{Conn: c.number, Sent: sent, Server: server})
		other := p.writesTo != nil && *p.writesTo != server && server.Role != "slave" && p.found == nil
		if other {
			p.found = c
		}
		p.mu.Unlock()
		if !other {
			p.close(c)
		}
	}
}

func (p *failoverProbe) writing() *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writesTo
}

func (p *failoverProbe) takeFound() *connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.found
	p.found = nil
	return c
}

// hold gives a connection to the keeper. One that a write was accepted over is worth more
// than one that never was, and the connection to the old master more than one to the new.
func (p *failoverProbe) hold(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.held == nil:
		p.held = c
	case c.wrote && c.server.RunID == p.held.server.RunID:
		p.dropped = append(p.dropped, p.held)
		p.held = c
	default:
		p.dropped = append(p.dropped, c)
	}
}

// dial makes a connection and loads the script.
func (p *failoverProbe) dial() (*connection, error) {
	client, err := rueidis.NewClient(p.option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, err
	}
	p.mu.Lock()
	p.conns++
	c := &connection{client: client, number: p.conns}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	c.script, err = client.Do(ctx, client.B().Arbitrary("SCRIPT", "LOAD", counterScript).Build()).ToString()
	if err != nil {
		p.close(c)
		return nil, err
	}
	return c, nil
}

// close closes a connection apart from the caller, since rueidis waits for a server that
// hangs.
func (p *failoverProbe) close(c *connection) { p.closer.Go(c.client.Close) }

// scriptInfo returns why INFO does not work inside a script, empty if it does.
func (p *failoverProbe) scriptInfo(c *connection) string {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	digest, err := c.client.Do(ctx, c.client.B().Arbitrary("SCRIPT", "LOAD", infoScript).Build()).ToString()
	if err == nil {
		err = c.client.Do(ctx, c.client.B().Arbitrary("EVALSHA", digest, "0").Build()).Error()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// write writes the next number and reads INFO. It reports whether a master accepted the
// number, and whether the connection is still up.
func (p *failoverProbe) write(c *connection, held bool) (accepted, alive bool, err error) {
	p.mu.Lock()
	p.number++
	s := Sample{Conn: c.number, Held: held, Number: p.number, Sent: time.Since(p.begun)}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	results := c.client.DoMulti(ctx,
		c.client.B().Arbitrary("EVALSHA", c.script, "1", p.key, strconv.Itoa(s.Number), p.ttl).Build(),
		c.client.B().Info().Section("server").Build(), c.client.B().Info().Section("replication").Build())
	before, err := results[0].ToString()
	s.Server = serverOf(results[1:], c.server)
	if err == nil {
		if numbers := numbersOf(before); len(numbers) == 0 || numbers[0] != c.last {
			s.Before = numbers
		}
		c.last = s.Number
	}
	accepted = err == nil && s.Server.Role != "slave"
	p.record(s, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.server, c.wrote = s.Server, c.wrote || err == nil
	if !held {
		if p.writesTo = nil; accepted {
			p.writesTo = &s.Server
		}
	}
	return accepted, err == nil || answered(err), err
}

// ask reads INFO.
func (p *failoverProbe) ask(c *connection) (Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	results := c.client.DoMulti(ctx, c.client.B().Info().Section("server").Build(), c.client.B().Info().Section("replication").Build())
	return serverOf(results, Server{}), results[0].Error()
}

// serverOf reads INFO server and INFO replication. What is the same as before shares its
// memory: thousands of samples are kept.
func serverOf(results []rueidis.RedisResult, before Server) Server {
	var n Node
	for _, r := range results {
		if text, err := r.ToString(); err == nil {
			n.readInfo(text)
		}
	}
	if s := (Server{RunID: n.RunID, ReplID: n.ReplID, Role: n.Role}); s != before {
		return Server{RunID: strings.Clone(s.RunID), ReplID: strings.Clone(s.ReplID), Role: strings.Clone(s.Role)}
	}
	return before
}

// numbersOf reads the numbers that a server knew, the newest first.
func numbersOf(text string) []int {
	numbers := []int{}
	for field := range strings.FieldsSeq(text) {
		if len(numbers) == historyLen {
			break // the last number of the text may be cut
		}
		numbers = append(numbers, number(field))
	}
	return numbers
}

// record keeps a sample of a write.
func (p *failoverProbe) record(s Sample, err error) {
	s.Write, s.Refusal = outcome(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(s)
}

// add keeps a sample. The caller holds p.mu.
func (p *failoverProbe) add(s Sample) {
	s.Ended = time.Since(p.begun)
	p.samples = append(p.samples, s)
}

// outcome returns what an error says of a write.
func outcome(err error) (Write, string) {
	var network net.Error
	switch {
	case err == nil:
		return WriteAccepted, ""
	case answered(err):
		return WriteRefused, refusal(err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return WriteSilent, ""
	}
	return WriteBroken, ""
}

// refusal returns the word for a server's error. Before Redis 7 an error inside a script
// does not begin with it.
func refusal(text string) string {
	for _, word := range []string{"READONLY", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "MISCONF", "OOM"} {
		if strings.Contains(text, word) {
			return word
		}
	}
	word, _, _ := strings.Cut(text, " ")
	return word
}

// clean deletes the key, and closes what is open.
func (p *failoverProbe) clean() {
	if c, err := p.dial(); err == nil { // whatever the endpoint leads to now
		ctx, cancel := context.WithTimeout(context.Background(), p.patience)
		_ = c.client.Do(ctx, c.client.B().Del().Key(p.key).Build()).Error() // the key has an end
		cancel()
		p.close(c)
	}
	for _, c := range append(p.dropped, p.held, p.found) {
		if c != nil {
			p.close(c)
		}
	}
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
