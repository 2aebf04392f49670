/*
 * Fencing tokens of readers and writers.
 *
 * Three nodes, a majority is two. Each node has a register. Of ATTEMPTS attempts the first READERS read and the
 * others write. There is no clock, and there is no lock either: any acquisition may find the lock free, and a raise
 * counts although the key is gone, which allows more than the protocol does. Requests may arrive at any time, any
 * number of times, or never; so may answers.
 *
 * A writer's attempt proposes a value. A node that grants moves its register to it (or, with CAP, to a bound of its
 * own), if that is above the register + 1, else it is ahead. A writer has won when it moved two nodes to one value; if
 * not it raises nodes to one value, at least 2 above the largest that was ahead. A reader moves nothing: a node that
 * grants shows its register. With two nodes, R is the largest that was shown. Nodes that showed less align: they move
 * the register to R, and refuse if it is above R. The reader's token is R + 1. A writer has a block of tokens, from
 * the largest register before the two moves that count, + 2, to the value of the moves.
 *
 * The nodes have even registers only, clients propose even values, and a move is strictly upwards. Between even numbers
 * "above v" is "at least v + 2", so each step of theirs is a step of this model, in which registers may be odd too
 * (ODD).
 *
 * Claims: no token of a writer is another writer's or a reader's; a writer's tokens are above all that were granted
 * before its attempt began; a reader's is above those of all writers that were granted before it began.
 */
#define NODES 3
#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#ifndef READERS
#define READERS 1
#endif
#define READS(a) ((a) < READERS)
#define LINK(a, n) ((a) * NODES + (n))

byte value[NODES];
#define IDLE 0
#define ASKED 1
#define GRANTED 2
byte phase[ATTEMPTS];
byte proposal[ATTEMPTS];
byte target[ATTEMPTS];	/* of the raise or of the align, + 1; 0 for none */
#define SHOWN(v) (16 + (v))	/* ahead at, or read */
#define MOVED(v) (32 + (v))
#define ISMOVED(x) ((x) >= 32)
#define AT(x) ((x) & 15)
byte answer[ATTEMPTS * NODES];
byte before[ATTEMPTS * NODES];	/* the register before the move that counts */
/* What was granted: the sets of tokens, and the largest ones. */
int written, read;
byte lastwritten, lastread;
byte floor[ATTEMPTS];	/* the largest token that has to be below this attempt's */

hidden byte i, y, z;

#define MAYBEGIN(a) (phase[a] == IDLE && ((a) == 0 || (a) == READERS || phase[(a) - ((a) > 0)] != IDLE)) /* attempts that are alike begin in order */
inline begin(a, p)
{
	phase[a] = ASKED;
	proposal[a] = (READS(a) -> 0 : p);
	floor[a] = (READS(a) || lastwritten > lastread -> lastwritten : lastread)
}
inline record(a, n, what, was)
{
	answer[LINK(a, n)] = what;
	before[LINK(a, n)] = was
}

/* An acquisition, with the value t. That of a reader changes nothing, so it matters only if it is answered. After the
   decision only nodes at the value that was decided on count. */
#ifdef MUTANT_WRITER_MOVES_BY_ONE	/* A writer may move a register to the next value. */
#define ROOM 0
#else
#define ROOM 1
#endif
#define MOVES(a, n, t) (!READS(a) && (t) > value[n] + ROOM)
#define MAYTAKE(a, n, t) (phase[a] != IDLE && MOVES(a, n, t))
#define MAYTELL(a, n, t) (phase[a] == ASKED && answer[LINK(a, n)] == 0 && !MOVES(a, n, t) && (target[a] == 0 || (READS(a) && value[n] == target[a] - 1)))
inline take(a, n, t, answered)
{
	if
	:: answered && phase[a] == ASKED && answer[LINK(a, n)] == 0 && (target[a] == 0 || target[a] - 1 == t) -> record(a, n, MOVED(t), value[n])
	:: else
	fi;
	value[n] = t
}
inline tell(a, n)
{
	answer[LINK(a, n)] = value[n] + (target[a] == 0 -> SHOWN(0) : MOVED(0))
}

