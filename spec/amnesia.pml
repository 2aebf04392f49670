/*
 * A node that loses its data: the restart guard, its quarantine, and the base.
 *
 * There are three nodes, and a majority is two. Time advances in ticks. Node clocks
 * run at the same rate and differ by at most SKEW ticks. Node 0 loses everything once,
 * at any time: locks, registers, base and marker. Then it does not vote until a client
 * has written a new marker and QUARANTINE has passed since on the node's clock. The end
 * of the quarantine is a floor of the node's registers. Leases are extended and healed
 * throughout. A client counts a vote for TTL, from an instant before it sent the
 * request. A node keeps the key for exactly as long. That is the shortest time that the
 * protocol allows: a request that arrives later makes the key last longer, which only
 * excludes other clients. Requests may arrive at any time until they are void
 * (not_after), and so may answers.
 *
 * The claims need different state, so there are two models in this file. LEASES:
 * at most one lease is valid (no registers). REGISTERS: tokens are unique, and an
 * attempt that began after a grant gets a larger token (no renewals, because they
 * change no register). In LEASES, the script for a lone caller makes a key without a look
 * at the marker, and its answer may be lost. Registers count in units, with UNIT units to a tick. So the
 * "+ 1" of a raise is small compared with the clocks, as microseconds are compared
 * with seconds.
 *
 * Sources: a restarted node stays away for the longest TTL: redis.io, "Distributed
 * Locks with Redis" (crash recovery), after Gray and Cheriton, "Leases: an efficient
 * fault-tolerant mechanism for distributed file cache consistency", SOSP 1989.
 */

#define NODES 3
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#define TTL 2			/* ticks */
#define UNIT 4			/* register units to a tick */
#define CAP UNIT		/* A: how far above its clock a node moves, in units */
#ifndef HORIZON
#define HORIZON 7		/* ticks; the search ends there */
#endif
#ifdef MUTANT_SKEW_ABOVE_QUARANTINE	/* The clocks differ by more than the quarantine allows: Z < A + C. */
#define SKEW 3
#else
#define SKEW 1			/* C, in ticks */
#endif
#ifdef MUTANT_QUARANTINE_BELOW_TTL	/* The quarantine is shorter than the TTL. */
#define QUARANTINE 1
#else
#define QUARANTINE 3		/* Z, in ticks: at least TTL, and more than A + C */
#endif

byte now;

/* A node. Its clock is UNIT * (now + offset). */
byte owner[NODES];		/* 0 for none, else attempt + 1 */
#ifdef REGISTERS
byte offset[NODES];
byte reg[NODES];
byte base[NODES];
#define CLOCK(n) (UNIT * (now + offset[n]))
#else
#define CLOCK(n) (UNIT * now)
#endif

/* The guard of node 0. */
#define HEALTHY 0
#define UNMARKED 1		/* the node has lost its data, and no client has written a marker */
#define MARKED 2
byte guard;
byte marker;			/* the end of the quarantine, in units of the node's clock */

#ifdef MUTANT_NO_QUARANTINE	/* A node that has lost its data votes at once. */
#define VOTES(n) true
#else
#ifdef MUTANT_MARKER_ENDS_QUARANTINE	/* A node votes as soon as a client has written its marker. */
#define VOTES(n) ((n) != 0 || guard != UNMARKED)
#else
#define VOTES(n) ((n) != 0 || guard == HEALTHY || (guard == MARKED && CLOCK(0) >= marker))
#endif
#endif

/* An attempt and its lease. */
#define IDLE 0
#define ASKED 1
#define GRANTED 2
#define OVER 3			/* abandoned, lost or released; its keys may end at any time */
byte phase[ATTEMPTS];
byte start[ATTEMPTS];		/* the tick before the attempt sent its acquires */
#define LINK(a, n) ((a) * NODES + (n))
byte credit[ATTEMPTS * NODES];	/* the tick until which a node's vote counts */
#ifdef LEASES
byte stray[ATTEMPTS];		/* the tick until which node 0 has a key that is no vote */
#define STRAY(a, n) ((n) == 0 && stray[a] > now)
#else
#define STRAY(a, n) false
#endif
#define OURS(a, n) (owner[n] == (a) + 1)
#define FREE(n) (owner[n] == 0 || phase[owner[n] - (owner[n] > 0)] == OVER)

