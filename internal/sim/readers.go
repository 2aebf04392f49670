package sim

import (
	"math/rand/v2"
	"time"
)

// everybody is the owner of a lock that readers have.
const everybody = ^uint32(0)

// reader is a member of the set.
type reader struct {
	owner uint32 // of an attempt or a lease; or the ticket of a waiter that was woken
	woken bool   // the lock waits for that ticket, as if it read already
	ends  int64  // ms of the node's clock
	made  uint32 // how often the lock had been made when it joined. For the judge
}

// maxReaders bounds the set. It leaves room for all clients, and for as many that have crashed.
const maxReaders = 4 * maxClients

// readers is the set. It is lost with its own end, which is later than the lock's.
type readers struct {
	members [maxReaders]reader
	count   int
	ends    int64
	made    uint32 // how often a lock of readers was made. For the judge
	probe   probe
}

// probe asks a writer that bars readers for a sign of life.
type probe struct {
	ticket uint32 // 0 for none
	told   bool   // to ask again
	since  int64  // ms of the node's clock
}

// clear drops the members.
func (s *readers) clear() { s.count, s.probe = 0, probe{} }

// find returns the index of a member, or -1.
func (s *readers) find(owner uint32, woken bool) int {
	for i := range s.count {
		if r := &s.members[i]; r.owner == owner && r.woken == woken {
			return i
		}
	}
	return -1
}

// drop removes a member, and reports whether there was one.
func (s *readers) drop(owner uint32, woken bool) bool {
	i := s.find(owner, woken)
	if i < 0 {
		return false
	}
	s.count--
	s.members[i] = s.members[s.count]
	return true
}

// dropEnded removes the members that have ended.
func (s *readers) dropEnded(wall time.Duration) {
	for i := s.count - 1; i >= 0; i-- {
		if s.members[i].ends <= wall.Milliseconds() {
			s.count--
			s.members[i] = s.members[s.count]
		}
	}
}

// put adds a member, or moves its end. A full set drops the one that ends first.
func (s *readers) put(owner uint32, woken bool, ends int64) {
	i := s.find(owner, woken)
	if i < 0 {
		if i = s.count; i == maxReaders {
			i = s.first()
		} else {
			s.count++
		}
		s.members[i].made = s.made
	}
	s.members[i] = reader{owner: owner, woken: woken, ends: ends, made: s.members[i].made}
}

// first returns the index of the member that ends first.
func (s *readers) first() (first int) {
	for i := range s.count {
		if s.members[i].ends < s.members[first].ends {
			first = i
		}
	}
	return first
}

// last returns the member that ends last, the zero reader for none.
func (s *readers) last() (last reader) {
	for i := range s.count {
		if s.members[i].ends > last.ends {
			last = s.members[i]
		}
	}
	return last
}

// has reports whether a member has not ended.
func (s *readers) has(owner uint32, woken bool, wall time.Duration) bool {
	i := s.find(owner, woken)
	return i >= 0 && s.members[i].ends > wall.Milliseconds()
}

// reads reports whether a member reads: not all are woken waiters that have not come yet.
func (s *readers) reads(wall time.Duration) bool {
	for _, r := range s.members[:s.count] {
		if !r.woken && r.ends > wall.Milliseconds() {
			return true
		}
	}
	return false
}

// readership holds the clients that read. It draws from a generator of its own.
type readership struct {
	pcg     rand.PCG
	clients uint8 // one bit for each
}

// readRuns is N where one of N runs has readers.
const readRuns = 4

// draw draws which clients read: in every run if always, else in one of readRuns runs, without a planted bug.
func (r *readership) draw(p *Params, clients int, always bool) {
	*r = readership{}
	r.pcg.Seed(uint64(p.Seed), 0x5eade5)
	if !always && (p.Mutation != 0 || r.pcg.Uint64()%readRuns != 0) {
		return
	}
	of := 1 + r.pcg.Uint64()%3 // fourths
	for i := range clients {
		if r.pcg.Uint64()%4 < of {
			r.clients |= 1 << i
		}
	}
}

// has reports whether a client is one of the readers.
func (r *readership) has(client int8) bool { return r.clients&(1<<client) != 0 }
