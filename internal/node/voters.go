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
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// voters are those who choose the master of a group, with a connection to each.
type voters struct {
	who   string // in the plural
	addrs []string
	conns []lazyClient
	life  context.Context // of the node

	mu      sync.Mutex
	closed  bool
	pending sync.WaitGroup // questions under way; Add with mu held and not closed
	// latest, guarded by mu, has the latest answer of each voter that shows what it knows, or what has to be
	// fixed. Silence does not replace such an answer.
	latest []answer
}

// newVoters returns voters at these addresses. Nothing is dialled before the first
// question.
func newVoters(life context.Context, who string, addrs []string, option func(addr string) rueidis.ClientOption) *voters {
	v := &voters{who: who, addrs: addrs, conns: make([]lazyClient, len(addrs)), life: life}
	v.latest = v.unanswered()
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

// view is what one voter knows of the group.
type view struct {
	term  Term
	id    string   // of the voter, the same at each of its addresses; "" if it is not allowed to say it
	peers []string // ids of the others that it knows, perhaps with its own
	size  int      // how many voters it knows, itself included
	// unidentified is why id or peers are unknown. Without an id, two addresses of this voter
	// would count as two.
	unidentified *wire.ConfigError
}

// strange reports whether neither of two voters knows the other: they choose the masters of
// two groups.
func (a view) strange(b view) bool {
	return a.id != "" && b.id != "" && a.unidentified == nil && b.unidentified == nil && !slices.Contains(a.peers, b.id) && !slices.Contains(b.peers, a.id)
}

// answer is what one voter said.
type answer struct {
	voter int
	view
	err error // names the voter
}

// unanswered returns the answers of voters none of which has answered.
func (v *voters) unanswered() []answer {
	answers := make([]answer, len(v.addrs))
	for i := range answers {
		answers[i] = v.silent(i)
	}
	return answers
}

func (v *voters) silent(i int) answer { return answer{voter: i, err: noAnswer(v.addrs[i], errSilent)} }

// poll asks all voters at once. The channel has room for every answer and is never closed;
// a reader may leave early. The questions go on: the slowest voter is heard as well.
func (g *group) poll() <-chan answer {
	v := g.voters
	answers := make(chan answer, len(v.addrs))
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.addrs {
		if v.closed {
			answers <- answer{voter: i, err: wire.ErrClosed}
			continue
		}
		conn := &v.conns[i]
		if conn.asked.Load() >= askers { // a user's dial function may hang
			answers <- v.silent(i)
			continue
		}
		conn.asked.Add(1)
		v.pending.Go(func() {
			defer conn.asked.Add(-1)
			answers <- g.question(i)
		})
	}
	return answers
}

// question asks one voter.
func (g *group) question(i int) answer {
	v := g.voters
	ctx, cancel := context.WithTimeout(v.life, maxDial)
	defer cancel()
	a := answer{voter: i, err: wire.ErrConnecting}
	if client := v.conns[i].get(); client != nil {
		a.view, a.err = g.ask(ctx, client)
	}
	if host, port, _ := net.SplitHostPort(a.term.Addr); a.err == nil && host == "" { // a cluster node that has not learnt its own address
		host, _, _ = net.SplitHostPort(v.addrs[i])
		a.term.Addr = net.JoinHostPort(host, port)
	}
	if a.err != nil {
		a.err = g.explain(v.addrs[i], a.err)
	}
	if _, permanent := configOf(a.err); a.err == nil || permanent {
		v.mu.Lock()
		v.latest[i] = a
		v.mu.Unlock()
	}
	return a
}

// resolve returns the term that a majority of the voters names. One alone is not enough: as
// long as it is cut off, it names the old master. Any error but a ConfigError passes by
// itself.
//
// Before the first connection, resolve also waits for the others, for a moment, and refuses a
// list that names a voter twice. Later it does not refuse such a list, and counts the voter
// once: a name may lead to another voter for a while, and no lease has to end for that.
func (g *group) resolve(ctx context.Context) (Term, error) {
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	v := g.voters
	first := g.used() == Term{}
	answers := v.unanswered()
	incoming := g.poll()
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
			return Term{}, v.failed(answers)
		}
		votes, faults := v.count(answers)
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
	return Term{}, v.failed(answers)
}

