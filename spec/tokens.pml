/*
 * Fencing tokens: a register per name on each node that only grows.
 *
 * There are three nodes, and a majority is two. ATTEMPTS attempts of two or three
 * clients ask for one name. Each attempt has its own owner value. An acquire that
 * was sent may reach a node at any later time, any number of times, or never. So
 * may a raise. An answer may arrive at any later time, or never. A client that
 * crashes is an attempt that takes no further step. A node may drop a key at any
 * time: that covers a release, an expiry and a clock that steps. A dropped key
 * makes a difference only when the node grants the lock again. So dropping is part
 * of that step: any acquire may find the lock free. No step of this model reads a
 * clock, so its proof needs none.
 *
 * Sources: a value that a majority of registers has reached, and that only
 * grows there: Attiya, Bar-Noy and Dolev, "Sharing Memory Robustly in
 * Message-Passing Systems", J. ACM 42(1), 1995. A lock by a majority of Redis
 * servers: redis.io, "Distributed Locks with Redis". A number that the resource
 * checks: the sequencer of Burrows, "The Chubby lock service", OSDI 2006.
 *
 * Flags: ATTEMPTS (2 or 3); PROPOSALS, the largest proposal (2 or 3);
 * BLOCKS: an attempt gets a block of tokens;
 * PASS (with BLOCKS): a lease is passed on inside the process, to one waiter;
 * FRESH (with PASS): no client notices a dropped key, but only answers to
 * requests sent after the waiter began allow a pass;
 * LOSS (with PASS): a node loses its data or goes back to older data, once;
 * LEAN: attempts also ask the lean way: one step makes the lock and moves
 * the register, a later one reads the base and the marker, and only then it counts. A
 * node forgets its register, once, and raises its base. Attempt 0 is lean; LEANBOTH: all are;
 * NARROW: no key is healed and no answer is lost, for a mutant whose error needs neither and lies deep in the search.
 */

#define NODES 3
#define QUORUM 2
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef PROPOSALS
#define PROPOSALS 2
#endif

/* A node: its register, the attempt that has the lock (0 none, else attempt + 1), and
   the t in the lock's value (0: this attempt did not move the node). */
byte value[NODES];
byte owner[NODES];
#ifdef PASS
byte shown[NODES];
#endif

/* An attempt: IDLE, ASKED (its acquires may arrive), GRANTED (they still may). */
#define IDLE 0
#define ASKED 1
#define GRANTED 2
byte phase[ATTEMPTS];
byte proposal[ATTEMPTS];
byte raiseTo[ATTEMPTS];		/* 0: the attempt has not decided to raise */

/* The answer of a node that the attempt reads next, or has read: none (0), the
   node was ahead, or it was moved. An answer may be read at any time, so its
   arrival is not modelled. A newer answer replaces it, or does not. */
#define AHEAD(v) (8 + (v))
#define MOVED(v) (16 + (v))
#define ISMOVED(x) ((x) >= 16)
#define AT(x) ((x) & 7)
#define LINK(a, j) ((a) * NODES + (j))
byte answer[ATTEMPTS * NODES];
#ifdef MUTANT_BEFORE_OF_FIRST_MOVE
byte firstBefore[ATTEMPTS * NODES];
#define SHRINKS
#endif
#ifdef MUTANT_REGISTER_GOES_WITH_KEY
#define SHRINKS
#endif
#ifdef MUTANT_RAISE_LOWERS
#define SHRINKS
#endif
#ifdef BLOCKS
byte before[ATTEMPTS * NODES];	/* the register before the counted move */
#endif

/* A lost answer is an answer that is never used. If the attempt has no answer of the
   node yet, keeping this one is harmless: every step is still possible with it. */
#ifdef NARROW
#define REPLACES(a, j) false
#else
#define REPLACES(a, j) (phase[a] == ASKED && answer[LINK(a, j)] != 0)
#endif

/* Ghost variables: the largest granted token, now and when an attempt began, and
   the set of all tokens of all blocks. */
byte largest;
byte floor[ATTEMPTS];
short used;

#ifdef PASS
/* A lease that may be passed on: the top of its block, its next token, and the nodes
   that have shown our owner and our t since the proof was last reset. Only the lease
   of attempt 0 is passed on. */
byte top;
byte next;
bool confirmed[NODES];
/* The waiter inside its process. */
#define ABSENT 0
#define WAITS 1
#define SERVED 2
byte waiter;
byte waiterFloor;
#endif

