package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

func TestAReleaseFindsALossThatNoRenewalHasFound(t *testing.T) {
	const at, held, soon = clock.Validity(10 * time.Second), clock.Validity(20 * time.Second), clock.Validity(11 * time.Second)
	type window = quorum.Window[clock.Validity]
	type answer struct {
		node int
		what string // deleted, denied, unclear
		at   clock.Validity
	}
	deleted := func(node int) answer { return answer{node, "deleted", at} }
	denied := func(node int) answer { return answer{node, "denied", at} }
	unclear := func(node int) answer { return answer{node, "unclear", at} }
	for name, c := range map[string]struct {
		window     window
		answers    []answer
		lost, kept bool
	}{
		"one node has lost it":                     {window{held}, []answer{denied(0)}, true, false},
		"one node had it":                          {window{held}, []answer{deleted(0)}, false, true},
		"one node has not answered":                {window{held}, nil, false, false},
		"a release that was sent again":            {window{held}, []answer{unclear(0)}, false, true},
		"a key that may have ended by itself":      {window{soon}, []answer{{0, "denied", soon}}, false, true},
		"the same, a moment earlier":               {window{soon}, []answer{{0, "denied", clock.Validity(soon.Sub(1))}}, true, false},
		"two of three had it":                      {window{held, held, held}, []answer{deleted(0), deleted(2)}, false, true},
		"a minority has lost it":                   {window{held, held, held}, []answer{denied(0), deleted(1)}, false, false},
		"a minority, by all answers":               {window{held, held, held}, []answer{denied(0), deleted(1), deleted(2)}, false, true},
		"a majority has lost it":                   {window{held, held, held}, []answer{denied(0), denied(1)}, true, false},
		"the third never had it":                   {window{held, held, 0}, []answer{denied(2), deleted(1)}, false, false},
		"and one of the others has lost it":        {window{held, held, 0}, []answer{denied(1), denied(2)}, true, false},
		"a late vote of the third may still count": {window{held, held, 0}, []answer{denied(1)}, true, false},
		"and counts":                               {window{held, held, 0}, []answer{denied(1), deleted(2)}, false, false},
		"the third had lost it before, see heals":  {window{held, held, -held}, []answer{denied(2), denied(0)}, true, false},
		"the third's key had ended":                {window{held, held, at}, []answer{denied(2), deleted(0), deleted(1)}, false, true},
		"half of four is no majority for another":  {window{held, held, held, held}, []answer{denied(0), denied(1), deleted(2), deleted(3)}, false, true},
		"three of four are":                        {window{held, held, held, held}, []answer{denied(0), denied(1), denied(2)}, true, false},
		"a fourth that never had it":               {window{held, held, held, 0}, []answer{denied(0), denied(3), deleted(1)}, false, false},
		"two of five":                              {window{held, held, held, held, held}, []answer{denied(0), denied(1), unclear(2), deleted(3), deleted(4)}, false, true},
		"three of five":                            {window{held, held, held, held, held}, []answer{denied(0), denied(1), denied(4)}, true, false},
	} {
		r := machine(c.window).Release(at)
		for _, a := range c.answers {
			switch a.what {
			case "deleted":
				r.Deleted(a.node)
			case "denied":
				r.Denied(a.node, false, a.at)
			default:
				r.Unclear(a.node)
			}
		}
		assert.Equal(t, c.lost, r.Lost(), name)
		assert.Equal(t, c.kept, r.Kept(), name)
	}
}

// Whatever the nodes show and in whatever order: a lease that is known to be kept stays so, and it is lost
// exactly if the nodes that had the key are too few to keep another client from a majority.
func TestTheOrderOfTheAnswersToAReleaseDoesNotMatter(t *testing.T) {
	const at, held = 10 * time.Second, 20 * time.Second
	for n := 1; n <= 5; n++ {
		for world := range 1 << (2 * n) { // for each node, whether it was known to have the key, and whether it has
			window, had := make(quorum.Window[clock.Validity], n), 0
			for i := range n {
				if world>>i&1 != 0 {
					window[i] = clock.Validity(held)
				}
				had += world >> (n + i) & 1
			}
			for first := range n {
				r := machine(window).Release(clock.Validity(at))
				kept := false
				for k := range n {
					i := (first + k) % n
					if world>>(n+i)&1 != 0 {
						r.Deleted(i)
					} else {
						r.Denied(i, false, clock.Validity(at))
					}
					assert.False(t, kept && !r.Kept())
					kept = r.Kept()
					assert.False(t, kept && r.Lost())
				}
				assert.Equal(t, n-had >= quorum.Size(n), r.Lost())
				assert.NotEqual(t, kept, r.Lost())
			}
		}
	}
}

// machine returns a machine with a window. (A grant takes the window and fills it.)
func machine(window quorum.Window[clock.Validity]) *quorum.Machine {
	m := quorum.NewMachine(&quorum.Terms{Nodes: len(window), TTL: time.Minute}, make(quorum.Window[clock.Validity], len(window)), 0, 0, 0)
	quorum.SetWindow(&m, window)
	return &m
}