// firstPatience is how much longer the first question waits for the voters beyond a majority.
const firstPatience = 250 * time.Millisecond

// count counts the votes for each term, and returns why each of the voters has none, or is of
// another group than most. A voter that is listed twice has one vote.
func (v *voters) count(answers []answer) (votes map[Term]int, faults []error) {
	votes, faults = map[Term]int{}, make([]error, len(answers))
	seen := map[string]int{}
	for i, a := range answers {
		if faults[i] = a.err; a.err != nil {
			continue
		}
		if j, again := seen[a.id]; again && a.id != "" {
			faults[i] = &doubleError{wire.ConfigError{
				Problem: fmt.Sprintf("%s and %s lead to one of the %s (id %s)", v.addrs[j], v.addrs[i], v.who, a.id),
				Fix:     "list each once, and each under one address: one alone would be a majority",
			}}
			continue
		}
		seen[a.id] = i
		votes[a.term]++
	}
	v.findStrangers(answers, faults)
	return votes, faults
}

// findStrangers adds the faults of voters that are not of the group to which most belong. The
// terms that they name do not matter: those of one group may differ during a failover.
func (v *voters) findStrangers(answers []answer, faults []error) {
	best, fewest := 0, len(answers)
	for i := range answers {
		strangers := 0
		for j := range answers {
			if faults[i] == nil && faults[j] == nil && i != j && answers[i].strange(answers[j].view) {
				strangers++
			}
		}
		if faults[i] == nil && strangers < fewest {
			best, fewest = i, strangers
		}
	}
	for i, a := range answers {
		if faults[i] == nil && i != best && a.strange(answers[best].view) {
			faults[i] = &wire.ConfigError{
				Problem: fmt.Sprintf("the %s at %s and %s are of two groups: neither knows the other", v.who, v.addrs[best], v.addrs[i]),
				Fix:     "list those of one group; a second group is a node of its own",
			}
		}
	}
}

// doubleError is the ConfigError of a voter that is listed twice.
type doubleError struct{ wire.ConfigError }

// Unwrap returns the ConfigError.
func (e *doubleError) Unwrap() error { return &e.ConfigError }

func isDouble(err error) bool {
	var double *doubleError
	return errors.As(err, &double)
}

// faults returns what has to be fixed at the voters, by their latest answers. None of it keeps a
// majority from naming the master, so nothing else shows it.
func (v *voters) faults() (faults []error) {
	v.mu.Lock()
	answers := slices.Clone(v.latest)
	v.mu.Unlock()
	_, all := v.count(answers)
	known := map[string]bool{}
	for i, err := range all {
		config, ok := configOf(err)
		if !ok {
			config = answers[i].unidentified
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

func configOf(err error) (config *wire.ConfigError, ok bool) {
	ok = errors.As(err, &config)
	return config, ok
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

// errSilent stands for each way in which an answer may fail to come in time, a dial that takes
// too long as well, so that one outage has one text.
var errSilent error = silence(maxDial)

// noAnswer returns the error of a voter whose answer has not come.
func noAnswer(addr string, err error) error {
	var slow interface{ Timeout() bool }
	if errors.As(err, &slow) && slow.Timeout() {
		err = errSilent
	}
	return fmt.Errorf("%s: %w", addr, opaque(err))
}

// failed returns the error for a question that no majority has answered with one voice. If no
// majority is left without those that have to be fixed, it returns a ConfigError.
func (v *voters) failed(answers []answer) error {
	votes, faults := v.count(answers)
	var first *wire.ConfigError
	var texts []string
	configs := 0
	const fix = "; look at them, if this lasts"
	for _, err := range faults {
		if config, ok := configOf(err); ok {
			if configs++; first == nil {
				first = config
			}
		}
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	switch {
	case len(v.addrs)-configs <= len(v.addrs)/2:
		return first
	case len(texts) == 0:
		return fmt.Errorf("the %d %s do not agree on a master: %s%s", len(v.addrs), v.who, describe(votes), fix)
	default:
		return fmt.Errorf("no majority of the %d %s names a master: %s%s", len(v.addrs), v.who, strings.Join(texts, "; "), fix)
	}
}
