package cli

import (
	"cmp"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock"
)

// revokedReaders is the owner of a lock whose readers were revoked: the nodes then name none of them.
const revokedReaders = "00000000000000000000000000000000"

// called returns what a holder is called in a sentence. It is one of so many readers, or has the lock alone.
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

// cell returns what a holder is called in a table. Readers are counted: which of them is named changes.
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

// begun returns when the holder, or the reader that has been there for the longest time, has got the lock;
// zero if that is not known.
func begun(s quorumlock.Status) time.Time {
	switch {
	case s.Holder.Owner == revokedReaders:
		return time.Time{}
	case len(s.Holders) > 0:
		return s.Holders[0].Since
	}
	return s.Holder.Since
}

// sameHolder reports whether two states of a lock have one holder. Readers are one, also after a revocation, and
// a writer that continues as a reader is the same.
func sameHolder(a, b quorumlock.Status) bool {
	read := func(s quorumlock.Status) bool { return s.Readers > 0 || s.Holder.Owner == revokedReaders }
	return a.Holder.Owner == b.Holder.Owner || read(a) && read(b)
}
