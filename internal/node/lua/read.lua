-- Reads a lock without touching it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its fence counter; absent without fencing
-- KEYS[3]  its queue; absent without fencing
--
-- Replies {first 512 bytes of the value or nil, ms it lives (-2: absent, -1: for ever), counter or nil,
-- how many wait}.
local value = redis.call('GETRANGE', KEYS[1], 0, 511) -- somebody else's may be huge
local ttl = redis.call('PTTL', KEYS[1])
local counter, waiters = false, 0
if KEYS[2] then
  counter = redis.call('GET', KEYS[2])
end
if KEYS[3] then
  waiters = redis.call('ZCARD', KEYS[3])
end
return { ttl ~= -2 and value, ttl, counter, waiters }
