/*
 * Shared and exclusive leases: their exclusion, and the way from one to the other.
 *
 * Three nodes, a majority is two. Of three clients the first READERS read and the others write. On a node the
 * lock is one string: a writer's lease, a reservation for a writer, or "shared". Beside it is the set of the
 * readers. A reader counts only while the string says shared, and whoever makes it shared makes the set anew. A
 * shared string without readers is the reservation for readers: any of them may join. The string and the set may
 * be lost, each alone.
 *
 * A holder that writes may become a reader (downgrade). Its lease ends, and then its requests turn each string of
 * its own into a shared one, with itself in the set, in one step. Until then its strings count for the reader:
 * they keep out more. With ANSWERS only answers to these requests count, but a release of the old lease may
 * arrive late.
 *
 * Any request may arrive at any time, be lost or be repeated, and so may its answer. A reservation may be made
 * whenever the node has no lease, for anybody, and may end at any time (queues and wake-ups only decide for whom).
 * What keeps a holder's vote stays as long as the vote counts; only of a holder of all nodes one node may lose it.
 * A waiting client may lose any vote. Clients give up or die at any time; what they left ends at any time, and
 * their late requests still arrive, heals among them. Node 0 restarts once: empty, or with the set and without
 * the string. It is in quarantine until each vote that it may have forgotten is over or has been restored: that
 * is what the length of the quarantine (at least TTL and lock delay) gives.
 *
 * Claim: no writer is valid beside another client.
 */
#define NODES 3
#define CLIENTS 3
#ifndef READERS
#define READERS 2
#endif
#define BIT(c) (1 << (c))

#define NOTHING 0
#define WRITER(c) (1 + (c))
#define SHARED 4
#define RESERVED(c) (5 + (c))
#define ISRESERVED(v) ((v) > SHARED)
byte lock[NODES];	/* the string */
byte set[NODES];	/* readers, or old ones while the string does not say shared */
#define WAITS 0
#define HOLDS 1
#define DONE 2
byte phase[CLIENTS];
byte vote[CLIENTS];	/* bit n: the client counts node n's vote */
#define HASVOTE(c, n) ((vote[c] >> (n)) & 1)
#define MAJORITY(v) ((v) == 3 || (v) == 5 || (v) == 6 || (v) == 7)
byte turned;		/* the writers that have become readers */
#define TURNED(c) ((turned >> (c)) & 1)
#define WROTE(c) ((c) >= READERS)
#define READS(c) (!WROTE(c) || TURNED(c))
#define HEALTHY 0
#define QUARANTINED 1
#define OVER 2
byte guard;
hidden byte x;
#define VOTING(n) ((n) != 0 || guard != QUARANTINED)

#define HASREADER(c, n) (lock[n] == SHARED && (set[n] & BIT(c)))
#ifdef ANSWERS
#define KEEPS(c, n) ((lock[n] == WRITER(c) && !TURNED(c)) || HASREADER(c, n))
#else
#define KEEPS(c, n) (lock[n] == WRITER(c) || HASREADER(c, n))
#endif

inline open(n)
{
	if
	:: lock[n] != SHARED ->
		lock[n] = SHARED;
#ifndef MUTANT_OLD_READERS_COUNT_AGAIN	/* Who makes the lock shared does not make the set anew. */
		set[n] = 0
#endif
	:: else
	fi
}
inline join(c, n)
{
	open(n);
	set[n] = set[n] | BIT(c)
}

