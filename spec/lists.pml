/*
 * Clients with different lists of nodes: which votes count, by the lists that the nodes
 * remember (internal/quorum/lists.go, and internal/wire/lua/lists.lua).
 *
 * A client meets the nodes of its list in any order. At each look it asks a node to
 * register the nodes that it has met. The node refuses a list of which a majority need
 * not share a node with a majority of another list that it remembers. A vote counts only
 * while each node that the client is connected to has registered a list with the voting
 * node. A lease has the votes of a majority; its nodes exclude each other's leases, so
 * only lists that differ can lead to two leases. A client that is refused does without the
 * nodes that the other list lacks, if the rest are a majority of its list, and no lease of
 * it has their votes. Leases are renewed as long as their
 * client lives and a majority answers, whatever the lists say. Node 0 may be
 * down at the start, for all clients. One node may lose what it remembers (the restart guard keeps its
 * votes, so its locks are not lost here). The claim: while a client has a lease, no other
 * is granted one if there is a node to which both are connected, the first one since its
 * grant. Without such a node, different lists cannot be noticed.
 *
 * EXCLUDED: {0, 1, 2} beside {0, 1, 3}. CHANGE: {0},
 * {0, 1} and {0, 1, 2}, of which the neighbours may be used side by side: 1 → 2 → 3
 * nodes, as 3 → 4 → 5. Time advances in ticks: of the age of a registration, of leases.
 */

#ifdef CHANGE
#define NODES 3
#define CLIENTS 3
#define HELD ((lease[0] != 0) + (lease[1] != 0) + (lease[2] != 0))
#define SINCE(c) 7		/* all nodes are up, and keep what they remember */
#define OTHERS(c) ((c == 0 -> 0 : lease[0]) | (c == 1 -> 0 : lease[1]) | (c == 2 -> 0 : lease[2]))
#else
#define NODES 4
#define CLIENTS 2
#define HELD ((lease[0] != 0) + (lease[1] != 0))
#define SINCE(c) since[1 - (c)]	/* nodes that the other client has been connected to during its lease */
#define OTHERS(c) (lease[1 - (c)])
#endif
#define TTL 2			/* ticks */
#define AGE 1			/* a registration that is older does not count */
#ifdef MUTANT_ENTRY_ENDS_BEFORE_LEASES	/* A node forgets a list while a lease may rely on it. */
#define LIFE (AGE + TTL - 1)
#else
#define LIFE (AGE + TTL)	/* a node forgets a list that is so old */
#endif

#define BIT(n) (1 << (n))
#define HAS(s, n) (((s) >> (n)) & 1)
#define LEN(s) (HAS(s, 0) + HAS(s, 1) + HAS(s, 2) + HAS(s, 3))
#define QUORUM(n) ((n) / 2 + 1)

byte list[CLIENTS];		/* sets of nodes */
byte met[CLIENTS];		/* nodes with a known identity */
byte up[CLIENTS];		/* nodes that the client is connected to */
byte stands[CLIENTS];		/* nodes that have answered that the list stands */
byte refused[CLIENTS];		/* nodes that have refused the list */
byte lacks[CLIENTS * NODES];	/* nodes that the list lacks for which a node has refused ours */
byte relied[CLIENTS];		/* nodes that have given a vote for a lease of the client */
bool running[CLIENTS];
bool used[CLIENTS];		/* the client has had a lease */
byte lease[CLIENTS];		/* nodes of the lease, 0 for none */
byte left[CLIENTS];		/* ticks of the lease */
byte since[CLIENTS];		/* nodes that the client has been connected to since the lease was granted */
#define AT(c, n) ((c) * NODES + (n))
byte entry[CLIENTS * NODES];	/* the list that a node remembers, 0 for none */
byte age[CLIENTS * NODES];	/* of the entry, ticks */
byte down;			/* a set of one node at most */
bool lost;			/* a node has lost what it remembers */

hidden byte i, j, x, y;
hidden byte whole, apart;

/* Every majority of one list shares a node with every majority of the other. */
#ifdef MUTANT_REPLACED_NODE_PASSES	/* A list with one node replaced passes as well. */
#define BESIDE(n, m, both) (QUORUM(n) + QUORUM(m) >= (both))
#else
#define BESIDE(n, m, both) (QUORUM(n) + QUORUM(m) > (both))
#endif

#define AWAY(c, n) (HAS(refused[c], n) -> lacks[AT(c, n)] : 0)
#define LACKED(c) (AWAY(c, 0) | AWAY(c, 1) | AWAY(c, 2) | (NODES == 3 -> 0 : AWAY(c, NODES - 1)))
#ifdef MUTANT_LEASES_DO_WITHOUT	/* A client does without a node that has voted for its lease. */
#define SOFT(c) (LEN(list[c] & ~LACKED(c)) >= QUORUM(LEN(list[c])))
#else
#define SOFT(c) ((LACKED(c) & relied[c]) == 0 && LEN(list[c] & ~LACKED(c)) >= QUORUM(LEN(list[c])))
#endif
/* All votes are withheld. */
#define HARD(c) (refused[c] != 0 && !SOFT(c))

