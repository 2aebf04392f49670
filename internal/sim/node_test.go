package sim

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A write-back must not be confirmed by a counter that stands above the token.
// The shortest story in which it gives one token twice, found by the
// simulation:
//
//  1. X is granted node 0 with counter 6 and node 1 with counter 5: its token
//     is 6, and node 1 has to be raised.
//  2. Node 1 loses the key of X (its clock jumps ahead and back). Y is granted
//     node 1 with counter 6 and node 2 with counter 6: its token is 6. It
//     works, and releases.
//  3. A second copy of X's acquire reaches node 1, and locks it with counter 7.
//  4. The write-back of X reaches node 1. The lock is X's, and the counter is
//     not below 6. If that is good enough, X is granted token 6 too.
func TestWriteBackIsRefusedAboveTheToken(t *testing.T) {
	for _, bug := range []Mutation{0, RaiseAbove} {
		w := newWorld()
		w.reset(Params{Nodes: 3, World: Anything, Span: Span, Mutation: bug})
		w.configure()
		w.config.guard = false
		wall := epoch
		for i, fence := range []int64{5, 4, 5} {
			w.nodes[i] = node{w: w, id: int8(i)}
			w.nodes[i].count(fence, wall)
		}
		send := func(i int, o op, owner uint32, number int64) (answer, int64) {
			m := message{op: o, owner: owner, number: number, after: micros(wall) + 1}
			a := w.nodes[i].execute(&m, wall)
			return a, m.number
		}
		const x, y = 1, 2
		claimX, claimY := quorum.NewClaim(3, true), quorum.NewClaim(3, true)
		vote := func(c *quorum.Claim, i int, owner uint32) quorum.Set {
			a, counter := send(i, acquire, owner, 1)
			if a != granted {
				t.Fatalf("node %d does not grant owner %d: %v", i, owner, a)
			}
			return c.Grant(i, counter)
		}

		vote(&claimX, 0, x)
		if raise := vote(&claimX, 1, x); !raise.Has(1) {
			t.Fatal("X does not have to raise node 1")
		}
		w.nodes[1].owner = 0
		vote(&claimY, 1, y)
		vote(&claimY, 2, y)
		if claimY.Outcome() != quorum.Won || claimY.Token() != 6 {
			t.Fatalf("Y: %v, token %d", claimY.Outcome(), claimY.Token())
		}
		send(1, release, y, claimY.Token())
		send(1, acquire, x, 1)
		a, _ := send(1, raise, x, claimX.Token())
		claimX.Raised(1, a == done)

		twice := claimX.Outcome() == quorum.Won && claimX.Token() == claimY.Token()
		if twice != (bug == RaiseAbove) {
			t.Errorf("with %q: X is %v with token %d, Y had %d", bug, claimX.Outcome(), claimX.Token(), claimY.Token())
		}
	}
}