#ifdef LOSS
/* A node in quarantine does not vote. (amnesia.pml models the end of a quarantine.) */
bool quarantined[NODES];
bool lost;
byte oldValue[NODES], oldOwner[NODES], oldShown[NODES];	/* the older data */
bool saved;
#define VOTES(j) (!quarantined[j])
#else
#define VOTES(j) true
#endif

#define OURS(a, j) (owner[j] == (a) + 1)

#ifdef LEAN
byte base[NODES];		/* no register is below it */
bool forgot;			/* a node has forgotten its register */
#ifdef LEANBOTH
#define ISLEAN(a) true
#else
#define ISLEAN(a) ((a) == 0)
#endif
bool lean[NODES];		/* the lock was made the lean way */
/* The lean request of an attempt to a node, of which there is one: */
#define NOT_ARRIVED 0
#define MADE 1		/* the base and the marker behind it are still to be read */
#define READ 2		/* they are read, and it counted */
#define SPENT 3		/* it made no lock, or is no vote, or its answer is lost */
byte made[ATTEMPTS * NODES];
#define REGISTER(j) (base[j] > value[j] -> base[j] : value[j])
#define PENDING(a) (made[LINK(a, 0)] == MADE || made[LINK(a, 1)] == MADE || made[LINK(a, 2)] == MADE)
#define MARKS(j) (base[j] * 32 + lean[j] * 16 + made[LINK(0, j)] * 4 + made[LINK(1, j)])
#else
#define REGISTER(j) value[j]
#define PENDING(a) false
#define MARKS(j) 0
#endif

/* Working variables; each step leaves them 0. */
hidden byte x, y, n;

inline record(a, j, what, was)
{
	if
	:: phase[a] == ASKED && (raiseTo[a] == 0 || what == MOVED(raiseTo[a])) ->
		answer[LINK(a, j)] = what;
#ifdef BLOCKS
		before[LINK(a, j)] = was
#endif
	:: else
	fi
}

/* Nodes are alike, so states that differ only by a permutation of nodes are one state.
   With PASS node 0 is different, and only nodes 1 and 2 are permuted. */
inline exchange(p, q)
{
	x = p; p = q; q = x
}
#ifdef BLOCKS
#define KEY(a, j) (answer[LINK(a, j)] * 8 + before[LINK(a, j)])
#else
#define KEY(a, j) answer[LINK(a, j)]
#endif
#ifdef PASS
#define REST(j) (MARKS(j) * 16 + shown[j] * 2 + confirmed[j])
#else
#if ATTEMPTS == 3
#define REST(j) KEY(2, j)
#else
#define REST(j) MARKS(j)
#endif
#endif
#define RANK(j) (((((value[j] * 4 + owner[j]) * 256 + KEY(0, j)) * 256) + KEY(1, j)) * 256 + REST(j))
inline sort(i, j)
{
	if
	:: RANK(i) > RANK(j) ->
		exchange(value[i], value[j]); exchange(owner[i], owner[j]);
		exchange(answer[LINK(0, i)], answer[LINK(0, j)]);
		exchange(answer[LINK(1, i)], answer[LINK(1, j)]);
#if ATTEMPTS == 3
		exchange(answer[LINK(2, i)], answer[LINK(2, j)]);
#endif
#ifdef BLOCKS
		exchange(before[LINK(0, i)], before[LINK(0, j)]);
		exchange(before[LINK(1, i)], before[LINK(1, j)]);
#endif
#ifdef LEAN
		exchange(base[i], base[j]);
		exchange(lean[i], lean[j]);
		exchange(made[LINK(0, i)], made[LINK(0, j)]);
		exchange(made[LINK(1, i)], made[LINK(1, j)]);
#endif
#ifdef PASS
		exchange(shown[i], shown[j]);
		exchange(confirmed[i], confirmed[j]);
#endif
	:: else
	fi
}
/* If all registers have reached a value, a proposal of it or a raise to it moves no
   register, because registers only grow. So all such values are one state. */
#define PASSED(t) (REGISTER(0) >= (t) && REGISTER(1) >= (t) && REGISTER(2) >= (t))
inline simplify(a)
{
	if
	:: proposal[a] > 1 && PASSED(proposal[a]) && !PENDING(a) -> proposal[a] = 1
	:: else
	fi;
	if
	:: phase[a] == GRANTED && raiseTo[a] != 0 && PASSED(raiseTo[a]) -> raiseTo[a] = 0
	:: else
	fi
}
inline canonical()
{
#ifndef SHRINKS
#ifdef PASS
	sort(1, 2);
#else
	sort(0, 1); sort(1, 2); sort(0, 1);
#endif
	x = 0;
#ifndef LOSS
	simplify(0); simplify(1);
#if ATTEMPTS == 3
	simplify(2);
#endif
#endif
#endif
	skip
}