/* Acquisitions. The answer arrives if answered. */
#ifdef MUTANT_WRITER_IGNORES_READERS	/* A writer takes a lock that readers have. */
#define FREEFORWRITER(c, n) (lock[n] == NOTHING || lock[n] == RESERVED(c) || lock[n] == WRITER(c) || lock[n] == SHARED)
#else
#define FREEFORWRITER(c, n) (lock[n] == NOTHING || lock[n] == RESERVED(c) || lock[n] == WRITER(c))
#endif
#ifdef MUTANT_READER_JOINS_A_WRITER	/* A reader takes a lock that a writer has. */
#define FREEFORREADER(c, n) true
#else
#define FREEFORREADER(c, n) (lock[n] == NOTHING || lock[n] == SHARED || lock[n] == WRITER(c))
#endif
inline count(c, n, answered)
{
	if
	:: answered && phase[c] == WAITS -> vote[c] = vote[c] | BIT(n)
	:: else
	fi
}
#define MAYWRITE(c, n) (WROTE(c) && VOTING(n) && FREEFORWRITER(c, n))
inline acquire(c, n, answered)
{
	lock[n] = WRITER(c);
	count(c, n, answered && !TURNED(c))
}
#define MAYREAD(c, n) (READS(c) && VOTING(n) && FREEFORREADER(c, n))
inline share(c, n, answered)
{
	join(c, n);
	count(c, n, answered)
}

/* An extension of a reader turns its own string into a shared one; else it has to find the reader. */
#ifdef MUTANT_READERS_COUNT_WITHOUT_STRING	/* It looks at the set alone. */
#define FINDS(c, n) (set[n] & BIT(c))
#else
#ifdef MUTANT_EXTENSION_JOINS	/* It adds the reader to any shared lock. */
#define FINDS(c, n) (lock[n] == SHARED)
#else
#define FINDS(c, n) HASREADER(c, n)
#endif
#endif
#define MAYTURN(c, n) (READS(c) && lock[n] == WRITER(c))
#define MAYEXTEND(c, n) (phase[c] == HOLDS && !HASVOTE(c, n) && (READS(c) -> FINDS(c, n) : lock[n] == WRITER(c)))
inline extend(c, n)
{
#ifdef MUTANT_EXTENSION_JOINS
	set[n] = set[n] | BIT(c);
#endif
	vote[c] = vote[c] | BIT(n)
}

/* A heal restores what a node has lost, while the lease is valid. It takes the place of a reservation for a
   writer. A node in quarantine restores only a vote that this lease still counts. */
#ifdef MUTANT_HEAL_IS_A_NEW_VOTE
#define RESTORES(c, n) true
#else
#define RESTORES(c, n) (VOTING(n) || HASVOTE(c, n))
#endif
#ifdef MUTANT_READERS_HEAL_IGNORES_WRITERS	/* A reader's heal takes a writer's lock. */
#define ROOMFORREADER(c, n) true
#else
#define ROOMFORREADER(c, n) (FREEFORREADER(c, n) || ISRESERVED(lock[n]))
#endif
#ifdef MUTANT_OLD_HEAL_TAKES_THE_LOCK	/* A late heal or raise of the old lease finds its owner among the readers. */
#define ROOMFORWRITER(c, n) (lock[n] == NOTHING || lock[n] == WRITER(c) || ISRESERVED(lock[n]) || HASREADER(c, n))
#else
#define ROOMFORWRITER(c, n) (lock[n] == NOTHING || lock[n] == WRITER(c) || ISRESERVED(lock[n]))
#endif
#define MAYHEAL(c, n) (RESTORES(c, n) && (phase[c] == DONE || (phase[c] == HOLDS && (!KEEPS(c, n) || !HASVOTE(c, n)))))
inline heal(c, n)	/* of a reader */
{
	join(c, n);
	vote[c] = (phase[c] == HOLDS -> vote[c] | BIT(n) : vote[c])
}
#define MAYHEALWRITER(c, n) (WROTE(c) && ROOMFORWRITER(c, n) && (MAYHEAL(c, n) || (TURNED(c) && RESTORES(c, n))))
inline healwriter(c, n)
{
	lock[n] = WRITER(c);
	vote[c] = (phase[c] == HOLDS && !TURNED(c) -> vote[c] | BIT(n) : vote[c])
}

