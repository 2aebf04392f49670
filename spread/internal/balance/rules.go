package balance

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rules are the numbers of the method. All members of a group should have the same rules.
type Rules struct {
	TTL  time.Duration // of the leases
	Tick time.Duration // between two ticks, ±5 %
	// Settle is how long a member must hold its presence before it takes or asks for anything: after Redis was away,
	// the other members' presences are back by then, and the count is right.
	Settle time.Duration
	Gap    time.Duration // the shortest time between two rounds; it doubles up to a TTL while they achieve nothing
	// Leaving is how long a member looks for names of one that has left, four times as often: those that are free, and
	// those whose functions are about to return. In that time it asks no holder: that may have just taken such a
	// name.
	Leaving time.Duration
	// Wait is how long an asker waits: the ask reaches the holder with its next renewal, and the mark comes MarkAfter
	// later.
	Wait      time.Duration
	AskAfter  time.Duration // from queueing for a name to asking its holder, which gives only to a waiter
	MarkAfter time.Duration // a holder marks the name if its function still runs this long after its context ended
	MarkEvery time.Duration // between two marks of the name, in case one is lost, and between two looks at it
	// SecondLook is between two looks at a free name that seems to have a waiter: a live waiter has it by then.
	SecondLook time.Duration
	// LookAgain is how long a name must stay free before a member that has its share takes it: the members that list it
	// and have less get this time.
	LookAgain  time.Duration
	Dying      time.Duration // a lease with less time left was not renewed, and ends soon
	SweepEvery int           // ticks between two looks at one name while there is no round; three times as many for a member with its share
	DeafAfter  int           // waits in a row without a name from a holder, after which it is not asked
	DeafFor    time.Duration // how long at first; doubled up to 8 times as long
	AtOnce     int           // names that are asked for at one time
}

// Default returns the rules for a TTL.
func Default(ttl time.Duration) Rules {
	return Rules{
		TTL: ttl, Tick: 750 * time.Millisecond, Settle: time.Second, Gap: time.Second, Leaving: time.Second,
		Wait: ttl*2/5 + 1200*time.Millisecond, AskAfter: 100 * time.Millisecond, MarkAfter: 100 * time.Millisecond, MarkEvery: ttl / 3,
		SecondLook: time.Second, LookAgain: ttl, Dying: ttl / 2, SweepEvery: 2,
		DeafAfter: 2, DeafFor: 2 * ttl, AtOnce: 64,
	}
}

// chunk is how many of n names a member looks at in a tick.
func chunk(n int) int { return max(256, n/4) }

// Mark is a holder's ask to itself when it has consented and its function still runs: the name is about to be free.
const Mark = "spread1 yields"

// askText is the text with which a member that has p names asks for another one. The number makes it differ from the
// last one: a holder sees an equal text only once.
func askText(p int, number uint32, id string) string {
	return fmt.Sprintf("spread1 %d %08x %s", p, number, id)
}

// parseAsk returns how many names the asker had.
func parseAsk(text string) (p int, ok bool) {
	words := strings.SplitN(text, " ", 4)
	if len(words) < 4 || words[0] != "spread1" {
		return 0, false
	}
	p, err := strconv.Atoi(words[1])
	return p, err == nil && p >= 0
}