/* An attempt begins with a proposal. Estimates of the clock may differ by any amount. */
#ifdef PASS
#define MAYBEGIN(a) (phase[a] == IDLE)
#else
#define MAYBEGIN(a) (phase[a] == IDLE && ((a) == 0 || phase[(a) - ((a) > 0)] != IDLE)) /* attempts are alike, so they begin in order */
#endif
inline begin(a, t)
{
	proposal[a] = t;
	floor[a] = largest;
	phase[a] = ASKED
}

inline drop(j)
{
#ifdef MUTANT_REGISTER_GOES_WITH_KEY	/* The register is dropped together with the lock. */
	if
	:: owner[j] != 0 -> value[j] = 0
	:: else
	fi;
#endif
#ifdef PASS
#ifndef FRESH
	confirmed[j] = false;	/* every dropped key is noticed at once */
#endif
	shown[j] = 0;
#endif
	skip
}

/* The acquire arrives, and the lock is free or the node has dropped the key. The node
   moves to target: the proposal, or less because of the cap (the node's clock + A). */
#ifdef MUTANT_NOT_STRICT	/* A node "moves" to the value that it has already. */
#define BELOW(v, t) ((v) <= (t))
#else
#define BELOW(v, t) ((v) < (t))
#endif
#define MAYTAKE(a, j) (phase[a] != IDLE && VOTES(j))
inline acquire(a, j, target, answered)
{
	drop(j);
	owner[j] = a + 1;
#ifdef LEAN
	lean[j] = false;
#endif
	y = REGISTER(j);
	if
	:: BELOW(y, target) ->
#ifdef MUTANT_BEFORE_OF_FIRST_MOVE
		firstBefore[LINK(a, j)] = value[j];
#endif
		if
		:: answered -> record(a, j, MOVED(target), y)
		:: else
		fi;
#ifdef PASS
		shown[j] = target;
#endif
		value[j] = target
	:: else ->
		if
		:: answered -> record(a, j, AHEAD(y), y)
		:: else
		fi
	fi;
	y = 0;
	canonical()
}

#ifdef LEAN
/* A lean acquisition arrives, and the lock is free or the node has dropped the key. It compares neither the base nor
   the marker. If the register is not below the proposal, the lock is deleted again. */
inline make(a, j)
{
	drop(j);
	owner[j] = 0; lean[j] = false;
	made[LINK(a, j)] = SPENT;
	if
#ifdef MUTANT_LEAN_COUNTS_WHAT_STANDS	/* A register that stands at the proposal counts as moved. */
	:: value[j] <= proposal[a] ->
#else
	:: value[j] < proposal[a] ->
#endif
		owner[j] = a + 1; lean[j] = true; made[LINK(a, j)] = MADE;
#ifdef PASS
		shown[j] = proposal[a];
#endif
		value[j] = proposal[a]
#ifdef MUTANT_LEAN_KEEPS_THE_LOCK	/* The lock stays where the register was ahead. */
	:: else ->
		owner[j] = a + 1; lean[j] = true;
#ifdef PASS
		shown[j] = proposal[a]
#endif
#else
	:: else
#endif
	fi;
	canonical()
}

/* The base and the marker are read behind it. An acquisition whose lock is no vote asks again with the usual script,
   which deletes the lock first: this is an acquire. */
#ifdef MUTANT_LEAN_IGNORES_THE_BASE
#define LOOKS(a, j) (made[LINK(a, j)] == MADE && VOTES(j))
#else
#define LOOKS(a, j) (made[LINK(a, j)] == MADE && base[j] < proposal[a] && VOTES(j))
#endif
inline look(a, j)
{
	made[LINK(a, j)] = READ;
	y = proposal[a];
	record(a, j, MOVED(y), y - 1);
	y = 0;
	canonical()
}

/* An old register is dropped: before that, the base rises to it. */
inline forgetRegister(j)
{
	forgot = true;
	base[j] = value[j];
	value[j] = 0;
	canonical()
}
#endif

