package sim

import (
	"math/rand/v2"
	"time"
)

// This file is the slots of a name, as a node has them, and which clients ask for permits.

// maxPermits bounds the permits of a run, and slotIDs the slots: they are counted from 1 on, and a planted bug
// asks for one more.
const (
	maxPermits = 3
	slotIDs    = maxPermits + 2
)

// permitRuns is N where one of N runs without readers and handles has permits.
const permitRuns = 5

// permits holds how many permits each client asks for. It draws from a generator of its own.
type permits struct {
	pcg     rand.PCG
	limit   int8 // the largest; 0 in a run without permits
	limits  [maxClients]int8
	granted bool                      // since the faults have stopped
	hungry  [maxClients]time.Duration // since then the client waits, and a slot below its limit is free. For the judge
	watched time.Duration             // until then the judge looks for them
}

// draw draws how many permits each client asks for. may means that the run has no other guests, and always that it has
// a planted bug of permits. Every caller of a process waits for a permit by itself, so clients have one caller.
func (p *permits) draw(of *Params, c *config, may, always bool) {
	*p = permits{}
	p.pcg.Seed(uint64(of.Seed), 0x9e41)
	if !may || !always && (of.Mutation != 0 || p.pcg.Uint64()%permitRuns != 0) {
		return
	}
	p.limit = int8(1 + p.pcg.Uint64()%maxPermits)
	for i := range p.limits {
		p.limits[i] = p.limit
	}
	if p.pcg.Uint64()%3 == 0 { // one client lags behind a change of the limit
		p.limits[1] = int8(1 + p.pcg.Uint64()%uint64(p.limit))
	}
	c.callers, c.clients = 1, max(c.clients, int(p.limit)+1+int(p.pcg.Uint64()%2))
}

// form is what the value of a lock shows in addition to its owner. A value that is not ownedForm begins like another owner's,
// so the owner's earlier requests find another owner.
type form uint8

const (
	ownedForm    form = iota
	revokedForm       // an operator has revoked the lease
	detachedForm      // the lease was detached, and the lock is kept for the client that resumes it
)

// lot is a lock and its register.
type lot struct {
	owner    uint32 // 0: no lock
	form     form
	shown    int64 // the token in the lock's value: the position that its attempt moved the register to, or 0
	expires  int64 // ms of the node's clock
	register int64 // position of the name, µs; 0 before the first move and after a trim
}

// maxRights bounds the waiters that are let in.
const maxRights = 4 * maxClients

// slots are the lots of a node other than at, the lot of the slot on which its script works, or has worked last.
type slots struct {
	lots   [slotIDs]lot
	in     int8 // the slot of at
	rights [maxRights]right
	let    int // how many rights there are
}

// right is a waiter that is let in.
type right struct {
	ticket uint32
	ends   int64 // ms of the node's clock
}

// turnTo makes at the lot of a slot.
func (s *slots) turnTo(at *lot, slot int8) {
	if s.in != slot {
		s.lots[s.in] = *at
		s.in, *at = slot, s.lots[slot]
	}
}

// of returns the lot of a slot.
func (s *slots) of(at *lot, slot int8) *lot {
	if slot == s.in {
		return at
	}
	return &s.lots[slot]
}

// expire drops the locks of the other slots that have ended.
func (s *slots) expire(wall time.Duration) {
	for k := range s.lots {
		if l := &s.lots[k]; int8(k) != s.in && l.owner != 0 && wall.Milliseconds() >= l.expires {
			*l = lot{register: l.register}
		}
	}
}

// vacancies returns how many of the slots up to limit are free.
func (s *slots) vacancies(at *lot, limit int8) (count int) {
	for k := int8(1); k <= limit; k++ {
		if s.of(at, k).owner == 0 {
			count++
		}
	}
	return count
}

// vacancy returns a free slot from first on, after skipping others of them; 0 for none.
func (s *slots) vacancy(at *lot, first, limit int8, others int) int8 {
	for i := range limit {
		if k := (max(first, 1)-1+i)%limit + 1; s.of(at, k).owner == 0 {
			if others == 0 {
				return k
			}
			others--
		}
	}
	return 0
}

// soonest returns how long the slot that ends first lives, ms; -1 if none is taken.
func (s *slots) soonest(at *lot, limit int8, wall time.Duration) int64 {
	left := int64(-1)
	for k := int8(1); k <= limit; k++ {
		l := s.of(at, k)
		if lives := l.expires - wall.Milliseconds(); l.owner != 0 && (left < 0 || lives < left) {
			left = lives
		}
	}
	return left
}

// admit lets a waiter in until ends.
func (s *slots) admit(ticket uint32, ends int64) {
	s.revoke(ticket)
	if s.let == maxRights {
		s.let--
	}
	s.rights[s.let] = right{ticket, ends}
	s.let++
}

// admitted drops the rights that have ended, and returns how many are left.
func (s *slots) admitted(wall time.Duration) int {
	for i := s.let - 1; i >= 0; i-- {
		if s.rights[i].ends <= wall.Milliseconds() {
			s.revoke(s.rights[i].ticket)
		}
	}
	return s.let
}

// find returns the index of the right of a ticket, or -1.
func (s *slots) find(ticket uint32) int {
	for i := range s.let {
		if s.rights[i].ticket == ticket {
			return i
		}
	}
	return -1
}

// may reports whether a ticket has a right that has not ended.
func (s *slots) may(ticket uint32, wall time.Duration) bool {
	i := s.find(ticket)
	return ticket != 0 && i >= 0 && s.rights[i].ends > wall.Milliseconds()
}

func (s *slots) revoke(ticket uint32) {
	if i := s.find(ticket); i >= 0 {
		s.let--
		s.rights[i] = s.rights[s.let]
	}
}

// kept returns how long the last right lasts, ms; -1 if there is none.
func (s *slots) kept(wall time.Duration) (left int64) {
	left = -1
	for _, r := range s.rights[:s.let] {
		left = max(left, r.ends-wall.Milliseconds(), 0)
	}
	return left
}