inline release(c, n)
{
	if
	:: lock[n] == WRITER(c) -> lock[n] = NOTHING
#ifdef MUTANT_RELEASE_DELETES_THE_LOCK	/* A reader's release deletes the lock of all readers. */
	:: HASREADER(c, n) -> lock[n] = NOTHING
#else
	:: HASREADER(c, n) && set[n] == BIT(c) -> lock[n] = NOTHING
#endif
	:: else
	fi;
	set[n] = set[n] & ~BIT(c);
	vote[c] = vote[c] & ~BIT(n)
}
/* What the old lease of a reader must not do to what the reader counts. */
#ifdef MUTANT_DOWNGRADE_RELEASES	/* The end of the old lease sends releases, as other ends do. */
#define OLDRELEASES(c, n) (TURNED(c) && lock[n] == WRITER(c))
#else
#ifdef MUTANT_OLD_RELEASE_DELETES	/* A late release of the old lease, or an extension with an earlier end, finds its owner among the readers. */
#define OLDRELEASES(c, n) (TURNED(c) && HASREADER(c, n))
#else
#ifdef ANSWERS
#define OLDRELEASES(c, n) (TURNED(c) && lock[n] == WRITER(c))
#else
#define OLDRELEASES(c, n) false
#endif
#endif
#endif
#ifdef MUTANT_OLD_LEASE_LASTS	/* The old lease is valid until its strings have been turned. */
#define TURNSEARLY(c, n) (WROTE(c) && phase[c] == HOLDS && lock[n] == WRITER(c))
#else
#define TURNSEARLY(c, n) false
#endif
inline downgrade(c)
{
	turned = turned | BIT(c);
#ifdef ANSWERS
	phase[c] = WAITS; vote[c] = 0
#endif
}

/* Losses, and ends of what is not needed any more. */
#define MAYMISS(c, n) (!KEEPS(c, n) || phase[c] != HOLDS || !HASVOTE(c, n) || vote[c] == 7)
#define MAYLOSE(n) (MAYMISS(0, n) && MAYMISS(1, n) && MAYMISS(2, n))
inline miss(c, n)
{
	vote[c] = (KEEPS(c, n) -> vote[c] & ~BIT(n) : vote[c])
}
inline losestring(n)
{
	miss(0, n); miss(1, n); miss(2, n);
	lock[n] = NOTHING
}
inline loseset(n)
{
	if
	:: lock[n] == SHARED -> miss(0, n); miss(1, n); miss(2, n)
	:: else
	fi;
	set[n] = 0
}
inline losereader(c, n)
{
	if
	:: lock[n] == SHARED -> miss(c, n)
	:: else
	fi;
	set[n] = set[n] & ~BIT(c)
}

#ifdef MUTANT_RESERVATION_TAKES_A_LEASE	/* A lock that is not free is reserved for the next one. */
#define MAYRESERVE(n) true
#else
#define MAYRESERVE(n) (lock[n] == NOTHING || ISRESERVED(lock[n]) || (lock[n] == SHARED && set[n] == 0))
#endif
#ifdef MUTANT_RESERVATION_IS_A_VOTE
#define COUNTSRESERVATION(c, n) (phase[c] == WAITS && (READS(c) -> lock[n] == SHARED : lock[n] == RESERVED(c)))
#else
#define COUNTSRESERVATION(c, n) false
#endif

/* Every vote that node 0 may have forgotten is over or restored. */
#define SETTLED(c) (phase[c] == DONE || !HASVOTE(c, 0) || KEEPS(c, 0))
#ifdef MUTANT_QUARANTINE_TOO_SHORT
#define MAYEND true
#else
#define MAYEND (SETTLED(0) && SETTLED(1) && SETTLED(2))
#endif
/* A holder learns that node 0 has forgotten its vote. */
#define MAYLEARN(c) (phase[c] == HOLDS && vote[c] == 7 && !KEEPS(c, 0))

