-- This script makes a lock, or deletes one of ours, in the common case: the lock is free, or shows our owner and no
-- waiter is known. Otherwise it leaves nothing behind, and the client asks the usual script, run.lua. A
-- lone caller's operations come one by one, and for one operation the arguments and functions of the usual script
-- cost a good part of the call. What this script does not compare, the client reads behind it, in the same batch: see
-- Lean in lean.go.
--
-- KEYS[1]  the lock
-- KEYS[2]  to make it, the registers; to delete it, the hint, as in head.lua
-- ARGV[1]  acquire or release
-- ARGV[2]  the value; to delete the lock, 'owner '
-- ARGV[3]  when the lock ends, ms of this node's clock
-- ARGV[4]  the value to which the register moves
-- ARGV[5]  how far it may move ahead of this node's clock, µs, as in head.lua: also a move that counts for no vote binds
--          the next clients
--
-- Reply: 1 done, 0 not done, -1 not done because the register is not below ARGV[4], or may not move so far, -2 the same,
-- and the lock cannot be deleted. After an error nothing was done.
local call, lock, value = redis.call, KEYS[1], ARGV[2]
if ARGV[1] == 'release' then
  return call('EXISTS', KEYS[2]) == 0 and call('GETRANGE', lock, '0', '32') == value and call('DEL', lock) or 0
end
local time = call('TIME')
if ARGV[4] - time[1] * 1000000 - time[2] > ARGV[5] + 0 then
  return -1
elseif not call('SET', lock, value, 'NX', 'PXAT', ARGV[3]) then
  return 0
elseif redis.pcall('ZADD', KEYS[2], 'GT', 'CH', ARGV[4], lock) == 1 then
  return 1
end
return redis.pcall('DEL', lock) == 1 and -1 or -2
