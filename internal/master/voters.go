package master

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// voters are the servers that choose the master of a group, with a connection to each.
type voters struct {
	resolver
	who   string // in the plural
	addrs []string
	conns []lazyClient
	life  context.Context // of the clients that ask
	// askers is how many questions may be on their way to one voter: from a node, the questions of the worker, the
	// subscriber and RunGroup.
	askers int32

	mu      sync.Mutex
	closed  bool
	pending sync.WaitGroup // questions under way; Add with mu held and not closed
	// latest, guarded by mu, has the latest answer of each voter that shows what it knows, or what must be
	// fixed. Silence does not replace such an answer.
	latest []answer
}

// newVoters returns voters at these addresses. Nothing is dialled before the first
// question.
func newVoters(life context.Context, who string, r resolver, addrs []string, option func(addr string) rueidis.ClientOption) *voters {
	v := &voters{resolver: r, who: who, addrs: addrs, conns: make([]lazyClient, len(addrs)), life: life, askers: 3}
	v.latest = v.unanswered()
	for i, addr := range addrs {
		v.conns[i].option, v.conns[i].turn = option(addr), make(chan struct{}, 1)
	}
	return v
}

// lazyClient is a client that dials when it is used, and again whenever its connection
// has ended.
type lazyClient struct {
	option rueidis.ClientOption
	asked  atomic.Int32  // questions under way
	turn   chan struct{} // has room for the one that dials: virtual time passes while others wait for it, as it does not with a mutex
	client rueidis.Client
}

func (l *lazyClient) get() rueidis.Client {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.client == nil {
		l.client, _ = rueidis.NewClient(l.option) // with ForceSingleClient there is one even if the dial has failed
	}
	return l.client
}

// answer is what one voter said.
type answer struct {
	voter int
	view
	err error // names the voter
}

// at returns the votes in the answers for a slot; for Sentinels, any slot will do.
func (v *voters) at(slot int, answers []answer) []vote {
	votes := make([]vote, len(answers))
	for i, a := range answers {
		votes[i].answer = a
		if a.err != nil {
			continue
		}
		term, err := v.term(a.view, slot)
		if host, port, _ := net.SplitHostPort(term.Addr); err == nil && host == "" { // a cluster node that has not learned its own address
			host, _, _ = net.SplitHostPort(v.addrs[i])
			term.Addr = net.JoinHostPort(host, port)
		}
		if err != nil {
			err = v.explain(v.addrs[i], err)
		}
		votes[i].term, votes[i].err = term, err
	}
	return votes
}

// vote is an answer, and the term that it names.
type vote struct {
	answer
	term Term
}

// unanswered returns the answers before any voter has answered.
func (v *voters) unanswered() []answer {
	answers := make([]answer, len(v.addrs))
	for i := range answers {
		answers[i] = v.silent(i)
	}
	return answers
}

func (v *voters) silent(i int) answer { return answer{voter: i, err: noAnswer(v.addrs[i], errSilent)} }

// poll asks all voters at once. The channel has room for every answer and is never closed;
// a reader may leave early. The questions continue: the slowest voter is heard as well.
func (v *voters) poll() <-chan answer {
	answers := make(chan answer, len(v.addrs))
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.addrs {
		if v.closed {
			answers <- answer{voter: i, err: wire.ErrClosed}
			continue
		}
		conn := &v.conns[i]
		if conn.asked.Load() >= v.askers { // a user's dial function may hang
			answers <- v.silent(i)
			continue
		}
		conn.asked.Add(1)
		v.pending.Go(func() {
			defer conn.asked.Add(-1)
			answers <- v.question(i)
		})
	}
	return answers
}

// question asks one voter.
func (v *voters) question(i int) answer {
	ctx, cancel := context.WithTimeout(v.life, askMax)
	defer cancel()
	a := answer{voter: i, err: wire.ErrConnecting}
	if client := v.conns[i].get(); client != nil {
		a.view, a.err = v.ask(ctx, client)
	}
	if a.err != nil {
		a.err = v.explain(v.addrs[i], a.err)
	}
	if _, permanent := configOf(a.err); a.err == nil || permanent {
		v.mu.Lock()
		v.latest[i] = a
		v.mu.Unlock()
	}
	return a
}

// resolve returns the term that a majority of the voters names, of this slot if they are nodes of a cluster. One voter
// alone is not enough: as long as it is cut off, it names the old master. Any error but a ConfigError passes by itself.
//
// Before the first connection, resolve also waits for the others, for a moment, and refuses a
// list that names a voter twice. Later it does not refuse such a list, and counts the voter
// once: a name may lead to another voter for a while, and no lease must end for that.
func (v *voters) resolve(ctx context.Context, slot int, first bool) (Term, error) {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	answers := v.unanswered()
	incoming := v.poll()
	var patience <-chan time.Time // from the majority on; nil before it
	var named Term
	for range v.addrs {
		select {
		case a := <-incoming:
			answers[a.voter] = a
		case <-patience:
			return named, nil
		case <-ctx.Done():
			if patience != nil {
				return named, nil
			}
			return Term{}, v.failed(v.at(slot, answers))
		}
		votes, faults := v.count(v.at(slot, answers))
		if i := slices.IndexFunc(faults, isDouble); first && i >= 0 {
			return Term{}, faults[i]
		}
		for term, n := range votes {
			switch {
			case n <= len(v.addrs)/2:
			case !first:
				return term, nil
			case patience == nil:
				named, patience = term, time.After(firstPatience)
			}
		}
	}
	if patience != nil {
		return named, nil
	}
	return Term{}, v.failed(v.at(slot, answers))
}

// named returns the term that a majority names.
func (v *voters) named(votes []vote) (term Term, ok bool) {
	counts, _ := v.count(votes)
	for term, n := range counts {
		if n > len(v.addrs)/2 {
			return term, true
		}
	}
	return Term{}, false
}

// firstPatience is how much longer the first question waits for the voters beyond a majority.
const firstPatience = 250 * time.Millisecond

// faults returns what must be fixed at the voters, by their latest answers. None of it keeps a
// majority from naming the master, so nothing else shows it.
func (v *voters) faults(slot int) (faults []error) {
	v.mu.Lock()
	answers := slices.Clone(v.latest)
	v.mu.Unlock()
	_, all := v.count(v.at(slot, answers))
	known := map[string]bool{}
	for i, err := range all {
		config, ok := configOf(err)
		if !ok {
			config = cmp.Or(answers[i].unidentified, answers[i].late)
		}
		if config != nil && !known[config.Error()] {
			known[config.Error()] = true
			faults = append(faults, config)
		}
	}
	return faults
}

// size returns how many voters the group has, by the latest answers.
func (v *voters) size() (most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.latest {
		most = max(most, v.latest[i].size)
	}
	return most
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
