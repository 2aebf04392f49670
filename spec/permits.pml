/*
 * Permits: K numbered slots, each an exclusive lock with a majority of its own.
 *
 * Three nodes, a majority is two; three clients; K slots. A client asks for one slot at a time; what it has got of
 * another slot ends at any time. A free slot may be reserved for any ticket. A ticket with a reservation on a node may
 * take another slot there that is free or reserved; whoever had that reservation gets the ticket's slot (swap). Requests
 * for any slot are late, lost, repeated; answers are lost. What keeps a holder's vote stays as long as the vote counts;
 * only of a holder of all nodes one node may lose it. Client 2 believes in LIMIT2 slots.
 *
 * Claims: at most K holders, never two of one slot.
 */
#define NODES 3
#define CLIENTS 3
#define K 2
#ifndef LIMIT2
#define LIMIT2 K
#endif
#define LIMIT(c) ((c) == 2 -> LIMIT2 : K)
#define SLOT(n, s) ((n) * K + (s))
#define LEASE(c) ((c) + 1)
#define RESERVED(c) (8 + (c))
byte slot[NODES * K];
#define WAITS 0
#define HOLDS 1
byte phase[CLIENTS];
byte choice[CLIENTS];	/* the slot that the client asks for, or holds */
byte vote[CLIENTS];	/* bit n: the client counts node n's vote */
#define MAJORITY(v) ((v) == 3 || (v) == 5 || (v) == 6 || (v) == 7)
hidden byte x, y;

inline find(c, n)	/* y = 1 + the slot that is reserved for the ticket on the node, 0 for none */
{
	x = 0; y = 0;
	do
	:: x < K ->
		if
		:: slot[SLOT(n, x)] == RESERVED(c) -> y = x + 1
		:: else
		fi;
		x++
	:: else -> break
	od;
	x = 0
}
#ifdef MUTANT_VOTES_OF_ANY_SLOT	/* A vote counts whichever slot the node gave: each node counts to K. */
#define COUNTS(c, s) true
#else
#define COUNTS(c, s) (choice[c] == (s))
#endif
#ifdef MUTANT_SWAP_TAKES_LEASES	/* A ticket with a reservation takes a slot that another client has. */
#define SWAPPABLE(v) ((v) != 0)
#else
#define SWAPPABLE(v) ((v) >= RESERVED(0))
#endif
inline acquire(c, n, s, answered)
{
	find(c, n);
	if
	:: slot[SLOT(n, s)] == LEASE(c)
	:: slot[SLOT(n, s)] == 0 || slot[SLOT(n, s)] == RESERVED(c) ->
		if
		:: y != 0 -> slot[SLOT(n, y - 1)] = 0
		:: else
		fi;
		slot[SLOT(n, s)] = LEASE(c)
	:: slot[SLOT(n, s)] != LEASE(c) && slot[SLOT(n, s)] != RESERVED(c) && SWAPPABLE(slot[SLOT(n, s)]) && y != 0 ->
		slot[SLOT(n, y - 1)] = (slot[SLOT(n, s)] >= RESERVED(0) -> slot[SLOT(n, s)] : 0);
		slot[SLOT(n, s)] = LEASE(c)
	:: else
	fi;
	if
	:: slot[SLOT(n, s)] == LEASE(c) && answered -> vote[c] = vote[c] | (1 << (n))
#ifdef MUTANT_RESERVATION_IS_A_VOTE	/* A reservation for the ticket counts as a vote. */
	:: slot[SLOT(n, s)] != LEASE(c) && answered && y != 0 -> vote[c] = vote[c] | (1 << (n))
#endif
	:: else
	fi;
	y = 0
}
inline choose(c, s)
{
#ifndef MUTANT_VOTES_OF_ANY_SLOT
	vote[c] = 0;
#endif
	choice[c] = s
}
#define ENDS(n, s, c) (slot[SLOT(n, s)] == RESERVED(c) || (slot[SLOT(n, s)] == LEASE(c) && (phase[c] != HOLDS || !COUNTS(c, s) || vote[c] == 7)))
inline remove(n, s, c)
{
	vote[c] = (slot[SLOT(n, s)] == LEASE(c) && COUNTS(c, s) -> vote[c] & ~(1 << (n)) : vote[c]);
	slot[SLOT(n, s)] = 0
}

/* Nodes are alike, so states that differ only by a permutation of nodes are one state. */
#define RANK(n) (((slot[SLOT(n, 0)] * 16 + slot[SLOT(n, 1)]) * 8) + ((vote[0] >> (n)) & 1) + 2 * ((vote[1] >> (n)) & 1) + 4 * ((vote[2] >> (n)) & 1))
inline swapbits(c, i, j)
{
	y = ((vote[c] >> (i)) & 1) ^ ((vote[c] >> (j)) & 1);
	vote[c] = vote[c] ^ ((y << (i)) | (y << (j)))
}
inline order(i, j)
{
	if
	:: RANK(i) > RANK(j) ->
		x = slot[SLOT(i, 0)]; slot[SLOT(i, 0)] = slot[SLOT(j, 0)]; slot[SLOT(j, 0)] = x;
		x = slot[SLOT(i, 1)]; slot[SLOT(i, 1)] = slot[SLOT(j, 1)]; slot[SLOT(j, 1)] = x;
		swapbits(0, i, j); swapbits(1, i, j); swapbits(2, i, j)
	:: else
	fi
}
#define BOTHHOLD(c, d) (phase[c] == HOLDS && phase[d] == HOLDS)
inline settle()
{
	assert((phase[0] == HOLDS) + (phase[1] == HOLDS) + (phase[2] == HOLDS) <= K);
#ifndef MUTANT_VOTES_OF_ANY_SLOT	/* there it is the first claim that fails */
	assert(!BOTHHOLD(0, 1) || choice[0] != choice[1]);
	assert(!BOTHHOLD(0, 2) || choice[0] != choice[2]);
	assert(!BOTHHOLD(1, 2) || choice[1] != choice[2]);
#endif
	order(0, 1); order(1, 2); order(0, 1);
	x = 0; y = 0
}

#define FORSLOT(c, n, s) \
	:: d_step { ENDS(n, s, c) -> remove(n, s, c); settle() } \
	:: d_step { (s) < LIMIT(c) && choice[c] == (s) && phase[c] == WAITS -> acquire(c, n, s, 1); settle() } \
	:: d_step { (s) < LIMIT(c) && slot[SLOT(n, s)] != LEASE(c) -> acquire(c, n, s, 0); settle() } \
	:: d_step { (s) < LIMIT(c) && slot[SLOT(n, s)] == 0 -> slot[SLOT(n, s)] = RESERVED(c); settle() }
#define FORCLIENT(c) \
	:: d_step { phase[c] == HOLDS -> phase[c] = WAITS; vote[c] = 0; settle() } \
	:: d_step { phase[c] == WAITS && choice[c] != 0 -> choose(c, 0); settle() } \
	:: d_step { phase[c] == WAITS && choice[c] != 1 && 1 < LIMIT(c) -> choose(c, 1); settle() } \
	FORSLOT(c, 0, 0) FORSLOT(c, 1, 0) FORSLOT(c, 2, 0) \
	FORSLOT(c, 0, 1) FORSLOT(c, 1, 1) FORSLOT(c, 2, 1) \
	:: d_step { phase[c] == WAITS && MAJORITY(vote[c]) -> phase[c] = HOLDS; settle() }

active proctype world()
{
end:	do
	FORCLIENT(0)
	FORCLIENT(1)
	FORCLIENT(2)
	od
}
