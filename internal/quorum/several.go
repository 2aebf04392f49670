package quorum

// MaxSeveral is how many names one call may ask for.
const MaxSeveral = 16

// Several decides how a call gets several names, all of them or none. All callers have the names
// in one order. A call asks at once for all that it lacks. It keeps those before the first refused
// one, gives the others back, and waits for that one. So it waits only for a name behind all that
// it holds, and callers cannot wait for each other in a circle (spec/several.pml; the order is
// the method of Havender, "Avoiding deadlock in multitasking systems", 1968). Names are given by their
// place in the order. It is not safe for concurrent use.
type Several struct{ all, held Set }

// NewSeveral returns the decisions of a call that holds none of its names.
func NewSeveral(names int) Several { return Several{all: All(names)} }

// Missing returns the names to ask for.
func (s *Several) Missing() Set { return s.all &^ s.held }

// Lost records that the call no longer holds a name.
func (s *Several) Lost(name int) { s.held = s.held.Without(name) }

// Granted records that the call holds a name for which it has waited.
func (s *Several) Granted(name int) { s.held = s.held.With(name) }

// Tried takes which of the missing names were granted. It returns the names to give back, and the
// one to wait for, -1 for none: then the call holds all names.
func (s *Several) Tried(granted Set) (back Set, wait int) {
	s.held |= granted
	missing := s.Missing()
	if missing == 0 {
		return 0, -1
	}
	wait = missing.First()
	back = s.held &^ All(wait)
	s.held &^= back
	return back, wait
}
