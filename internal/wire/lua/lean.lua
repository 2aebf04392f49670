-- This script runs one `acquire` or one `release`, as run.lua describes them, and only in the
-- common case: a free lock, and one of ours, under a prefix without queues. In
-- all other cases it changes nothing, and answers '?' or an error; then the client asks the
-- usual script. A lone caller's operations come one by one, and for one operation the arguments
-- and functions of the usual script cost a good part of the call.
--
-- KEYS[1]  the lock; for a release also
-- KEYS[2]  the hint; for an acquire also
-- KEYS[2…] the registers, the base, the hint and the marker, as in head.lua
-- ARGV[1…] the operation; for an acquire also
-- ARGV[6]  this node's clock minus the client's, µs
-- ARGV[7]  the marker that the client knows, as in head.lua
-- ARGV[8]  how far a register may move ahead of this node's clock, µs
--
-- Reply {now, code}, as that of head.lua; now is 0 for a release, which needs no clock.
local call = redis.call
local lock, value = KEYS[1], ARGV[2]
if ARGV[1] == 'release' then
  local ours = call('EXISTS', KEYS[2]) == 0 and call('GETRANGE', lock, '0', '32') == value
  return { 0, ours and call('DEL', lock) == 1 and '1' or '?' }
end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local known = call('MGET', KEYS[3], KEYS[4], KEYS[5])
local base, hint, marker, t = tonumber(known[1] or 0), known[2], known[3] or '', ARGV[5] + 0
local stop = string.format('%.0f', (now - now % 1000) / 1000 + ARGV[3])
local moves = base and base < t and t <= now + ARGV[8]
if not moves or hint or marker ~= ARGV[7] or now > ARGV[4] + ARGV[6] or not call('SET', lock, value, 'NX', 'PXAT', stop) then
  return { now, '?' }
elseif redis.pcall('ZADD', KEYS[2], 'GT', 'CH', ARGV[5], lock) == 1 then
  return { now, '1' }
end
local gone = redis.pcall('DEL', lock) -- if it failed, the usual script would take our lock for an answer that was lost
return gone == 1 and { now, '?' } or { now, '*', { gone.err } }