/* Nodes 1 and 2 are alike, so states in which they have changed places are one state. */
#define RANK(n) ((lock[n] * 8 + set[n]) * 8 + HASVOTE(0, n) * 4 + HASVOTE(1, n) * 2 + HASVOTE(2, n))
#define EXCHANGED(v) (((v) & 1) | (((v) & 2) << 1) | (((v) & 4) >> 1))
inline order()
{
	if
	:: RANK(1) > RANK(2) ->
		x = lock[1]; lock[1] = lock[2]; lock[2] = x;
		x = set[1]; set[1] = set[2]; set[2] = x;
		x = 0;
		vote[0] = EXCHANGED(vote[0]); vote[1] = EXCHANGED(vote[1]); vote[2] = EXCHANGED(vote[2])
	:: else
	fi
}

#define ALONE(c) (phase[c] == HOLDS && !READS(c))
inline settle()
{
	vote[0] = (phase[0] == DONE -> 0 : vote[0]);
	vote[1] = (phase[1] == DONE -> 0 : vote[1]);
	vote[2] = (phase[2] == DONE -> 0 : vote[2]);
	assert(!ALONE(0) || (phase[1] != HOLDS && phase[2] != HOLDS));
	assert(!ALONE(1) || (phase[0] != HOLDS && phase[2] != HOLDS));
	assert(!ALONE(2) || (phase[0] != HOLDS && phase[1] != HOLDS));
	order()
}

#define FORLINK(c, n) \
	:: d_step { MAYWRITE(c, n) -> acquire(c, n, 1) } \
	:: d_step { MAYWRITE(c, n) -> acquire(c, n, 0) } \
	:: d_step { MAYREAD(c, n) -> share(c, n, 1) } \
	:: d_step { MAYREAD(c, n) -> share(c, n, 0) } \
	:: d_step { MAYTURN(c, n) || TURNSEARLY(c, n) -> join(c, n) } \
	:: d_step { MAYEXTEND(c, n) -> extend(c, n) } \
	:: d_step { READS(c) && ROOMFORREADER(c, n) && MAYHEAL(c, n) -> heal(c, n) } \
	:: d_step { MAYHEALWRITER(c, n) -> healwriter(c, n) } \
	:: d_step { phase[c] != HOLDS -> release(c, n) } \
	:: d_step { OLDRELEASES(c, n) -> lock[n] = NOTHING } \
	:: d_step { COUNTSRESERVATION(c, n) -> vote[c] = vote[c] | BIT(n) } \
	:: d_step { (set[n] & BIT(c)) && MAYMISS(c, n) -> losereader(c, n) }
#define FORCLIENT(c) \
	:: d_step { phase[c] == WAITS && MAJORITY(vote[c]) -> phase[c] = HOLDS } \
	:: d_step { ALONE(c) -> downgrade(c) } \
	:: d_step { phase[c] != DONE -> phase[c] = DONE } \
	:: d_step { MAYLEARN(c) -> vote[c] = 6 } \
	FORLINK(c, 0) FORLINK(c, 1) FORLINK(c, 2)
#define FORNODE(n) \
	:: d_step { lock[n] != NOTHING && MAYLOSE(n) -> losestring(n) } \
	:: d_step { set[n] != 0 && MAYLOSE(n) -> loseset(n) } \
	:: d_step { MAYRESERVE(n) -> open(n) } \
	:: d_step { MAYRESERVE(n) && WROTE(1) -> lock[n] = RESERVED(1) } \
	:: d_step { MAYRESERVE(n) -> lock[n] = RESERVED(2) }

active proctype world()
{
end:	do
	:: atomic {
		if
		FORCLIENT(0)
		FORCLIENT(1)
		FORCLIENT(2)
		FORNODE(0) FORNODE(1) FORNODE(2)
		:: d_step { guard == HEALTHY -> guard = QUARANTINED; lock[0] = NOTHING; set[0] = 0 }
		:: d_step { guard == HEALTHY -> guard = QUARANTINED; lock[0] = NOTHING }
		:: d_step { guard == QUARANTINED && MAYEND -> guard = OVER }
		fi;
		d_step { settle() }
	   }
	od
}
