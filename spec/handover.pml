/*
 * Hand-over through the queue: its safety. A reservation is not a vote, there is one
 * winner at a time, and passing on removes no lease.
 *
 * There are three nodes, and a majority is two. There are three clients, and each wants
 * the lock once. Any request may arrive at any time or be lost, and so may its answer.
 * Any wake-up may be lost, late, forged or repeated: a waiter may ask at any time, with
 * or without the lapsed flag, and any client may pass on at any time for any ticket. A
 * grace may end at any time. A client may die at any time, also while it waits. Its
 * late requests still arrive, and its keys expire. Keys of a live client do not expire
 * (tokens.pml and amnesia.pml model that they may). The queue of a node is a set of
 * tickets. On every node they are in the order of the clients' numbers, because
 * enqueuedAt is one number. A dead head is dropped, or is not recognised as dead.
 * waiters.pml models that waiters get the lock at all.
 *
 * Sources: a lock by a majority of Redis servers: redis.io, "Distributed Locks with
 * Redis"; a lock server that the clients' own deadlines guard: Burrows, "The Chubby
 * lock service", OSDI 2006.
 */

#define NODES 3
#define CLIENTS 3

/* A node: the lock (0 free, c + 1 a lease, 4 + c a reservation), and its tickets. */
#define LEASE(c) ((c) + 1)
#define RESERVED(c) (4 + (c))
byte lock[NODES];
byte queue[NODES];
#define BIT(c) (1 << (c))

/* A client, and the nodes whose vote it counts. */
#define WAITS 0
#define HOLDS 1
#define DONE 2		/* released or abandoned: its releases may still arrive */
#define DEAD 3
byte phase[CLIENTS];
#define LINK(c, n) ((c) * NODES + (n))
bool vote[CLIENTS * NODES];
#define VOTES(c) (vote[LINK(c, 0)] + vote[LINK(c, 1)] + vote[LINK(c, 2)])
#define LEASES(c) ((lock[0] == LEASE(c)) + (lock[1] == LEASE(c)) + (lock[2] == LEASE(c)))
/* If this client holds, a majority of nodes has its lease. */
#define CHECK(c) assert(phase[c] != HOLDS || LEASES(c) >= 2)

/* Nodes are alike, so states that differ only by a permutation of nodes are one state. */
hidden byte x;
#define RANK(n) ((lock[n] * 8 + queue[n]) * 8 + vote[LINK(0, n)] * 4 + vote[LINK(1, n)] * 2 + vote[LINK(2, n)])
inline exchange(p, q)
{
	x = p; p = q; q = x
}
inline sort(i, j)
{
	if
	:: RANK(i) > RANK(j) ->
		exchange(lock[i], lock[j]); exchange(queue[i], queue[j]);
		exchange(vote[LINK(0, i)], vote[LINK(0, j)]);
		exchange(vote[LINK(1, i)], vote[LINK(1, j)]);
		exchange(vote[LINK(2, i)], vote[LINK(2, j)])
	:: else
	fi
}
inline settle()
{
	CHECK(0); CHECK(1); CHECK(2);
	assert((phase[0] == HOLDS) + (phase[1] == HOLDS) + (phase[2] == HOLDS) <= 1);
	sort(0, 1); sort(1, 2); sort(0, 1); x = 0
}

/* Reserves the free lock for the head. If dropped is 1, dead heads are recognised. */
inline reserve(n, dropped)
{
	queue[n] = (dropped && phase[0] == DEAD -> queue[n] & 6 : queue[n]);
	queue[n] = (dropped && phase[1] == DEAD && !(queue[n] & 1) -> queue[n] & 5 : queue[n]);
	queue[n] = (dropped && phase[2] == DEAD && !(queue[n] & 3) -> queue[n] & 3 : queue[n]);
	lock[n] = (queue[n] & 1 -> RESERVED(0) : (queue[n] & 2 -> RESERVED(1) : (queue[n] & 4 -> RESERVED(2) : 0)))
}

inline take(c, n)
{
	lock[n] = LEASE(c);
	queue[n] = queue[n] & ~BIT(c)
}