/* A lease ends with the second largest credit, because then it has no majority. */
#define VOTE(a, n) (credit[LINK(a, n)] > now)
#define VALID(a) (phase[a] == GRANTED && VOTE(a, 0) + VOTE(a, 1) + VOTE(a, 2) >= 2)

#ifdef REGISTERS
byte proposal[ATTEMPTS];
byte raiseTo[ATTEMPTS];
#define AHEAD(v) (64 + (v))
#define MOVED(v) (128 + (v))
#define ISMOVED(x) ((x) >= 128)
#define AT(x) ((x) & 63)
byte answer[ATTEMPTS * NODES];
/* Ghost variables: the tokens, and the largest one when an attempt began. */
byte token[ATTEMPTS];
byte floor[ATTEMPTS];
#endif

/* Working variables; each step leaves them 0. */
hidden byte i, j, x, y;

/* value(n): the largest of the register, the base, and the end of a quarantine. */
inline readValue(n)
{
	y = (reg[n] > base[n] -> reg[n] : base[n]);
#ifdef MUTANT_NO_FLOOR	/* The end of a quarantine is no floor of the registers. */
	skip
#else
#ifdef MUTANT_FLOOR_AT_START	/* The floor is the beginning of the quarantine. */
	x = (guard == MARKED -> marker - UNIT * QUARANTINE : 0);
#else
	x = (guard == MARKED -> marker : 0);
#endif
	y = (n == 0 && x > y -> x : y);
	x = 0
#endif
}

/* Resets variables that are not read any more, so that fewer states differ. */
inline forget(a)
{
	start[a] = 0;
#ifdef LEASES
	stray[a] = (phase[a] == OVER || stray[a] <= now -> 0 : stray[a]);
#endif
#ifdef REGISTERS
	proposal[a] = 0; raiseTo[a] = 0; floor[a] = 0;
	answer[LINK(a, 0)] = 0; answer[LINK(a, 1)] = 0; answer[LINK(a, 2)] = 0
#endif
}
inline settle(a)
{
	if
	:: phase[a] == GRANTED && !VALID(a) -> phase[a] = OVER		/* lost, which is final */
	:: phase[a] == ASKED && now >= start[a] + TTL -> phase[a] = OVER	/* no validity is left to grant */
	:: else
	fi;
	j = 0;
	do
	:: j < NODES ->
		if
		:: credit[LINK(a, j)] <= now || phase[a] == OVER ->
			credit[LINK(a, j)] = 0;
			owner[j] = (OURS(a, j) && (phase[a] == OVER || !STRAY(a, j)) -> 0 : owner[j])
		:: else
		fi;
		j++
	:: else -> break
	od;
	j = 0;
#ifdef LEASES
	stray[a] = (stray[a] <= now -> 0 : stray[a]);
#endif
	if
	:: phase[a] == OVER -> forget(a)
	:: else
	fi
}

inline tick()
{
	now++;
	i = 0;
	do
	:: i < ATTEMPTS -> settle(i); i++
	:: else -> break
	od;
	i = 0
}

#define MAYBEGIN(a) (phase[a] == IDLE && ((a) == 0 || phase[(a) - ((a) > 0)] != IDLE)) /* attempts are alike, so they begin in order */
inline begin(a)
{
	phase[a] = ASKED; start[a] = now;
#ifdef REGISTERS
	i = 0;
	do
	:: i < ATTEMPTS -> floor[a] = (token[i] > floor[a] -> token[i] : floor[a]); i++
	:: else -> break
	od;
	i = 0
#endif
}

#ifdef REGISTERS
inline record(a, n, what)
{
	if
	:: raiseTo[a] == 0 || raiseTo[a] + 128 == what -> answer[LINK(a, n)] = what
	:: else
	fi
}
#endif

