/*
 * Hand-over through the queue: its liveness. A live waiter gets the lock if holders
 * release or die.
 *
 * There is one node. (With more nodes, two waiters can split the votes while their
 * random pauses agree. That is a question of probability, and not part of this model.)
 * There are three clients, and each wants the lock once. Each client's round is a
 * separate process, so other steps can happen between any two of its steps. Wake-ups
 * may be lost. A grace may end at any time. One client may die at any time, as a holder
 * or as a waiter. The node notices that the client has no subscriber any more, or does
 * not notice it (the process is frozen). Keys of dead clients expire.
 *
 * Claim, with weak fairness (a step that stays possible is taken at some time): client
 * WHO does not wait for ever. The queue's order is the order of the clients' numbers.
 * So each client has a different place in the queue, and is checked in a separate run.
 *
 * Source of the claim's form: Lamport, "Proving the Correctness of Multiprocess
 * Programs", IEEE TSE 3(2), 1977 (something good happens at some time).
 */

#define NODES 1
#define CLIENTS 3
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef WHO
#define WHO 1
#endif

/* A node: the lock (0 free, c + 1 a lease, RESERVED + c a reservation), and the
   tickets, a bit each. */
#define LEASE(c) ((c) + 1)
#define RESERVED(c) (8 + (c))
#define ISRESERVED(x) ((x) >= 8)
byte lock[NODES];
byte queue[NODES];

/* A client. */
#define IDLE 0
#define WAITS 1
#define HOLDS 2
#define DONE 3
#define DEAD 4
byte phase[CLIENTS];
byte votes[CLIENTS];		/* a bit for each node that answered "granted" */
byte sawReserved[CLIENTS];	/* a bit for each node that refused with a reservation for another client */
bool wake[CLIENTS];		/* a wake-up is pending */
byte notified[CLIENTS];		/* a bit for each node that reserved the lock and sent a wake-up */
byte deaths;

#define BIT(n) (1 << (n))
#define HEAD(q) ((q) & 1 -> 0 : ((q) & 2 -> 1 : 2))

hidden byte h;

/* Reserves the free lock of node n for the head of its queue. A head without a
   subscriber is dropped, but a frozen one is not. */
inline reserve(n)
{
	do
	:: queue[n] == 0 -> lock[n] = 0; break
	:: queue[n] != 0 ->
		h = HEAD(queue[n]);
		if
		:: phase[h] == DEAD -> queue[n] = queue[n] & ~BIT(h)
		:: true ->
			lock[n] = RESERVED(h);
			if
			:: phase[h] != DEAD -> wake[h] = true; notified[h] = notified[h] | BIT(n)
			:: true	/* the message is lost, or no process reads it */
			fi;
			break
		fi
	od;
	h = 0
}

inline take(c, n)
{
	lock[n] = LEASE(c);
	queue[n] = queue[n] & ~BIT(c);
	notified[c] = notified[c] & ~BIT(n);
}

/* Client c has waited for the end of an unused reservation. All waiters are woken to ask
   again, and client c, which is alive, gets the lock. */
inline clear(c, n)
{
	if
	:: phase[0] == WAITS && (queue[n] & 1) -> wake[0] = true
	:: true
	fi;
	if
	:: phase[1] == WAITS && (queue[n] & 2) -> wake[1] = true
	:: true
	fi;
	if
	:: phase[2] == WAITS && (queue[n] & 4) -> wake[2] = true
	:: true
	fi;
	queue[n] = 0;
	take(c, n)
}

/* The acquire of the script. */
inline acquire(c, n, lapsed)
{
	if
	:: lock[n] == LEASE(c)
	:: lock[n] == RESERVED(c) -> take(c, n)
	:: lock[n] == 0 && (queue[n] & ~BIT(c)) == 0 -> take(c, n)
	:: lock[n] == 0 && (queue[n] & ~BIT(c)) != 0 ->
		if
		:: lapsed -> clear(c, n)
		:: !lapsed ->
			queue[n] = queue[n] | BIT(c);
			reserve(n);
			if
			:: lock[n] == RESERVED(c) -> take(c, n)
			:: else
			fi
		fi
	:: lock[n] != 0 && lock[n] != LEASE(c) && lock[n] != RESERVED(c) -> queue[n] = queue[n] | BIT(c)
	fi
}