#ifdef MUTANT_REFUSED_KEEPS_NOTHING	/* A client that is refused by one node lets its lists on the others end, although it has a lease. */
#define KEEPS(c) false
#else
#define KEEPS(c) used[c]
#endif

#ifdef MUTANT_PARTS_END	/* A node prolongs the whole list, and not the part that stands. */
#define KEEPSPARTS(c) false
#else
#define KEEPSPARTS(c) KEEPS(c)
#endif

inline forget(c, n)
{
	entry[AT(c, n)] = 0; age[AT(c, n)] = 0
}

/* A look at a node, which may be the first. y is 1 if the node refuses the list. */
#define MAYLOOK(c, n) (running[c] && HAS(list[c], n) && !HAS(down, n))
inline look(c, n)
{
	x = (HARD(c) -> met[c] : met[c] & ~LACKED(c)) | BIT(n);
	whole = !HAS(refused[c], n) || (x & lacks[AT(c, n)]) != 0;
	apart = HARD(c) && (refused[c] & ~BIT(n)) != 0;
	y = 0; i = 0; j = 0;
	do
	:: i < CLIENTS ->
		if
		:: i != c && entry[AT(i, n)] != 0 && !BESIDE(LEN(list[c]), LEN(list[i]), LEN(x | entry[AT(i, n)])) ->
			y = 1; j = x & ~entry[AT(i, n)]
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	met[c] = met[c] | BIT(n); up[c] = up[c] | BIT(n);
	if
	:: y == 1 ->
		j = (j == 0 -> 15 : j);
		lacks[AT(c, n)] = (whole -> j : lacks[AT(c, n)] | j);
		refused[c] = refused[c] | BIT(n);
		if
		:: (entry[AT(c, n)] & lacks[AT(c, n)]) != 0 -> stands[c] = stands[c] & ~BIT(n)
		:: else		/* a refusal ends no registration */
		fi;
		if
		:: KEEPSPARTS(c) && entry[AT(c, n)] != 0 && (entry[AT(c, n)] & ~x) == 0 -> age[AT(c, n)] = 0
		:: else
		fi
	:: y == 0 && !apart ->
		if
		:: whole -> refused[c] = refused[c] & ~BIT(n); lacks[AT(c, n)] = 0
		:: else
		fi;
		stands[c] = stands[c] | BIT(n);
		entry[AT(c, n)] = x; age[AT(c, n)] = 0
	:: y == 0 && apart ->
		refused[c] = refused[c] & ~BIT(n); lacks[AT(c, n)] = 0;
		if
		:: KEEPS(c) && entry[AT(c, n)] == x -> age[AT(c, n)] = 0; stands[c] = stands[c] | BIT(n)
		:: KEEPSPARTS(c) && entry[AT(c, n)] != 0 && entry[AT(c, n)] != x -> age[AT(c, n)] = 0; stands[c] = stands[c] & ~BIT(n)
		:: else -> stands[c] = stands[c] & ~BIT(n)
		fi
	fi;
	j = 0; whole = 0; apart = 0;
	x = 0; y = 0
}

#define FRESH(c, n) (entry[AT(c, n)] != 0 && age[AT(c, n)] <= AGE)

/* Whether the vote of node n counts. */
#ifdef MUTANT_OLD_REGISTRATION_COUNTS	/* A client that stood still counts votes before it looks. */
#define KNOWS(c, j, n) (!HAS(up[c], j) || HAS(stands[c], j) && (entry[AT(c, j)] == 0 || HAS(entry[AT(c, j)], n)))
#else
#define KNOWS(c, j, n) (!HAS(up[c], j) || HAS(stands[c], j) && FRESH(c, j) && HAS(entry[AT(c, j)], n))
#endif
#ifdef MUTANT_OWN_NODE_IS_ENOUGH	/* A vote counts when its own node has registered the list. */
#define COUNTS(c, n) (!HARD(c) && HAS(up[c], n) && KNOWS(c, n, n))
#else
#ifdef MUTANT_REFUSAL_IS_OF_ONE_NODE	/* A refusal withholds the vote of the node that refuses, and no other. */
#define COUNTS(c, n) (HAS(up[c] & ~refused[c], n) && KNOWS(c, n, n))
#else
#define COUNTS(c, n) (!HARD(c) && HAS(up[c] & ~LACKED(c), n) && KNOWS(c, 0, n) && KNOWS(c, 1, n) && KNOWS(c, 2, n) && (NODES == 3 || KNOWS(c, NODES - 1, n)))
#endif
#endif

/* New has returned: each node of the list has answered, or is down. */
#define READY(c) ((list[c] & ~up[c] & ~down) == 0)
#define FREE(c, n) (COUNTS(c, n) && HAS(list[c] & ~down & ~OTHERS(c), n))
#define VOTES(c) (FREE(c, 0) + FREE(c, 1) + FREE(c, 2) + (NODES == 3 -> 0 : FREE(c, NODES - 1)))
#define MAYGRANT(c) (running[c] && lease[c] == 0 && READY(c) && VOTES(c) >= QUORUM(LEN(list[c])))
inline grant(c)
{
	x = FREE(c, 0) | FREE(c, 1) << 1 | FREE(c, 2) << 2;
	if
	:: NODES == 4 -> x = x | FREE(c, NODES - 1) << 3
	:: else
	fi;
	lease[c] = x; left[c] = TTL; used[c] = true; since[c] = up[c]; relied[c] = relied[c] | x;
	x = 0;
	assert(HELD == 1 || (up[c] & SINCE(c)) == 0)
}