#define MAYTAKE(a, n) (phase[a] == ASKED && FREE(n) && VOTES(n))
inline acquire(a, n)
{
	owner[n] = a + 1;
	credit[LINK(a, n)] = start[a] + TTL;
#ifdef REGISTERS
	readValue(n);
	x = CLOCK(n) + CAP;
	x = (proposal[a] < x -> proposal[a] : x);
	if
	:: y < x -> record(a, n, MOVED(x)); reg[n] = x
	:: else -> record(a, n, AHEAD(y))
	fi;
	x = 0; y = 0
#endif
}

#ifdef REGISTERS
#define MAYRAISE(a, n) (phase[a] == ASKED && raiseTo[a] != 0 && OURS(a, n) && VOTES(n))
inline raise(a, n)
{
	readValue(n);
	if
	:: y < raiseTo[a] -> reg[n] = raiseTo[a]; record(a, n, MOVED(raiseTo[a]))
	:: else
	fi;
	y = 0
}

#define HAVE(a, p, q) (phase[a] == ASKED && answer[LINK(a, p)] != 0 && answer[LINK(a, q)] != 0)
#define NEED(a, n) (AT(answer[LINK(a, n)]) + (1 - ISMOVED(answer[LINK(a, n)])))
inline decide(a, p, q)
{
	raiseTo[a] = (NEED(a, p) > NEED(a, q) -> NEED(a, p) : NEED(a, q));
	j = 0;
	do
	:: j < NODES -> answer[LINK(a, j)] = (answer[LINK(a, j)] == MOVED(raiseTo[a]) -> answer[LINK(a, j)] : 0); j++
	:: else -> break
	od;
	j = 0
}
#define COUNTS(a, p, q) (HAVE(a, p, q) && ISMOVED(answer[LINK(a, p)]) && answer[LINK(a, p)] == answer[LINK(a, q)])
#else
#define COUNTS(a, p, q) (phase[a] == ASKED)
#endif

/* The last check before a grant is that the lease is valid. */
#define WON(a, p, q) (COUNTS(a, p, q) && VOTE(a, p) && VOTE(a, q))
inline grant(a, p)
{
#ifdef REGISTERS
	token[a] = AT(answer[LINK(a, p)]);
	assert(token[a] > floor[a]);
#endif
	i = 0;
	do
	:: i < ATTEMPTS ->
#ifdef REGISTERS
		assert(i == a || token[i] != token[a]);
#endif
		assert(i == a || !VALID(i));
		i++
	:: else -> break
	od;
	i = 0;
	phase[a] = GRANTED;
	forget(a)
}

#ifdef LEASES
/* The script for a lone caller on node 0, which does not vote. It compares no marker. The client, which reads the marker
   behind it, counts no vote; or the answer is lost. The key ends when it would have. */
#define MAYSTRAY(a) (phase[a] == ASKED && FREE(0) && !VOTES(0))
inline makeStray(a)
{
	owner[0] = a + 1;
	stray[a] = start[a] + TTL
}

/* An extension on a node in quarantine counts for a key that counted before. */
#ifdef MUTANT_STRAY_KEY_COUNTS	/* A renewal in quarantine counts a key that was never granted. */
#define MAYCOUNT(a, n) true
#else
#define MAYCOUNT(a, n) (VOTES(n) || VOTE(a, n))
#endif
/* A renewal: an extension where the lock is ours, a heal where it is free. A node in
   quarantine applies both. But there a heal only restores a vote that this lease still
   has (its not_after is the end of that vote). The node may have lost a vote for
   another attempt that is not granted yet. */
#ifdef MUTANT_HEAL_IS_A_NEW_VOTE	/* A heal on a node in quarantine wins a new vote for the lease. */
#define MAYHEAL(a, n) FREE(n)
#else
#define MAYHEAL(a, n) (FREE(n) && (VOTES(n) || VOTE(a, n)))
#endif
#define MAYRENEW(a, n) (VALID(a) && (OURS(a, n) && MAYCOUNT(a, n) || MAYHEAL(a, n)) && credit[LINK(a, n)] != now + TTL)
#define MAYPROLONG(a) (VALID(a) && OURS(a, 0) && !MAYCOUNT(a, 0) && stray[a] != now + TTL)	/* and count nothing */
inline renew(a, n)
{
	owner[n] = a + 1;
	credit[LINK(a, n)] = now + TTL
}
#endif

