package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"strconv"
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

// FailoverSettings bound a probe.
type FailoverSettings struct {
	For    time.Duration // how long to wait for a failover, and for its end
	Settle time.Duration // how long nothing may change after it
	Ready  func()        // called when a failover may begin; nil for none
	Seen   func()        // called when one was seen; nil for none

	patience time.Duration // of tests on a machine that stands still; 0 for the usual one
}

// ProbeFailover writes to one endpoint while the user forces a failover there. It returns
// when the failover has ended, s.For has passed, or ctx ends. It writes one key, which no
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
	// No PING of rueidis: one goroutine uses a connection at a time, and itself finds its end.
	timeout := cmp.Or(s.patience, patience)
	option.Dialer = net.Dialer{Timeout: timeout, KeepAlive: -1}
	option.ConnWriteTimeout = timeout
	p := &failoverProbe{
		option: option, patience: timeout, key: prefix + "\xffd" + rand.Text(),
		ttl: strconv.FormatInt((s.For + keyTimeout).Milliseconds(), 10), begun: time.Now(),
	}
	c, err := p.dial()
	if err == nil {
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

// failoverProbe is a running probe. Three goroutines use one connection each. The writer uses the connection of a
// client that connects again after every error, the keeper the last connection that the writer left while it was up,
// and the scout a new one each time.
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
	number   int           // the number that was written last
	writesTo *Server       // where the writer's last write was accepted, nil while writes fail
	found    *connection   // by the scout, for the writer
	held     *connection   // for the keeper
	dropped  []*connection // for the keeper, which may still use them, to close
}

// connection is a client that has one connection, and is closed with it. It belongs to one
// goroutine at a time.
type connection struct {
	client rueidis.Client
	number int
	script string // digest of counterScript
	last   int    // the number that was acknowledged last
	server Server
	wrote  bool
}

// run probes until the failover has ended.
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

// observed returns the observations so far.
func (p *failoverProbe) observed(settle time.Duration) Failover {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Failover{Samples: p.samples[:len(p.samples):len(p.samples)], Lasted: time.Since(p.begun), Settle: settle}
}

// keepWriting writes like a client that connects again after every error, and after its server has lost the role of the
// master.
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

// keepHeld continues to write over the connection that the writer left while it was up.
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
			} // otherwise it was dropped in between
			p.mu.Unlock()
		}
	}
}

// scout connects while writes are accepted, to find another master behind the endpoint.
func (p *failoverProbe) scout(ctx context.Context) {
	for sleep(ctx, scoutEvery) {
		if p.writing() == nil {
			continue // the writer connects
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

// hold gives a connection to the keeper. A connection with an accepted write is worth more than one without, and the
// connection to the old master more than one to the new.
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

// clean deletes the key, and closes all open connections.
func (p *failoverProbe) clean() {
	if c, err := p.dial(); err == nil { // whatever the endpoint leads to now
		ctx, cancel := context.WithTimeout(context.Background(), p.patience)
		_ = c.client.Do(ctx, c.client.B().Del().Key(p.key).Build()).Error() // the key expires anyway
		cancel()
		p.close(c)
	}
	for _, c := range append(p.dropped, p.held, p.found) {
		if c != nil {
			p.close(c)
		}
	}
}

// sleep waits, and reports whether ctx has not ended.
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
