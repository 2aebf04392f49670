-- Tells whether this database is the one that was here before. A marker names
-- the server process: a restart and a failover to a replica change the one, a
-- FLUSHALL and a first use miss the other. A mismatch starts a quarantine of
-- the longest lease.
--
-- KEYS[1]  the marker: run_id, end of the quarantine in µs, longest lease in ms
-- ARGV[1]  run_id of the server, as INFO told on this very connection
-- ARGV[2]  longest lease, ms: the same for every client
-- ARGV[3]  1 to trust a database that has no marker and no key at all
-- ARGV[4]  1 to start a quarantine whatever the marker says: the clock was
--          stepped, or locks may have been evicted
--
-- Replies {now, until, max, marker}: this node's clock, and the end of the
-- quarantine, µs (0: none); the longest lease as the marker has it, ms; and the
-- marker itself, which every acquisition compares.
--
-- When the marker says another longest lease, nothing is changed. An end beyond
-- 2^53-1, where numbers have gaps, is nobody's clock: such a marker is none.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local marker = redis.call('GET', KEYS[1])
local run, ends, max
if marker then
  run, ends, max = string.match(marker, '^(%S+) (%d+) (%d+)$')
end
if run and tonumber(ends) < 9007199254740991 and (max ~= ARGV[2] or run == ARGV[1] and ARGV[4] ~= '1') then
  return { now, tonumber(ends), tonumber(max), marker }
end
ends = now + ARGV[2] * 1000
if not marker and ARGV[3] == '1' and redis.call('DBSIZE') == 0 then
  ends = 0
end
marker = ARGV[1] .. ' ' .. string.format('%.0f', ends) .. ' ' .. ARGV[2]
redis.call('SET', KEYS[1], marker)
return { now, ends, tonumber(ARGV[2]), marker }