/* A node that has granted loses its key, or its answer came too late. */
#define MAYDROP(c, n) (HAS(lease[c], n) && LEN(lease[c]) > QUORUM(LEN(list[c])))

/* A client that renews looks at all nodes that it is connected to. It prolongs what stands. */
#define LOOKED(c, n) (!HAS(up[c], n) || FRESH(c, n) || HAS(refused[c], n) && entry[AT(c, n)] == 0 || HARD(c) && !KEEPSPARTS(c))
#define MAYRENEW(c) (running[c] && lease[c] != 0 && LEN(lease[c] & ~down) >= QUORUM(LEN(list[c])) && left[c] < TTL \
	&& LOOKED(c, 0) && LOOKED(c, 1) && LOOKED(c, 2) && (NODES == 3 || LOOKED(c, NODES - 1)))

/* The client dies, or stops without a release. Its entries and its lease end by themselves. */
inline stop(c)
{
	running[c] = false;
	met[c] = 0; up[c] = 0; stands[c] = 0; refused[c] = 0; used[c] = false; relied[c] = 0;
	lacks[AT(c, 0)] = 0; lacks[AT(c, 1)] = 0; lacks[AT(c, 2)] = 0; lacks[AT(c, NODES - 1)] = 0
}

inline tick()
{
	i = 0;
	do
	:: i < CLIENTS ->
		if
		:: left[i] > 0 -> left[i]--; lease[i] = (left[i] == 0 -> 0 : lease[i]); since[i] = (left[i] == 0 -> 0 : since[i])
		:: else
		fi;
		j = 0;
		do
		:: j < NODES ->
			if
			:: entry[AT(i, j)] != 0 ->
				age[AT(i, j)]++;
				if
				:: age[AT(i, j)] >= LIFE -> forget(i, j)
				:: else
				fi
			:: else
			fi;
			j++
		:: else -> break
		od;
		j = 0; i++
	:: else -> break
	od;
	i = 0
}

inline lose(n)
{
	lost = true;
	forget(0, n); forget(1, n)
}

/* The list in the way has ended on a node. */
#define ENDED(c, n) ((c == 0 || entry[AT(0, n)] == 0) && (c == 1 || entry[AT(1, n)] == 0) && (c == 2 || CLIENTS == 2 || entry[AT(CLIENTS - 1, n)] == 0))

#define FORCLIENT(c) \
	:: d_step { MAYLOOK(c, 0) -> look(c, 0) } \
	:: d_step { MAYLOOK(c, 1) -> look(c, 1) } \
	:: d_step { MAYLOOK(c, 2) -> look(c, 2) } \
	:: d_step { NODES == 4 && MAYLOOK(c, NODES - 1) -> look(c, NODES - 1) } \
	:: d_step { MAYGRANT(c) -> grant(c) } \
	:: d_step { HAS(refused[c], 0) && !HARD(c) && ENDED(c, 0) -> refused[c] = refused[c] & ~1; lacks[AT(c, 0)] = 0 } \
	:: d_step { HAS(refused[c], 1) && !HARD(c) && ENDED(c, 1) -> refused[c] = refused[c] & ~2; lacks[AT(c, 1)] = 0 } \
	:: d_step { HAS(refused[c], 2) && !HARD(c) && ENDED(c, 2) -> refused[c] = refused[c] & ~4; lacks[AT(c, 2)] = 0 } \
	:: d_step { MAYRENEW(c) -> left[c] = TTL } \
	:: d_step { MAYDROP(c, 0) -> lease[c] = lease[c] & ~1 } \
	:: d_step { MAYDROP(c, 1) -> lease[c] = lease[c] & ~2 } \
	:: d_step { MAYDROP(c, 2) -> lease[c] = lease[c] & ~4 } \
	:: d_step { lease[c] != 0 -> lease[c] = 0; left[c] = 0; since[c] = 0 } \
	:: d_step { running[c] -> stop(c) }

active proctype world()
{
#ifdef DOWN
	down = BIT(0);		/* at the start */
#endif
#ifdef CHANGE
	list[0] = 1; list[1] = 3; list[2] = 7;
#else
	list[0] = 7; list[1] = 11;
#endif
	running[0] = true; running[1] = true;
#if CLIENTS == 3
	running[2] = true;
#endif
end:	do
	:: d_step { tick() }
	FORCLIENT(0)
	FORCLIENT(1)
#if CLIENTS == 3
	FORCLIENT(2)
#endif
#ifndef CHANGE
#ifdef DOWN
	:: d_step { down != 0 -> down = 0 }
#endif
#ifdef LOSS
	:: d_step { !lost -> lose(0) }
#endif
#endif
	od
}
