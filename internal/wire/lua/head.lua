-- This script runs a list of operations on the locks of one prefix, in their order, and
-- answers each. It is joined from the files beside this one, which script.go lists; each
-- describes its operations. This file reads what all operations need, and writes nothing.
--
-- KEYS[1]  the registers: a sorted set, lock -> fencing register, µs
-- KEYS[2]  the base: the least value of every register
-- KEYS[3]  the hint: it exists while a lock of the prefix may have a queue
-- KEYS[4]  the restart guard's marker
-- KEYS[5]  the lists of nodes in use, see lists.lua
-- KEYS[6…] the lock of each operation. With 'k' in ARGV[6] its companions follow each: its queue,
--          its watch (see queue.lua), and its set (see shared.lua and permits.lua)
-- ARGV[1]  this node's clock minus the client's, µs
-- ARGV[2]  when the call was sent, µs of the client's clock
-- ARGV[3]  the marker that the client knows, or a text that matches no marker while the
--          node is in quarantine; '' without the guard, which votes only where there is no
--          marker, or one that ends in 'open', or binds no client any more (see guard.lua)
-- ARGV[4]  the prefix of the channels on which waiters are woken
-- ARGV[5]  how far a register may move ahead of this node's clock, µs; '' without fencing
-- ARGV[6]  's' if the client is subscribed here, so that its tickets may queue; '1' if
--          this is the only node; 'w' if it knows the answers of extend about who wants a lock;
--          'k' if the call has the companions. Without them it runs acquire, release and extend
--          of a lock that is no slot, unless they turn out to need a companion; and what needs
--          none: back of such a lock, and what concerns no lock;
--          'c' if the node is a slot of a cluster: a channel is of its slot then, because a
--          PUBLISH goes to each server of the cluster
-- ARGV[7…] each operation: its name, and its arguments, as the other files list them
--
-- Reply {now, codes, r…}: this node's clock, µs; one character for each operation: '1',
-- '2', '0' for that number, '-' for -1, '*' for an answer that is one of the r, and '?' for an
-- operation that needs its companions, and has changed nothing. An
-- operation that fails answers {error}, and the others still run. (One string for the
-- numbers costs server and client a fraction of an array.)
--
-- A lock ends at an absolute instant. Otherwise a server that is frozen between reading
-- its clock and the SET would bring a lock back when it resumes. For the same reason
-- extend checks ARGV[2]: a lock that has expired by then stays missing.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local ms = (now - now % 1000) / 1000
local offset, cap = ARGV[1] + 0, tonumber(ARGV[5])
local sent = ARGV[2] + offset -- when the call was sent, by this node's clock
local known = call('MGET', KEYS[2], KEYS[3], KEYS[4])
local base, hint, marker = tonumber(known[1] or 0), known[2], known[3]
if not base or not (base < 1 / 0) then
  base = 1 / 0 -- no number, or no usable one: see register
end
local votes = ARGV[3] == marker or ARGV[3] == '' and (not marker or string.sub(marker, -4) == 'open')
local codes, ones, details = '', 0, nil -- the characters, how many '1' follow them, and the r of the reply
local key, arg = 6, 7 -- of the next operation
local step = string.find(ARGV[6], 'k', 1, true) and 4 or 1
local queue, watch, set -- the companions of the operation that runs; the slots of a name share theirs
local slot -- whether its lock is a slot
local made -- the lock that an unfinished acquisition has created

-- Reports whether readers have a lock that shows held, of which 44 bytes are enough: the string that
-- shared.lua makes, or the same with a mark of mark.lua. Everything else is another client's.
local function readers(held)
  return held == 's 00000000000000000000000000000000 0 0 - '
    or string.sub(held, 1, 44) == 's 00000000000000000000000000000000 a 0 0 - \255'
end

-- The fencing register of a lock: none is below the base.
local function register(lock)
  if base == 1 / 0 then
    error('quorumlock: the base of the registers is no number', 0)
  end
  return math.max(tonumber(call('ZSCORE', KEYS[1], lock) or 0), base)
end

-- The instant that many ms from now, as text: Redis before 7.2 converts numbers slowly,
-- and most locks of a call have the same duration.
local asked, instant
local function after(duration)
  if asked ~= duration then
    asked, instant = duration, string.format('%.0f', ms + duration)
  end
  return instant
end
