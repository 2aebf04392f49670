/*
 * Revoking a lease. Ticks, as in amnesia.pml.
 *
 * Three nodes, a majority is two; leases of TTL ticks. Client 0 is the holder whose lease is revoked.
 * Clients 1 and 2 acquire when nodes are free. A client counts a vote for TTL from before it sent
 * the request, and the node keeps the key as long (the shortest time that the protocol allows).
 * Requests are late or lost.
 *
 * At any time s the operator asks all nodes to mark the key. It has read that the key lives for
 * `known` at most, which may be too little by now. A mark counts until s + WINDOW. A marked key is not
 * extended or healed any more; the mark lives for known + WINDOW from then on. A mark on a key that had
 * longer to live does not count. After a round that has marked a majority there may be another one, at any
 * time: it knows the longest life of the marks, its marks live for known, and only keys that are marked
 * already count.
 *
 * Claims: at most one valid lease; if the marks that count are a majority, the holder is not valid from
 * s + WINDOW + known on; in the other round from s + known on.
 */
#define NODES 3
#define CLIENTS 3
#define TTL 3
#ifndef HORIZON
#define HORIZON 8
#endif
byte now;
byte owner[NODES];	/* client + 1 */
byte ends[NODES];	/* the tick at which the key ends */
bool marked[NODES];
#define IDLE 0
#define ASKED 1
#define HOLDS 2
#define OVER 3
byte phase[CLIENTS];
byte start[CLIENTS];
#define LINK(c, n) ((c) * NODES + (n))
byte credit[CLIENTS * NODES];
#define VOTE(c, n) (credit[LINK(c, n)] > now)
#define VALID(c) (phase[c] == HOLDS && VOTE(c, 0) + VOTE(c, 1) + VOTE(c, 2) >= 2)
#define OURS(c, n) (owner[n] == (c) + 1)
#define FREE(n) (owner[n] == 0)
hidden byte i;

