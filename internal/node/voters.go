package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// voters are those who choose the master of a group, with a connection to each.
type voters struct {
	who   string // in the plural
	addrs []string
	conns []lazyClient

	mu      sync.Mutex
	closed  bool
	pending sync.WaitGroup // questions under way; Add with mu held and not closed
}

// newVoters returns voters at these addresses. Nothing is dialled before the first
// question.
func newVoters(who string, addrs []string, option func(addr string) rueidis.ClientOption) *voters {
	v := &voters{who: who, addrs: addrs, conns: make([]lazyClient, len(addrs))}
	for i, addr := range addrs {
		v.conns[i].option = option(addr)
	}
	return v
}

// lazyClient is a client that dials when it is used, and again whenever its connection
// has ended.
type lazyClient struct {
	option rueidis.ClientOption
	asked  atomic.Int32 // questions under way
	mu     sync.Mutex
	client rueidis.Client
}

func (l *lazyClient) get() rueidis.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client == nil {
		l.client, _ = rueidis.NewClient(l.option) // with ForceSingleClient there is one even if the dial has failed
	}
	return l.client
}

// answer is what one voter said.
type answer struct {
	voter int
	term  Term
	err   error
}

// poll asks all voters at once. The channel has room for every answer and is never closed;
// a reader may leave early.
func (v *voters) poll(ctx context.Context, ask func(ctx context.Context, c rueidis.Client) (Term, error)) <-chan answer {
	answers := make(chan answer, len(v.addrs))
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.addrs {
		if v.closed {
			answers <- answer{voter: i, err: ErrClosed}
			continue
		}
		conn := &v.conns[i]
		if conn.asked.Load() >= askers { // a user's dial function may hang
			answers <- answer{voter: i, err: errBusy}
			continue
		}
		conn.asked.Add(1)
		v.pending.Go(func() {
			defer conn.asked.Add(-1)
			a := answer{voter: i}
			if client := conn.get(); client == nil {
				a.err = ErrConnecting
			} else {
				a.term, a.err = ask(ctx, client)
			}
			answers <- a
		})
	}
	return answers
}

// resolve returns the term that a majority of the voters names. One alone is not enough: as
// long as it is cut off, it names the old master. Any error but a ConfigError passes by
// itself.
func (g *group) resolve(ctx context.Context) (Term, error) {
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	v := g.voters
	votes := map[Term]int{}
	failures := make([]error, len(v.addrs)) // in the order of the voters, so that one outage has one text
	for i, addr := range v.addrs {
		failures[i] = fmt.Errorf("%s: %w", addr, errBusy)
	}
	answers := v.poll(ctx, g.ask)
	for range v.addrs {
		var a answer
		select {
		case a = <-answers:
		case <-ctx.Done():
			return Term{}, v.failed(failures, votes)
		}
		if failures[a.voter] = nil; a.err != nil {
			failures[a.voter] = g.explain(v.addrs[a.voter], a.err)
			continue
		}
		if host, port, _ := net.SplitHostPort(a.term.Addr); host == "" { // a cluster node that has not learnt its own address
			host, _, _ = net.SplitHostPort(v.addrs[a.voter])
			a.term.Addr = net.JoinHostPort(host, port)
		}
		if votes[a.term]++; votes[a.term] > len(v.addrs)/2 {
			return a.term, nil
		}
	}
	return Term{}, v.failed(failures, votes)
}

// describe writes which masters were named, and how often.
func describe(votes map[Term]int) string {
	var texts []string
	for term, n := range votes {
		texts = append(texts, fmt.Sprintf("%d name %s (epoch %d)", n, term.Addr, term.Epoch))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// close ends the connections. It waits for questions under way, which are bounded.
func (v *voters) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.pending.Wait()
	for i := range v.conns {
		if client := v.conns[i].client; client != nil {
			client.Close()
		}
	}
}

// askers is how many ask at a time: the worker, the subscriber and RunGroup.
const askers = 3

var errBusy = errors.New("no answer in time")

// failed returns the error for a question that no majority has answered with one voice. A
// ConfigError of a majority is returned as it is, because somebody has to mend it.
func (v *voters) failed(failures []error, votes map[Term]int) error {
	var first *ConfigError
	var texts []string
	configs := 0
	const fix = "; look at them, if this lasts"
	for _, err := range failures {
		var config *ConfigError
		if errors.As(err, &config) {
			if configs++; first == nil {
				first = config
			}
		}
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	switch {
	case configs > len(v.addrs)/2:
		return first
	case len(texts) == 0:
		return fmt.Errorf("the %d %s do not agree on a master: %s%s", len(v.addrs), v.who, describe(votes), fix)
	default:
		return fmt.Errorf("no majority of the %d %s names a master: %s%s", len(v.addrs), v.who, strings.Join(texts, "; "), fix)
	}
}
