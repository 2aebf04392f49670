package wire

import (
	"strconv"
	"strings"
)

// Companion keys contain a byte that is not valid UTF-8. Lock names and prefixes are
// valid UTF-8, so no valid name of any prefix can collide with them. They begin with the
// prefix, for ACL patterns; a hash tag in the prefix covers them all.
const (
	registerTag = "\xffr"
	baseTag     = "\xffb"
	hintTag     = "\xffh"
	guardTag    = "\xffg"
	listsTag    = "\xffl"
	inUseTag    = "\xffu"
	wakeTag     = "\xffw" // of channels
	// Behind the lock's key.
	queueTag   = "\xffq"
	watchTag   = "\xffn"
	readersTag = "\xffs"
	permitTag  = "\xffp"
	slotsTag   = "\xffo"
)

// LockKey returns the key of a lock: prefix and name and nothing else. So this package
// and other Redlock clients on the same key exclude each other.
func LockKey(prefix, name string) string { return prefix + name }

// QueueKey returns the key of the queue of a lock's waiters.
func QueueKey(lock string) string { return lock + queueTag }

// WatchKey returns the key that exists while some of a lock's waiters have just been woken: it
// has the place of the middle one of them.
func WatchKey(lock string) string { return lock + watchTag }

// ReadersKey returns the key of the set of the readers that have a lock together.
func ReadersKey(lock string) string { return lock + readersTag }

// FamilyKey returns the key that the slots of a name share: their queue belongs to it, and a message to all waiters
// names it.
func FamilyKey(lock string) string { return lock + permitTag }

// SlotKey returns the key of the lock of a slot, counted from 0.
func SlotKey(lock string, slot int) string { return FamilyKey(lock) + strconv.Itoa(slot) }

// SlotOf splits the key of a slot, or of a family, into the key of the name and the slot. The slot is −1 for a family,
// and ok is false for any other key.
func SlotOf(key string) (lock string, slot int, ok bool) {
	lock, digits, ok := strings.Cut(key, permitTag)
	if !ok || digits == "" {
		return lock, -1, ok
	}
	slot, err := strconv.Atoi(digits)
	return lock, slot, err == nil && slot >= 0 && strconv.Itoa(slot) == digits
}

// SlotsKey returns the key of the set of a name's slots that are taken, and of the waiters that may take one.
func SlotsKey(lock string) string { return FamilyKey(lock) + slotsTag }

// Companions returns the keys of a lock's queue, its watch and its set, which has its readers. A slot or a family has
// the companions that all slots of the name share.
func Companions(lock string) (queue, watch, set string) {
	setTag := readersTag
	if name, _, isSlot := SlotOf(lock); isSlot {
		lock, setTag = FamilyKey(name), slotsTag
	}
	all := lock + queueTag + lock + watchTag + lock + setTag // one allocation
	n := len(lock) + len(queueTag)
	return all[:n], all[n : 2*n], all[2*n:]
}

// RegistersKey returns the key of the sorted set that holds the fencing register of
// every lock of a prefix.
func RegistersKey(prefix string) string { return prefix + registerTag }

// BaseKey returns the key of the base: the least value of every register.
func BaseKey(prefix string) string { return prefix + baseTag }

// HintKey returns the key that exists while any lock of a prefix may have a queue.
func HintKey(prefix string) string { return prefix + hintTag }

// GuardKey returns the key of the restart guard's marker.
func GuardKey(prefix string) string { return prefix + guardTag }

// ListsKey returns the key of the lists of nodes that clients use, and of the node's
// identity.
func ListsKey(prefix string) string { return prefix + listsTag }

// InUseKey returns the key of the lists of nodes that clients announce, with the guard or without.
func InUseKey(prefix string) string { return prefix + inUseTag }

// WakeChannel returns the channel on which nodes wake the waiters of a Manager.
func WakeChannel(prefix, manager string) string { return prefix + wakeTag + manager }

// A ticket is a member of a lock's queue: 16 hex digits of the Manager that a node wakes, 16 of the wait, and then the
// grace: how long the node reserves the lock for it, in ms (see lua/queue.lua), and ReaderMark for a shared lease or
// PermitMark and the limit for a permit. The name of a ticket is only the 32 digits.
const (
	ManagerLen = 16
	TicketLen  = 32
)

// ReaderMark ends the ticket of a waiter that wants a shared lease.
const ReaderMark = 's'

// PermitMark is before the limit at the end of a ticket that waits for a permit.
const PermitMark = 'p'

// MostTickets is how many tickets NewInspect asks for.
const MostTickets = 8

// Ticket is what a queue shows of a waiter.
type Ticket struct {
	Manager    string // 16 hex digits, random for each Manager
	EnqueuedAt int64  // its place: when its call began, or came back after it had missed its turn; µs of the nodes' time
	Shared     bool   // it wants a shared lease
	Limit      int    // it wants a permit, of that many; 0 for none
}

// maxPlace is the largest place of a ticket. A score holds every integer up to it.
const maxPlace = 1 << 53

// parseTicket parses a member of a queue and its score. ok is false if it is not a ticket, such as
// a member of another program.
func parseTicket(member, score string) (t Ticket, ok bool) {
	place, err := strconv.ParseFloat(score, 64) // Redis 7.2 writes 1.8e+15
	if err != nil || !(place >= 0 && place <= maxPlace) || len(member) <= TicketLen || !IsOwner(member[:TicketLen]) {
		return Ticket{}, false
	}
	t = Ticket{Manager: member[:ManagerLen], EnqueuedAt: int64(place)}
	grace, limit, permit := strings.Cut(member[TicketLen:], string(PermitMark))
	if permit {
		t.Limit, ok = numberOf(limit, 9)
	} else {
		grace, t.Shared = strings.CutSuffix(grace, string(ReaderMark))
	}
	_, timed := numberOf(grace, 3)
	return t, timed && ok == permit
}

// numberOf reads a number above 0 as this package writes it, of that many digits at most.
func numberOf(text string, digits int) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n > 0 && len(text) <= digits && strconv.Itoa(n) == text
}

// PrefixShards reports whether a prefix is fit for hash slots: it puts all its keys into
// one slot, or does not affect the slot. A brace must belong to a whole hash tag.
func PrefixShards(prefix string) bool {
	return !strings.ContainsAny(prefix, "{}") || HashTag(prefix) != ""
}

// HashTag returns the hash tag of a key with its braces, "" if it has none: as Redis Cluster
// has it, the text between the first brace and the first closing one after it.
func HashTag(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return ""
	}
	if n := strings.IndexByte(key[open+1:], '}'); n > 0 {
		return key[open : open+n+2]
	}
	return ""
}