/* The acquire of the script. The vote counts if the answer arrives. */
#ifdef MUTANT_LAPSED_IGNORES_LEASE	/* The lapsed flag grants the lock although another client has it. */
#define INTHEWAY(c, n) (lock[n] != 0 && lock[n] != LEASE(c) && lock[n] != RESERVED(c) && !lapsed)
#else
#ifdef MUTANT_RESERVATION_IGNORES_LEASE	/* An acquire looks for a reservation in the queue, not in the lock. */
#define INTHEWAY(c, n) (lock[n] != 0 && lock[n] != LEASE(c) && lock[n] != RESERVED(c) && !(queue[n] & BIT(c)))
#else
#define INTHEWAY(c, n) (lock[n] != 0 && lock[n] != LEASE(c) && lock[n] != RESERVED(c))
#endif
#endif
inline acquire(c, n, lapsed, dropped, answered)
{
	if
	:: INTHEWAY(c, n) -> queue[n] = queue[n] | BIT(c)
	:: else ->
		if
		:: lock[n] == LEASE(c)
		:: lock[n] != LEASE(c) && lock[n] == 0 && (queue[n] & ~BIT(c)) != 0 && !lapsed ->
			queue[n] = queue[n] | BIT(c);
			reserve(n, dropped);
			if
			:: lock[n] == RESERVED(c) -> take(c, n)
			:: else
			fi
		:: lock[n] != LEASE(c) && lock[n] == 0 && (queue[n] & ~BIT(c)) != 0 && lapsed ->
			queue[n] = 0;	/* each waiter is woken to ask again */
			take(c, n)
		:: else -> take(c, n)
		fi
	fi;
	if
	:: lock[n] == LEASE(c) && answered && phase[c] == WAITS -> vote[LINK(c, n)] = true
#ifdef MUTANT_RESERVATION_IS_A_VOTE	/* A reservation counts as a vote. */
	:: phase[c] == WAITS && (queue[n] & BIT(c)) && answered -> vote[LINK(c, n)] = true
#endif
	:: else
	fi
}

/* The release of the script: compare and delete, then reserve for the queue's head. */
#ifdef MUTANT_RELEASE_COMPARES_NOTHING	/* A release deletes any client's lock. */
#define DELETES(c, n) (lock[n] != 0)
#else
#define DELETES(c, n) (lock[n] == LEASE(c))
#endif
inline release(c, n, stay, dropped)
{
	vote[LINK(c, n)] = false;
	queue[n] = (stay -> queue[n] | BIT(c) : queue[n] & ~BIT(c));
	if
	:: DELETES(c, n) -> reserve(n, dropped)
	:: else
	fi
}

/* Passing on: for a ticket, by any client, at any time. */
#ifdef MUTANT_PASS_ON_TAKES_LEASES	/* Passing on also acts on a lease of the ticket's client. */
#define PASSABLE(c, n) (lock[n] == RESERVED(c) || lock[n] == LEASE(c))
#else
#ifdef MUTANT_PASS_ON_FOR_ANY_TICKET	/* Passing on acts on any lock. */
#define PASSABLE(c, n) (lock[n] != 0)
#else
#define PASSABLE(c, n) (lock[n] == RESERVED(c))
#endif
#endif
inline passOn(c, n, dropped)
{
	queue[n] = queue[n] & ~BIT(c);
	reserve(n, dropped)
}

inline win(c)
{
	phase[c] = HOLDS
}

#ifdef MUTANT_GRACE_ENDS_LEASES	/* The end of a grace also ends a lease. */
#define ENDS(n) (lock[n] != 0)
#else
#define ENDS(n) (lock[n] >= RESERVED(0) || (lock[n] != 0 && phase[lock[n] - (lock[n] > 0)] == DEAD))
#endif

#define FORLINK(c, n) \
	:: d_step { phase[c] == WAITS || phase[c] == DEAD -> acquire(c, n, 0, 0, 0) } \
	:: d_step { phase[c] == WAITS || phase[c] == DEAD -> acquire(c, n, 0, 1, 0) } \
	:: d_step { phase[c] == WAITS || phase[c] == DEAD -> acquire(c, n, 1, 0, 0) } \
	:: d_step { phase[c] == WAITS -> acquire(c, n, 0, 0, 1) } \
	:: d_step { phase[c] == WAITS -> acquire(c, n, 0, 1, 1) } \
	:: d_step { phase[c] == WAITS -> acquire(c, n, 1, 0, 1) } \
	:: d_step { phase[c] == WAITS -> release(c, n, 1, 0) } \
	:: d_step { phase[c] == WAITS -> release(c, n, 1, 1) } \
	:: d_step { phase[c] != HOLDS -> release(c, n, 0, 0) } \
	:: d_step { phase[c] != HOLDS -> release(c, n, 0, 1) } \
	:: d_step { PASSABLE(c, n) -> passOn(c, n, 0) } \
	:: d_step { PASSABLE(c, n) -> passOn(c, n, 1) }
#define FORCLIENT(c) \
	:: d_step { phase[c] == WAITS && VOTES(c) >= 2 -> win(c) } \
	:: d_step { phase[c] == WAITS || phase[c] == HOLDS -> phase[c] = DONE } \
	:: d_step { phase[c] != DEAD -> phase[c] = DEAD; \
		vote[LINK(c, 0)] = false; vote[LINK(c, 1)] = false; vote[LINK(c, 2)] = false } \
	FORLINK(c, 0) FORLINK(c, 1) FORLINK(c, 2)

active proctype world()
{
end:	do
	:: atomic {
		if
	FORCLIENT(0)
	FORCLIENT(1)
	FORCLIENT(2)
	:: d_step { ENDS(0) -> lock[0] = 0 }
	:: d_step { ENDS(1) -> lock[1] = 0 }
	:: d_step { ENDS(2) -> lock[2] = 0 }
		fi;
		d_step { settle() }
	   }
	od
}