inline lose()
{
	guard = UNMARKED;
	owner[0] = 0;
#ifdef LEASES
	i = 0;
	do
	:: i < ATTEMPTS -> stray[i] = 0; i++
	:: else -> break
	od;
	i = 0;
#endif
#ifdef REGISTERS
	reg[0] = 0; base[0] = 0
#endif
}
inline mark()
{
	guard = MARKED;
	marker = CLOCK(0) + UNIT * QUARANTINE
}

#ifdef REGISTERS
/* Drops a register. base rises to its value. */
inline trim(n)
{
#ifndef MUTANT_TRIM_WITHOUT_BASE	/* A trim drops a register, and base does not rise. */
	base[n] = (reg[n] > base[n] -> reg[n] : base[n]);
#endif
	reg[n] = 0
}
/* One estimate of the clock is far too low, and the other is limited only by the cap. */
#define FORATTEMPT(a) \
	:: d_step { MAYBEGIN(a) -> begin(a); proposal[a] = 1 } \
	:: d_step { MAYBEGIN(a) -> begin(a); proposal[a] = 63 } \
	:: d_step { MAYRAISE(a, 0) -> raise(a, 0) } \
	:: d_step { MAYRAISE(a, 1) -> raise(a, 1) } \
	:: d_step { MAYRAISE(a, 2) -> raise(a, 2) } \
	:: d_step { HAVE(a, 0, 1) && raiseTo[a] == 0 -> decide(a, 0, 1) } \
	:: d_step { HAVE(a, 0, 2) && raiseTo[a] == 0 -> decide(a, 0, 2) } \
	:: d_step { HAVE(a, 1, 2) && raiseTo[a] == 0 -> decide(a, 1, 2) }
#else
#define FORATTEMPT(a) \
	:: d_step { MAYBEGIN(a) -> begin(a) } \
	:: d_step { MAYSTRAY(a) -> makeStray(a) } \
	:: d_step { MAYPROLONG(a) -> stray[a] = now + TTL } \
	:: d_step { MAYRENEW(a, 0) -> renew(a, 0) } \
	:: d_step { MAYRENEW(a, 1) -> renew(a, 1) } \
	:: d_step { MAYRENEW(a, 2) -> renew(a, 2) }
#endif
#define FORBOTH(a) \
	:: d_step { MAYTAKE(a, 0) -> acquire(a, 0) } \
	:: d_step { MAYTAKE(a, 1) -> acquire(a, 1) } \
	:: d_step { MAYTAKE(a, 2) -> acquire(a, 2) } \
	:: d_step { WON(a, 0, 1) -> grant(a, 0) } \
	:: d_step { WON(a, 0, 2) -> grant(a, 0) } \
	:: d_step { WON(a, 1, 2) -> grant(a, 1) } \
	:: d_step { phase[a] == ASKED || phase[a] == GRANTED -> phase[a] = OVER; settle(a) }

active proctype world()
{
#ifdef REGISTERS
	if
	:: offset[0] = 0
	:: offset[0] = SKEW
	fi;
	if
	:: offset[1] = 0; offset[2] = 0
	:: offset[1] = 0; offset[2] = SKEW
	:: offset[1] = SKEW; offset[2] = SKEW
	fi;
#endif
end:	do
	:: d_step { now < HORIZON -> tick() }
	:: d_step { guard == HEALTHY -> lose() }
	:: d_step { guard == UNMARKED -> mark() }
#ifdef REGISTERS
	:: d_step { reg[1] > 0 -> trim(1) }
#endif
	FORATTEMPT(0) FORBOTH(0)
	FORATTEMPT(1) FORBOTH(1)
#if ATTEMPTS == 3
	FORATTEMPT(2) FORBOTH(2)
#endif
	od
}
