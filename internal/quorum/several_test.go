package quorum

import (
	"math/rand/v2"
	"testing"
)

func TestACallForSeveralNamesWaitsOnlyBehindAllThatItHolds(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := 1 + r.IntN(MaxSeveral)
		s := NewSeveral(n)
		var held Set
		for range 50 {
			if name := r.IntN(n); r.IntN(8) == 0 && held.Has(name) {
				held = held.Without(name)
				s.Lost(name)
			}
			missing := s.Missing()
			if missing != All(n)&^held {
				t.Fatalf("seed %d: %b are missing, and %b are held", seed, missing, held)
			}
			granted := Set(r.Uint32()) & missing
			back, wait := s.Tried(granted)
			held = (held | granted) &^ back
			if wait < 0 {
				if held != All(n) || back != 0 {
					t.Fatalf("seed %d: through with %b of %d, and %b given back", seed, held, n, back)
				}
				continue
			}
			if held&^All(wait) != 0 || held != All(wait) {
				t.Fatalf("seed %d: waits for %d and holds %b", seed, wait, held)
			}
			if r.IntN(4) > 0 {
				s.Granted(wait)
				held = held.With(wait)
			}
		}
	}
}