/* Two nodes have granted. */
#define HAVE(a, p, q) (phase[a] == ASKED && target[a] == 0 && answer[LINK(a, p)] && answer[LINK(a, q)])
#define NEED(a, n) (AT(answer[LINK(a, n)]) + (READS(a) || ISMOVED(answer[LINK(a, n)]) -> 0 : 1 + ROOM))
inline decide(a, p, q)
{
	y = (NEED(a, p) > NEED(a, q) -> NEED(a, p) : NEED(a, q));
	target[a] = y + 1;
	i = 0;
	do
	:: i < NODES ->
		if
		:: !READS(a) && answer[LINK(a, i)] == MOVED(y)
		:: READS(a) && answer[LINK(a, i)] != 0 && AT(answer[LINK(a, i)]) == y -> answer[LINK(a, i)] = MOVED(y)
#ifdef MUTANT_READER_DOES_NOT_ALIGN	/* Nodes that showed less count for the reader's token. */
		:: READS(a) && answer[LINK(a, i)] != 0 && AT(answer[LINK(a, i)]) < y -> answer[LINK(a, i)] = MOVED(y)
#endif
		:: else -> record(a, i, 0, 0)
		fi;
		i++
	:: else -> break
	od;
	i = 0; y = 0
}

/* A raise of a writer, or an align of a reader: the value is target - 1. */
#define MAYRAISE(a, n) (target[a] != 0 && value[n] + (READS(a) -> 0 : ROOM) < target[a] - 1)
#ifdef MUTANT_ALIGN_COUNTS_ABOVE	/* An align counts where the register is above R. */
#define MAYSTAY(a, n) (READS(a) && phase[a] == ASKED && target[a] != 0 && answer[LINK(a, n)] == 0 && value[n] > target[a] - 1)
#else
#define MAYSTAY(a, n) false
#endif
inline raise(a, n, answered)
{
	if
	:: answered && phase[a] == ASKED && answer[LINK(a, n)] == 0 -> record(a, n, MOVED(target[a] - 1), (READS(a) -> 0 : value[n]))
	:: else
	fi;
	value[n] = target[a] - 1
}

#define WON(a, p, q) (phase[a] == ASKED && target[a] != 0 && answer[LINK(a, p)] == MOVED(target[a] - 1) && answer[LINK(a, q)] == MOVED(target[a] - 1))
#ifdef MUTANT_BLOCK_BEGINS_AT_THE_NEXT_VALUE	/* A block begins at the register before + 1, which may be a reader's token. */
#define FIRST(b) ((b) + 1)
#else
#define FIRST(b) ((b) + 2)
#endif
inline grant(a, p, q)
{
	y = target[a] - 1;
	if
	:: READS(a) ->
#ifndef MUTANT_READERS_TOKEN_IS_THE_REGISTER	/* The reader's token is R. */
		y++;
#endif
		assert(y > floor[a]);
		assert((written & (1 << y)) == 0);
		read = read | (1 << y);
		lastread = (y > lastread -> y : lastread)
	:: else ->
		i = (before[LINK(a, p)] > before[LINK(a, q)] -> before[LINK(a, p)] : before[LINK(a, q)]);
		i = (FIRST(i) < y -> FIRST(i) : y);
		assert(i > floor[a]);
		do
		:: i <= y ->
			assert(((written | read) & (1 << i)) == 0);
			written = written | (1 << i);
			i++
		:: else -> break
		od;
		lastwritten = (y > lastwritten -> y : lastwritten)
	fi;
	phase[a] = GRANTED; floor[a] = 0; i = 0; y = 0;
	record(a, 0, 0, 0); record(a, 1, 0, 0); record(a, 2, 0, 0)
}