/* The release of the script: compare and delete, then reserve for the queue's head. */
inline release(c, n, stay)
{
	if
	:: stay -> queue[n] = queue[n] | BIT(c)
	:: !stay -> queue[n] = queue[n] & ~BIT(c)
	fi;
	if
	:: lock[n] == LEASE(c) -> reserve(n)
	:: else
	fi
}

/* A wake-up arrives for an unused ticket: the lock is reserved for the next one. */
inline passOn(c, n)
{
	notified[c] = notified[c] & ~BIT(n);
	if
	:: lock[n] == RESERVED(c) ->
		queue[n] = queue[n] & ~BIT(c);
		reserve(n)
	:: else
	fi
}

inline ask(c, n)
{
	atomic {
		if
#ifdef MUTANT_NO_LAPSED_FLAG	/* A request never has the lapsed flag. */
		:: acquire(c, n, false)
#else
		:: (sawReserved[c] & BIT(n)) -> acquire(c, n, true)
		:: !(sawReserved[c] & BIT(n)) -> acquire(c, n, false)
#endif
		fi;
		if
		:: lock[n] == LEASE(c) -> votes[c] = votes[c] | BIT(n); sawReserved[c] = sawReserved[c] & ~BIT(n)
		:: ISRESERVED(lock[n]) -> sawReserved[c] = sawReserved[c] | BIT(n)
		:: else -> sawReserved[c] = sawReserved[c] & ~BIT(n)
		fi
	}
}

#define LEASES(c) (lock[0] == LEASE(c))

proctype client(byte c)
{
	byte n;

	{
	phase[c] = WAITS;
round:
	n = 0;
	do
	:: n < NODES -> ask(c, n); n++
	:: n == NODES -> n = 0; break
	od;
decide:
	atomic {
		if
		:: votes[c] != 0 ->
			phase[c] = HOLDS; wake[c] = false; sawReserved[c] = 0;
			assert(LEASES(c));
			assert((phase[0] == HOLDS) + (phase[1] == HOLDS) + (phase[2] == HOLDS) == 1);
			goto holds
		:: else -> votes[c] = 0
		fi
	}
	/* Fewer votes than a majority: the votes are released, and the tickets stay. */
	do
	:: n < NODES -> atomic { release(c, n, true); n++ }
	:: n == NODES -> n = 0; break
	od;
	/* The waiter waits for a wake-up or for its timer. */
	if
	:: atomic { wake[c] -> wake[c] = false; goto round }
#ifndef MUTANT_NO_TIMER	/* A waiter asks again only when it is woken. */
	:: goto round
#endif
	fi;

holds:	/* A live holder keeps its lease. */
	assert(LEASES(c));
	do
	:: n < NODES ->
		atomic {
			phase[c] = DONE; votes[c] = 0;
			release(c, n, false);
			n++
		}
	:: n == NODES -> n = 0; break
	od;
	/* From now on the client passes on every reservation for it. */
end:	do
	:: atomic { notified[c] & 1 -> passOn(c, 0) }
	od
	} unless { phase[c] == DEAD }
}

inline die(c)
{
	deaths++;
	phase[c] = DEAD; votes[c] = 0; sawReserved[c] = 0; wake[c] = false; notified[c] = 0
}

/* A node's clock: graces and the keys of dead clients end. */
proctype clock(byte n)
{
end:	do
#ifndef MUTANT_GRACE_WITHOUT_END	/* A reservation lasts until it is used. */
	:: atomic { ISRESERVED(lock[n]) -> lock[n] = 0 }
#else
	:: false
#endif
	:: atomic { lock[n] != 0 && !ISRESERVED(lock[n]) && phase[lock[n] - 1] == DEAD -> lock[n] = 0 }
	od
}

/* A client dies. */
proctype fate()
{
	do
	:: atomic { deaths < DEATHS && phase[0] != IDLE && phase[0] != DEAD -> die(0) }
	:: atomic { deaths < DEATHS && phase[1] != IDLE && phase[1] != DEAD -> die(1) }
	:: atomic { deaths < DEATHS && phase[2] != IDLE && phase[2] != DEAD -> die(2) }
	:: break
	od
}

init {
	atomic {
		run client(0); run client(1); run client(2);
		run clock(0);
		run fate()
	}
}

ltl served { [] ((phase[WHO] == WAITS) -> <> (phase[WHO] != WAITS)) }