/* The raise arrives. It is refused if its conditions do not hold. */
#ifdef MUTANT_RAISE_LOWERS	/* A raise sets the register without comparing it. */
#define MAYRAISE(a, j) (raiseTo[a] != 0 && OURS(a, j) && value[j] != raiseTo[a] && VOTES(j))
#else
#ifdef MUTANT_RAISE_IN_QUARANTINE	/* A quarantined node is raised. */
#define MAYRAISE(a, j) (raiseTo[a] != 0 && OURS(a, j) && REGISTER(j) < raiseTo[a])
#else
#define MAYRAISE(a, j) (raiseTo[a] != 0 && OURS(a, j) && REGISTER(j) < raiseTo[a] && VOTES(j))
#endif
#endif
inline raise(a, j, answered)
{
	y = REGISTER(j);
	if
	:: answered ->
#ifdef MUTANT_BEFORE_OF_FIRST_MOVE	/* The value before is that of the proposal's move, not of the raise. */
		record(a, j, MOVED(raiseTo[a]), firstBefore[LINK(a, j)])
#else
		record(a, j, MOVED(raiseTo[a]), y)
#endif
	:: else
	fi;
#ifdef PASS
	shown[j] = raiseTo[a];
#endif
	value[j] = raiseTo[a];
	y = 0;
	canonical()
}

/* A majority has granted, and the attempt raises because of the answers that it has:
   those of nodes i and k, and of node third if third < NODES. */
#define HAVE(a, i, k) (phase[a] == ASKED && answer[LINK(a, i)] != 0 && answer[LINK(a, k)] != 0)
#define MAYDECIDE(a, i, k) (HAVE(a, i, k) && raiseTo[a] == 0)
#define NEED(a, j) (AT(answer[LINK(a, j)]) + (1 - ISMOVED(answer[LINK(a, j)])))
inline forget(a, j)
{
	if
	:: answer[LINK(a, j)] != MOVED(raiseTo[a]) ->
		answer[LINK(a, j)] = 0;
#ifdef BLOCKS
		before[LINK(a, j)] = 0
#endif
	:: else
	fi
}
inline decide(a, i, k, third)
{
	raiseTo[a] = (NEED(a, i) > NEED(a, k) -> NEED(a, i) : NEED(a, k));
	if
	:: third < NODES && answer[LINK(a, third % NODES)] != 0 && NEED(a, third % NODES) > raiseTo[a] -> raiseTo[a] = NEED(a, third % NODES)
	:: else
	fi;
	/* From here on only answers with the value raiseTo count. */
	forget(a, 0); forget(a, 1); forget(a, 2);
	canonical()
}

/* Won: nodes i and k were moved to the same t. After the decision to raise, that t is
   raiseTo, because other answers are not recorded. */
#ifdef MUTANT_COUNT_AHEAD	/* A node that granted the lock and was ahead counts. */
#define WON(a, i, k) (HAVE(a, i, k) && ISMOVED(answer[LINK(a, i)]))
#else
#ifdef MUTANT_MIXED	/* Nodes that were moved to different values count together. */
#define WON(a, i, k) (HAVE(a, i, k) && ISMOVED(answer[LINK(a, i)]) && ISMOVED(answer[LINK(a, k)]))
#else
#define WON(a, i, k) (HAVE(a, i, k) && ISMOVED(answer[LINK(a, i)]) && answer[LINK(a, i)] == answer[LINK(a, k)])
#endif
#endif
inline grant(a, i, k)
{
	y = AT(answer[LINK(a, i)]);
#ifdef MUTANT_MIXED
	y = (AT(answer[LINK(a, k)]) > y -> AT(answer[LINK(a, k)]) : y);
#endif
	n = y;
#ifdef BLOCKS
#ifdef MUTANT_ONE_BEFORE	/* The block begins after the value before of one node. */
	n = before[LINK(a, i)] + 1;
#else
	n = (before[LINK(a, i)] > before[LINK(a, k)] -> before[LINK(a, i)] : before[LINK(a, k)]) + 1;
#endif
#endif
	/* All tokens of the block are above those granted before the attempt began, and
	   no other attempt has them. */
	assert(n > floor[a]);
#ifdef PASS
	if
	:: a == 0 ->
		top = y;
		next = n + 1;
		largest = (n > largest -> n : largest);
#ifdef FRESH
		confirmed[i] = true;
		confirmed[k] = true
#else
		confirmed[i] = OURS(a, i) && shown[i] == y && VOTES(i);
		confirmed[k] = OURS(a, k) && shown[k] == y && VOTES(k)
#endif
	:: else -> largest = (y > largest -> y : largest)
	fi;
#else
	largest = (y > largest -> y : largest);
#endif
	do
	:: n <= y ->
		assert((used & (1 << n)) == 0);
		used = used | (1 << n);
		n++
	:: else -> break
	od;
	phase[a] = GRANTED;
	/* Reset variables that are not read any more, so that fewer states differ. */
	floor[a] = 0; n = 0; y = 0;
	answer[LINK(a, 0)] = 0; answer[LINK(a, 1)] = 0; answer[LINK(a, 2)] = 0;
#ifdef BLOCKS
	before[LINK(a, 0)] = 0; before[LINK(a, 1)] = 0; before[LINK(a, 2)] = 0;
#endif
	canonical()
}

