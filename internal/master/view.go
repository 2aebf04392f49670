package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Term is a stretch in which one server is the writable master of a group.
type Term struct {
	Addr  string // host:port of the master
	Epoch int64  // the group's own count: it grows with every change of the master
}

// view is what one voter knows of the group.
type view struct {
	named  Term     // by a Sentinel
	owners []owned  // of slots, by a cluster node
	id     string   // of the voter, the same at each of its addresses; "" if it is not allowed to say it
	peers  []string // ids of the others that it knows, perhaps with its own
	size   int      // how many voters it knows, itself included
	// unidentified is why id or peers are unknown. Without an id, two addresses of this voter
	// would count as two.
	unidentified *wire.ConfigError
	// late is why a Sentinel may name the old master until a failover ends.
	late *wire.ConfigError
}

// owned is a range of slots, and the master that owns it.
type owned struct {
	first, last int
	term        Term
	err         error // of a line that is not understood
}

// strange reports whether neither of two voters knows the other: they choose the masters of
// two groups.
func (a view) strange(b view) bool {
	return a.id != "" && b.id != "" && a.unidentified == nil && b.unidentified == nil && !slices.Contains(a.peers, b.id) && !slices.Contains(b.peers, a.id)
}

// resolver asks the voters that choose the master of a group. Its methods are safe for concurrent use.
type resolver interface {
	// ask returns what one voter knows.
	ask(ctx context.Context, client rueidis.Client) (view, error)
	// term returns the term that this knowledge names: of this slot, if the group is the owner of one.
	term(know view, slot int) (Term, error)
	// explain adds to an error the voter that it comes from, and the fix.
	explain(addr string, err error) error
}

// errSilent stands for every way in which an answer may be late, including a slow dial, so that one outage has one
// text.
var errSilent error = wire.Silence(askMax)

// noAnswer returns the error of a voter whose answer has not come.
func noAnswer(addr string, err error) error {
	var slow interface{ Timeout() bool }
	if errors.As(err, &slow) && slow.Timeout() {
		err = errSilent
	}
	return fmt.Errorf("%s: %w", addr, wire.Opaque(err))
}

// askMax is how long a question may take.
const askMax = 500 * time.Millisecond
