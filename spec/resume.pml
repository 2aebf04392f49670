/*
 * Detach and Resume: a lease goes to another process. Ticks, as in amnesia.pml.
 *
 * Three nodes, a majority is two; leases of TTL ticks. Client 0 is the holder that detaches: it ends its lease,
 * then gives out its handle. Clients 1 and 2 acquire when nodes are free; they also know the handle, and may adopt
 * its keys: an adoption replaces the owner of a key, in one step, if the key shows the old owner. (Resume takes no
 * free node; the clients here do.) A valid lease also adopts by a heal, and an attempt that ends without a lease
 * gives keys back to the handle, at any time. A client counts a vote for TTL from before it sent the request, and the node
 * keeps the key as long. Requests are late or lost.
 *
 * Claim: at most one valid lease, whoever has copies of the handle.
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
#define IDLE 0
#define ASKED 1
#define HOLDS 2
#define OVER 3
#define GAVE 4	/* an attempt that has ended without a lease */
byte phase[CLIENTS];
byte start[CLIENTS];
#define LINK(c, n) ((c) * NODES + (n))
byte credit[CLIENTS * NODES];
bool handle;		/* client 0 has given out its handle */
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
		:: owner[i] != 0 && ends[i] <= now -> owner[i] = 0; ends[i] = 0
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
	owner[n] = c + 1; ends[n] = now + TTL
}
/* An acquisition arrives, at any time from its start on; late ones make late keys. */
#define MAYTAKE(c, n) (phase[c] == ASKED && FREE(n))
inline take(c, n)
{
	set(c, n);
	credit[LINK(c, n)] = start[c] + TTL
}
#ifdef MUTANT_ADOPTION_KEEPS_THE_OWNER	/* Resuming extends the old owner's key. */
#define MAYADOPT(c, n) (handle && (c) != 0 && phase[c] == ASKED && OURS(0, n))
inline adopt(c, n)
{
	ends[n] = now + TTL; credit[LINK(c, n)] = start[c] + TTL
}
#else
#define MAYADOPT(c, n) (handle && (c) != 0 && phase[c] == ASKED && OURS(0, n))
inline adopt(c, n)
{
	take(c, n)
}
#endif
/* A renewal: an extension, or a heal of a missing key or of one that shows the handle. */
#define MAYRENEW(c, n) (VALID(c) && (OURS(c, n) || FREE(n) || (handle && (c) != 0 && OURS(0, n))) && credit[LINK(c, n)] != now + TTL)
inline renew(c, n)
{
	set(c, n);
	credit[LINK(c, n)] = now + TTL
}
/* An extension that was sent before the lease ended arrives late: it only keeps the key longer. */
#define MAYLATE(c, n) (phase[c] == OVER && OURS(c, n) && ends[n] != now + TTL)
#ifdef MUTANT_A_LEASE_GIVES_BACK	/* An attempt that has won gives its keys back. */
#define MAYBACK(c, n) (handle && (c) != 0 && (phase[c] == GAVE || phase[c] == HOLDS) && OURS(c, n))
#else
#define MAYBACK(c, n) (handle && (c) != 0 && phase[c] == GAVE && OURS(c, n))
#endif

inline grant(c)
{
	phase[c] = HOLDS
}
#define CLAIM(c) (VALID(c))
inline settle()
{
	assert(VALID(0) + VALID(1) + VALID(2) <= 1);
}
#define FORLINK(c, n) \
	:: d_step { MAYTAKE(c, n) -> take(c, n) } \
	:: d_step { MAYRENEW(c, n) -> renew(c, n) } \
	:: d_step { MAYLATE(c, n) -> ends[n] = now + TTL } \
	:: d_step { MAYBACK(c, n) -> owner[n] = 1 } \
	:: d_step { (phase[c] == OVER || phase[c] == GAVE) && OURS(c, n) -> owner[n] = 0; ends[n] = 0 }
#define FORCLIENT(c) \
	:: d_step { phase[c] == IDLE && ((c) != 2 || phase[1] != IDLE) -> phase[c] = ASKED; start[c] = now } \
	:: d_step { phase[c] == ASKED && VOTE(c, 0) + VOTE(c, 1) + VOTE(c, 2) >= 2 -> grant(c) } \
	:: d_step { phase[c] == HOLDS -> phase[c] = OVER; forget(c) } \
	:: d_step { phase[c] == ASKED -> phase[c] = GAVE; forget(c) } \
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
#ifdef MUTANT_HANDLE_BEFORE_THE_END	/* The handle is given out while the lease is valid. */
		:: d_step { !handle && phase[0] == HOLDS -> handle = true }
#else
		:: d_step { !handle && phase[0] == HOLDS -> handle = true; phase[0] = OVER; forget(0) }
#endif
		:: d_step { MAYADOPT(1, 0) -> adopt(1, 0) }
		:: d_step { MAYADOPT(1, 1) -> adopt(1, 1) }
		:: d_step { MAYADOPT(1, 2) -> adopt(1, 2) }
		:: d_step { MAYADOPT(2, 0) -> adopt(2, 0) }
		:: d_step { MAYADOPT(2, 1) -> adopt(2, 1) }
		:: d_step { MAYADOPT(2, 2) -> adopt(2, 2) }
		fi;
		d_step { settle() }
	   }
	od
}