/* A value that no register can be moved to any more is as good as none. */
#define PASSED(v, room) (value[0] + (room) >= (v) && value[1] + (room) >= (v) && value[2] + (room) >= (v))
inline simplify(a)
{
	proposal[a] = (PASSED(proposal[a], ROOM) -> 0 : proposal[a]);
	target[a] = (phase[a] == GRANTED && target[a] != 0 && PASSED(target[a] - 1, (READS(a) -> 0 : ROOM)) -> 0 : target[a])
}
/* Nodes are alike, so states that differ only by a permutation of nodes are one state. */
#if ATTEMPTS == 4
#define RANK(n) ((((value[n] * 64 + answer[LINK(0, n)]) * 64 + answer[LINK(1, n)]) * 64 + answer[LINK(2, n)]) * 64 + answer[LINK(3, n)])
#define RESTOF(n) (((before[LINK(0, n)] * 16 + before[LINK(1, n)]) * 16 + before[LINK(2, n)]) * 16 + before[LINK(3, n)])
#else
#define RANK(n) (((value[n] * 64 + answer[LINK(0, n)]) * 64 + answer[LINK(1, n)]) * 64 + answer[LINK(2, n)])
#define RESTOF(n) ((before[LINK(0, n)] * 16 + before[LINK(1, n)]) * 16 + before[LINK(2, n)])
#endif
inline exchange(p, q)
{
	y = p; p = q; q = y
}
inline exchangeall(a, k, l)
{
	exchange(answer[LINK(a, k)], answer[LINK(a, l)]);
	exchange(before[LINK(a, k)], before[LINK(a, l)])
}
inline sort(m, n)
{
	if
	:: RANK(m) > RANK(n) || (RANK(m) == RANK(n) && RESTOF(m) > RESTOF(n)) ->
		exchange(value[m], value[n]);
		exchangeall(0, m, n); exchangeall(1, m, n); exchangeall(2, m, n);
#if ATTEMPTS == 4
		exchangeall(3, m, n);
#endif
		y = 0
	:: else
	fi
}
inline canonical()
{
	simplify(0); simplify(1); simplify(2);
#if ATTEMPTS == 4
	simplify(3);
#endif
	sort(0, 1); sort(1, 2); sort(0, 1)
}

#ifdef CAP
#define CAPPED(a, n) \
	:: d_step { proposal[a] > 2 && MAYTAKE(a, n, proposal[a] - 2) -> take(a, n, proposal[a] - 2, 1) } \
	:: d_step { proposal[a] > 2 && MAYTAKE(a, n, proposal[a] - 2) -> take(a, n, proposal[a] - 2, 0) } \
	:: d_step { proposal[a] > 2 && MAYTELL(a, n, proposal[a] - 2) -> tell(a, n) }
#else
#define CAPPED(a, n)
#endif
#define FORLINK(a, n) \
	:: d_step { MAYTAKE(a, n, proposal[a]) -> take(a, n, proposal[a], 1) } \
	:: d_step { MAYTAKE(a, n, proposal[a]) -> take(a, n, proposal[a], 0) } \
	:: d_step { MAYTELL(a, n, proposal[a]) -> tell(a, n) } \
	:: d_step { MAYRAISE(a, n) -> raise(a, n, 1) } \
	:: d_step { MAYRAISE(a, n) -> raise(a, n, 0) } \
	:: d_step { MAYSTAY(a, n) -> record(a, n, MOVED(target[a] - 1), 0) } \
	CAPPED(a, n)
#ifdef TWO
#define OTHERPROPOSALS(a)
#else
#ifdef ODD
#define OTHERPROPOSALS(a) \
	:: d_step { MAYBEGIN(a) && !READS(a) -> begin(a, 3) } \
	:: d_step { MAYBEGIN(a) && !READS(a) -> begin(a, 4) }
#else
#define OTHERPROPOSALS(a) :: d_step { MAYBEGIN(a) && !READS(a) -> begin(a, 4) }
#endif
#endif
#define FORATTEMPT(a) \
	:: d_step { MAYBEGIN(a) -> begin(a, 2) } \
	OTHERPROPOSALS(a) \
	:: d_step { HAVE(a, 0, 1) -> decide(a, 0, 1) } \
	:: d_step { HAVE(a, 0, 2) -> decide(a, 0, 2) } \
	:: d_step { HAVE(a, 1, 2) -> decide(a, 1, 2) } \
	:: d_step { WON(a, 0, 1) -> grant(a, 0, 1) } \
	:: d_step { WON(a, 0, 2) -> grant(a, 0, 2) } \
	:: d_step { WON(a, 1, 2) -> grant(a, 1, 2) } \
	FORLINK(a, 0) FORLINK(a, 1) FORLINK(a, 2)

active proctype world()
{
end:	do
	:: atomic {
		if
		FORATTEMPT(0)
		FORATTEMPT(1)
		FORATTEMPT(2)
#if ATTEMPTS == 4
		FORATTEMPT(3)
#endif
		fi;
		d_step { canonical() }
	   }
	od
}
