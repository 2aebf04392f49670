-- Tells whether this database is the one that was here before: a restart, a
-- failover to a replica, and a FLUSHALL before this connection, are caught by a
-- marker that names the server process. A mismatch starts a quarantine of the longest lease.
--
-- KEYS[1]  the marker
-- ARGV[1]  run_id of the server, as INFO told on this very connection
-- ARGV[2]  longest lease, ms: the same for every client
-- ARGV[3]  1 to trust a database that has no marker and no key at all
--
-- Replies {now, until}: this node's clock, and the end of the quarantine, µs
-- (0: none); or {now, 0, max} when the marker says another longest lease.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local marker = redis.call('HMGET', KEYS[1], 'run', 'until', 'max')
if marker[3] and marker[3] ~= ARGV[2] then
  return { now, 0, tonumber(marker[3]) }
end
if marker[1] == ARGV[1] then
  return { now, tonumber(marker[2]) or 0 }
end
local ends = now + ARGV[2] * 1000
if not marker[1] and ARGV[3] == '1' and redis.call('DBSIZE') == 0 then
  ends = 0
end
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'until', string.format('%.0f', ends), 'max', ARGV[2])
return { now, ends }
