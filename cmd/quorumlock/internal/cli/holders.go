package cli

import (
	"cmp"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock"
)

// revokedReaders is the owner of a lock whose readers were revoked: the nodes then name no reader.
const revokedReaders = "00000000000000000000000000000000"

// called returns the name of a holder for a sentence. The holder is one of this number of readers, or has the lock
// alone.
func called(h quorumlock.Holder, readers int) string {
	name := cmp.Or(h.Label, "owner "+h.Owner)
	switch {
	case h.Owner == revokedReaders:
		return "readers whose leases were revoked"
	case readers == 0:
		return name
	case readers == 1:
		return "the reader " + name
	case readers == 2:
		return name + " and 1 other reader"
	}
	return name + " and " + strconv.Itoa(readers-1) + " other readers"
}

// cell returns the name of a holder for a table. Readers are counted, because the reader that is named changes.
func cell(h quorumlock.Holder, readers int) string {
	switch {
	case h.Owner == revokedReaders:
		return "revoked readers"
	case readers > 0:
		return countedReaders(readers)
	}
	return cmp.Or(h.Label, h.Owner, "-")
}

func countedReaders(n int) string {
	if n == 1 {
		return "1 reader"
	}
	return strconv.Itoa(n) + " readers"
}

// begun returns when the holder got the lock, or the reader that has it for the longest time; zero if that is unknown.
func begun(s quorumlock.Status) time.Time {
	switch {
	case s.Holder.Owner == revokedReaders:
		return time.Time{}
	case len(s.Holders) > 0:
		return s.Holders[0].Since
	}
	return s.Holder.Since
}

// sameHolder reports whether two states of a lock have one holder. Readers count as one, even after a revocation, and
// so does a writer that continues as a reader.
func sameHolder(a, b quorumlock.Status) bool {
	read := func(s quorumlock.Status) bool { return s.Readers > 0 || s.Holder.Owner == revokedReaders }
	return a.Holder.Owner == b.Holder.Owner || read(a) && read(b)
}