#ifdef PASS
/* An extension: the node confirms, or confirms without a token, or does not. */
#ifdef MUTANT_CONFIRM_OWNER_ONLY	/* Our owner alone confirms the token. */
#define CONFIRMS(j) (OURS(0, j) && VOTES(j))
#else
#ifdef MUTANT_CONFIRM_IN_QUARANTINE	/* A quarantined node confirms the t of older data. */
#define CONFIRMS(j) (OURS(0, j) && shown[j] == top)
#else
#ifdef MUTANT_LEAN_PROVES	/* A lock that the lean way has made confirms, whether it was a vote or not. */
#define SOUND(j) true
#else
#ifdef LEAN
#define SOUND(j) (!lean[j] || made[LINK(0, j)] == READ)
#else
#define SOUND(j) true
#endif
#endif
#define CONFIRMS(j) (OURS(0, j) && shown[j] == top && VOTES(j) && SOUND(j))
#endif
#endif
#define MAYEXTEND(j) (phase[0] == GRANTED && waiter != SERVED && confirmed[j] != CONFIRMS(j))

/* A heal: a missing key comes back, without a token. */
#ifdef NARROW
#define MAYHEAL(a, j) false
#else
#define MAYHEAL(a, j) (phase[a] == GRANTED)
#endif
inline heal(a, j)
{
	drop(j);
	owner[j] = a + 1;
#ifdef MUTANT_HEAL_SHOWS_T	/* A healed key shows t as if the node had been moved. */
	shown[j] = (a == 0 -> top : 0);
#endif
	canonical()
}

/* A waiter begins inside the process. */
inline wait()
{
	waiter = WAITS;
	waiterFloor = largest;
#ifdef FRESH
#ifndef MUTANT_PASS_ON_OLD_ANSWERS	/* Answers to requests from before the waiter began count. */
	confirmed[0] = false; confirmed[1] = false; confirmed[2] = false
#endif
#endif
}

#ifdef MUTANT_PASS_UNCONFIRMED	/* A lease is passed on without proof by the nodes. */
#define MAYPASS (waiter == WAITS && next <= top)
#else
#define MAYPASS (waiter == WAITS && next <= top && confirmed[0] + confirmed[1] + confirmed[2] >= QUORUM)
#endif
inline pass()
{
	assert(next > waiterFloor);
	largest = (next > largest -> next : largest);
	waiter = SERVED;
	waiterFloor = 0; next = 0;
	confirmed[0] = false; confirmed[1] = false; confirmed[2] = false
}
#endif

#ifdef LOSS
inline save(j)
{
	saved = true;
	oldValue[j] = value[j]; oldOwner[j] = owner[j]; oldShown[j] = shown[j]
}
/* Node 0 restarts with older data, or with none if no data was saved. */
inline restart(j)
{
	lost = true; saved = false; quarantined[j] = true;
	value[j] = oldValue[j]; owner[j] = oldOwner[j]; shown[j] = oldShown[j];
	oldValue[j] = 0; oldOwner[j] = 0; oldShown[j] = 0;
	confirmed[j] = false
}
#endif

#ifdef NOCAP
#define CAPPED(a) false
#else
#define CAPPED(a) (proposal[a] > 1)
#endif

/* The steps, for each pair of an attempt and a node. */
#define FORLINK(a, j) \
	:: d_step { MAYTAKE(a, j) -> acquire(a, j, proposal[a], 1) } \
	:: d_step { MAYTAKE(a, j) && REPLACES(a, j) -> acquire(a, j, proposal[a], 0) } \
	:: d_step { MAYTAKE(a, j) && CAPPED(a) -> acquire(a, j, proposal[a] - 1, 1) } \
	:: d_step { MAYTAKE(a, j) && REPLACES(a, j) && CAPPED(a) -> acquire(a, j, proposal[a] - 1, 0) } \
	:: d_step { MAYRAISE(a, j) -> raise(a, j, 1) } \
	:: d_step { MAYRAISE(a, j) && REPLACES(a, j) -> raise(a, j, 0) }