inline forget(c)
{
	credit[LINK(c, 0)] = 0; credit[LINK(c, 1)] = 0; credit[LINK(c, 2)] = 0; start[c] = 0
}
inline tick()
{
	now++;
	i = 0;
	do
	:: i < NODES ->
		if
		:: owner[i] != 0 && ends[i] <= now -> owner[i] = 0; ends[i] = 0; marked[i] = false
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < CLIENTS ->
		if
		:: phase[i] == HOLDS && !VALID(i) -> phase[i] = OVER; forget(i)
		:: phase[i] == ASKED && now >= start[i] + TTL -> phase[i] = OVER; forget(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}
inline set(c, n)
{
	owner[n] = c + 1; ends[n] = now + TTL; marked[n] = false
}
/* An acquisition arrives, at any time from its start on; late ones make late keys. */
#define MAYTAKE(c, n) (phase[c] == ASKED && FREE(n))
inline take(c, n)
{
	set(c, n);
	credit[LINK(c, n)] = start[c] + TTL
}
#ifdef MUTANT_EXTEND_IGNORES_THE_MARK
#define MARKED(n) false
#else
#define MARKED(n) marked[n]
#endif
/* A renewal: an extension, or a heal of a missing key. */
#define MAYRENEW(c, n) (VALID(c) && ((OURS(c, n) && !MARKED(n)) || FREE(n)) && credit[LINK(c, n)] != now + TTL)
inline renew(c, n)
{
	set(c, n);
	credit[LINK(c, n)] = now + TTL
}
/* An extension that was sent before the lease ended arrives late: it only keeps the key longer. */
#define MAYLATE(c, n) (phase[c] == OVER && OURS(c, n) && !MARKED(n) && ends[n] != now + TTL)

byte marks;		/* bit n: node n was marked in this round */
byte asked;		/* the tick + 1 at which the round began */
byte known;		/* how long the key lives at most, as far as the operator knows */
byte counted;		/* the marks that count */
bool other;		/* this is the other round */
#define WINDOW 1
#define MAJORITY(v) ((v) == 3 || (v) == 5 || (v) == 6 || (v) == 7)
#ifdef MUTANT_ONE_MARK_IS_ENOUGH
#define ENOUGH(v) ((v) != 0)
#else
#define ENOUGH(v) MAJORITY(v)
#endif
#ifdef MUTANT_MARKS_ARE_NEVER_VOID	/* A late request still marks. */
#define INTIME true
#else
#define INTIME (now <= asked - 1 + WINDOW)
#endif
#ifdef MUTANT_A_MARK_LIVES_AS_LONG_AS_THE_KEY
#define LIVES known
#else
#define LIVES (other -> known : known + WINDOW)
#endif
#ifdef MUTANT_A_LONGER_LIFE_COUNTS
#define LONGER(n) false
#else
#define LONGER(n) (ends[n] > now + known)
#endif
#ifdef MUTANT_NEW_MARKS_COUNT_IN_THE_OTHER_ROUND
#define NEW(n) false
#else
#define NEW(n) (other && !marked[n])
#endif
#define ENDED (asked - 1 + known + (other -> 0 : WINDOW))
#define MAYMARK(n) (asked != 0 && INTIME && OURS(0, n) && (marks & (1 << (n))) == 0)
inline mark(n)
{
	marks = marks | (1 << (n));
#ifdef MUTANT_REVOKE_DELETES	/* A revocation deletes the key. */
	owner[n] = 0; ends[n] = 0; counted = counted | (1 << (n))
#else
	if
	:: !LONGER(n) && !NEW(n) -> counted = counted | (1 << (n))
	:: else
	fi;
	marked[n] = true;
	if
	:: ends[n] < now + LIVES -> ends[n] = now + LIVES
	:: else
	fi
#endif
}
inline ask(life)
{
	asked = now + 1; known = life; marks = 0; counted = 0
}
inline askagain()	/* the marks of the first round live no longer than this */
{
	if
	:: known + WINDOW > TTL -> known = known + WINDOW
	:: else -> known = TTL
	fi;
	other = true; asked = now + 1; marks = 0; counted = 0
}
inline grant(c)
{
	phase[c] = HOLDS
}
#define CLAIM(c) (VALID(c))
inline settle()
{
	assert(VALID(0) + VALID(1) + VALID(2) <= 1);
	assert(asked == 0 || !ENOUGH(counted) || now < ENDED || !VALID(0))
}
#define FORLINK(c, n) \
	:: d_step { MAYTAKE(c, n) -> take(c, n) } \
	:: d_step { MAYRENEW(c, n) -> renew(c, n) } \
	:: d_step { MAYLATE(c, n) -> ends[n] = now + TTL } \
	:: d_step { (phase[c] == OVER) && OURS(c, n) -> owner[n] = 0; ends[n] = 0; marked[n] = false }
#define FORCLIENT(c) \
	:: d_step { phase[c] == IDLE && ((c) != 2 || phase[1] != IDLE) -> phase[c] = ASKED; start[c] = now } \
	:: d_step { phase[c] == ASKED && VOTE(c, 0) + VOTE(c, 1) + VOTE(c, 2) >= 2 -> grant(c) } \
	:: d_step { phase[c] == HOLDS || phase[c] == ASKED -> phase[c] = OVER; forget(c) } \
	FORLINK(c, 0) FORLINK(c, 1) FORLINK(c, 2)

active proctype world()
{
end:	do
	:: atomic {
		if
		:: d_step { now < HORIZON -> tick() }
		FORCLIENT(0)
		FORCLIENT(1)
		FORCLIENT(2)
		:: d_step { asked == 0 -> ask(1) }
		:: d_step { asked == 0 -> ask(TTL) }
		:: d_step { !other && MAJORITY(marks) -> askagain() }
		:: d_step { MAYMARK(0) -> mark(0) }
		:: d_step { MAYMARK(1) -> mark(1) }
		:: d_step { MAYMARK(2) -> mark(2) }
		fi;
		d_step { settle() }
	   }
	od
}
