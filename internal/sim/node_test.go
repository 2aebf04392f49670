package sim

import (
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A register that is already at the top must not confirm a raise. The shortest sequence
// in which that grants one token twice:
//
//  1. X proposes 6. Node 0 moves to 6; the clock of node 1 lets it move to 4
//     only. X must raise node 1 to 6.
//  2. Node 1 loses the key of X (its clock jumps ahead and back). Y proposes 6,
//     and moves nodes 1 and 2 to it: its token is 6. It works, and releases.
//  3. A second copy of X's acquire reaches node 1 and locks it. The node is ahead, at 6.
//  4. The raise of X reaches node 1. The lock is X's, and the register is not
//     below 6. If the node confirms the raise, X also gets token 6.
func TestRaiseIsRefusedAtTheTop(t *testing.T) {
	for _, bug := range []Mutation{0, RaiseAtTop} {
		w := newWorld()
		w.reset(Params{Nodes: 3, World: Anything, Span: Span, Mutation: bug})
		w.configure()
		w.config.guard = false
		w.config.ahead = time.Hour
		base := micros(epoch)
		for i := range 3 {
			w.nodes[i] = node{w: w, id: int8(i)}
			w.nodes[i].register = base + 2
		}
		clocks := [3]time.Duration{epoch, epoch - time.Hour + 5*time.Microsecond, epoch}
		send := func(i int, o op, owner uint32, t int64) (answer, message) {
			m := message{op: o, owner: owner, t: t, after: micros(epoch) + 1}
			a := w.nodes[i].execute(&m, clocks[i], 0)
			return a, m
		}
		const x, y = 1, 2
		top := base + 6
		ballotX, ballotY := quorum.NewBallot(3, true, top), quorum.NewBallot(3, true, top)
		vote := func(b *quorum.Ballot, i int, owner uint32) quorum.Set {
			a, m := send(i, opAcquire, owner, top)
			if a != granted {
				t.Fatalf("node %d does not grant owner %d: %v", i, owner, a)
			}
			return b.Grant(i, m.moved, m.before)
		}

		vote(&ballotX, 0, x)
		if raise := vote(&ballotX, 1, x); !raise.Has(1) {
			t.Fatal("X does not have to raise node 1")
		}
		w.nodes[1].unlock()
		clocks[1] = epoch
		vote(&ballotY, 1, y)
		vote(&ballotY, 2, y)
		if ballotY.Outcome() != quorum.OutcomeWon || ballotY.Top() != top {
			t.Fatalf("Y: %v, token %d", ballotY.Outcome(), ballotY.Top()-base)
		}
		send(1, opRelease, y, 0)
		send(1, opAcquire, x, top)
		a, m := send(1, opRaise, x, ballotX.Top())
		ballotX.Raised(1, m.before, a == done)

		twice := ballotX.Outcome() == quorum.OutcomeWon && ballotX.Top() == ballotY.Top()
		if twice != (bug == RaiseAtTop) {
			t.Errorf("with %q: X is %v with token %d, Y had %d",
				bug, ballotX.Outcome(), ballotX.Top()-base, ballotY.Top()-base)
		}
	}
}
