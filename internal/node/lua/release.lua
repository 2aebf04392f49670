-- Deletes the lock if it is ours.
--
-- KEYS[1]  the lock
-- KEYS[2]  its fence counter; absent without fencing
-- ARGV[1]  owner value
-- ARGV[2]  token of the lease, or 0 for an attempt that was never granted
-- ARGV[3]  how long the counter outlives its use, and the clock's way up to it (see acquire.lua), ms
--
-- Replies 1 deleted, 0 it did not exist, -1 it is somebody else's.
--
-- A lease raises the counter to its token on the way out. A failed attempt
-- takes its own step back if nobody stepped since: that keeps the counters of
-- the nodes level, and level counters make the next grant one round trip.
local held = redis.call('GETRANGE', KEYS[1], 0, 511)
if held == '' and redis.call('PTTL', KEYS[1]) == -2 then
  return 0
end
if string.sub(held, 1, 33) ~= ARGV[1] .. ' ' then
  return -1
end
redis.call('DEL', KEYS[1])
if KEYS[2] then
  local last = redis.pcall('GET', KEYS[2])
  last = type(last) == 'string' and tonumber(string.match(last, '^%d+$'))
  if last and last > 9007199254740991 then -- no counter of ours, see acquire.lua
    last = nil
  end
  local token = tonumber(ARGV[2])
  local to
  if last and token > last then
    to = token
  elseif last and token == 0 and last == tonumber(string.match(held, '^%d+', 34)) then
    to = last - 1
  end
  if to then
    local time = redis.call('TIME')
    local forgotten = math.max(time[1] * 1000000 + time[2], to)
    forgotten = (forgotten - forgotten % 1000) / 1000 + ARGV[3]
    redis.call('SET', KEYS[2], string.format('%.0f', to), 'PXAT', forgotten)
  end
end
return 1