#ifdef LEAN
#define FORLEAN(a, j) \
	:: d_step { ISLEAN(a) && phase[a] != IDLE && made[LINK(a, j)] == NOT_ARRIVED -> make(a, j) } \
	:: d_step { LOOKS(a, j) -> look(a, j) } \
	:: d_step { made[LINK(a, j)] == MADE -> made[LINK(a, j)] = SPENT; canonical() }
#else
#define FORLEAN(a, j)
#endif

#define FORATTEMPT(a) \
	:: d_step { MAYBEGIN(a) -> begin(a, 1) } \
	:: d_step { MAYBEGIN(a) -> begin(a, 2) } \
	:: d_step { MAYDECIDE(a, 0, 1) -> decide(a, 0, 1, 3) } \
	:: d_step { MAYDECIDE(a, 0, 2) -> decide(a, 0, 2, 3) } \
	:: d_step { MAYDECIDE(a, 1, 2) -> decide(a, 1, 2, 3) } \
	:: d_step { MAYDECIDE(a, 0, 1) && answer[LINK(a, 2)] != 0 -> decide(a, 0, 1, 2) } \
	:: d_step { WON(a, 0, 1) -> grant(a, 0, 1) } \
	:: d_step { WON(a, 0, 2) -> grant(a, 0, 2) } \
	:: d_step { WON(a, 1, 2) -> grant(a, 1, 2) } \
	FORLINK(a, 0) FORLINK(a, 1) FORLINK(a, 2) \
	FORLEAN(a, 0) FORLEAN(a, 1) FORLEAN(a, 2)

active proctype world()
{
end:	do
	FORATTEMPT(0)
	FORATTEMPT(1)
#if ATTEMPTS == 3
	FORATTEMPT(2)
#endif
#if PROPOSALS == 3
	:: d_step { MAYBEGIN(0) -> begin(0, 3) }
	:: d_step { MAYBEGIN(1) -> begin(1, 3) }
#endif
#ifdef MUTANT_REPEAT_LIES	/* A repeated acquire is answered as if it had moved the node. */
	:: d_step { phase[0] == ASKED && OURS(0, 0) -> record(0, 0, MOVED(proposal[0]), proposal[0] - 1); canonical() }
	:: d_step { phase[0] == ASKED && OURS(0, 1) -> record(0, 1, MOVED(proposal[0]), proposal[0] - 1); canonical() }
	:: d_step { phase[0] == ASKED && OURS(0, 2) -> record(0, 2, MOVED(proposal[0]), proposal[0] - 1); canonical() }
#endif
#ifdef LEAN
	:: d_step { value[0] != 0 && !forgot -> forgetRegister(0) }
	:: d_step { value[1] != 0 && !forgot -> forgetRegister(1) }
	:: d_step { value[2] != 0 && !forgot -> forgetRegister(2) }
#ifdef MUTANT_LEAN_REPEAT_COUNTS	/* An attempt that asks again takes its unproven lock for its first answer. */
	:: d_step { phase[0] == ASKED && OURS(0, 0) && lean[0] -> record(0, 0, MOVED(proposal[0]), proposal[0] - 1); canonical() }
	:: d_step { phase[0] == ASKED && OURS(0, 1) && lean[1] -> record(0, 1, MOVED(proposal[0]), proposal[0] - 1); canonical() }
	:: d_step { phase[0] == ASKED && OURS(0, 2) && lean[2] -> record(0, 2, MOVED(proposal[0]), proposal[0] - 1); canonical() }
#endif
#endif
#ifdef PASS
#ifdef LOSS
#define HEALOTHER(j)
#else
#define HEALOTHER(j) :: d_step { MAYHEAL(1, j) -> heal(1, j) }
#endif
#define FORHELD(j) \
	:: d_step { MAYEXTEND(j) -> confirmed[j] = !confirmed[j]; canonical() } \
	:: d_step { MAYHEAL(0, j) -> heal(0, j) } \
	HEALOTHER(j)
	FORHELD(0) FORHELD(1) FORHELD(2)
	:: d_step { phase[0] == GRANTED && waiter == ABSENT -> wait() }
	:: d_step { MAYPASS -> pass() }
#endif
#ifdef LOSS
	:: d_step { !lost && !saved -> save(0) }
	:: d_step { !lost -> restart(0) }
#endif
	od
}
