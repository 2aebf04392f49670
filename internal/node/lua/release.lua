-- Deletes the lock if it is ours, and gives it to the first in its queue.
--
-- KEYS[1]  the lock
-- KEYS[2]  its fence counter; absent without fencing
-- KEYS[3]  its queue; absent without fencing
-- ARGV[1]  owner value; or the ticket for which the lock is kept, to pass it on
-- ARGV[2]  token of the lease, or 0 for an attempt that was never granted
-- ARGV[3]  how long the counter outlives its use, and the clock's way up to it, ms
-- ARGV[4]  ticket of whoever waited or waits; '' for who did not
-- ARGV[5]  its place in the queue if it goes on waiting; '' if it does not
-- ARGV[6]  1 if it lets the others go first
-- ARGV[7]  how the channels on which waiters are told begin
--
-- Replies 1 deleted, 2 deleted and kept for somebody who waits, 0 it did not exist,
-- -1 it is somebody else's.
--
-- A lease raises the counter to its token on the way out. A failed attempt
-- takes its own step back if nobody stepped since: that keeps the counters of
-- the nodes level, and level counters make the next grant one round trip.
local held = redis.call('GETRANGE', KEYS[1], 0, 511)
local ours = string.sub(held, 1, 33) == ARGV[1] .. ' '
local free = held == '' and redis.call('PTTL', KEYS[1]) == -2
local time
if ours then
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
    elseif last and token == 0 and last == tonumber(string.match(held, '^%d+', 34) or '') then
      to = last - 1
    end
    if to then
      time = redis.call('TIME')
      redis.call('SET', KEYS[2], string.format('%.0f', to), 'PXAT', forgotten(time[1] * 1000000 + time[2], to, ARGV[3]))
    end
  end
end
local given
if KEYS[3] then
  local queue, ticket, place, past = KEYS[3], ARGV[4], ARGV[5], ARGV[6] == '1'
  if place ~= '' and held == string.sub(ticket, 1, 32) .. ' w ' then
    return -1 -- kept for it meanwhile: back in the queue, it would get its turn twice
  end
  if place ~= '' and not past then
    redis.call('ZADD', queue, 'NX', place, ticket)
  elseif ticket ~= '' then
    redis.call('ZREM', queue, ticket)
  end
  if ours or free then
    given = give(KEYS[1], queue, ticket, ARGV[7])
  end
  if place ~= '' and (past or given == ticket) then
    redis.call('ZADD', queue, 'NX', place, ticket)
  end
  if place ~= '' then
    time = time or redis.call('TIME')
    redis.call('PEXPIREAT', queue, time[1] * 1000 + 60000)
  end
end
return ours and (given and given ~= ARGV[4] and 2 or 1) or free and 0 or -1
