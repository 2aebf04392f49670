-- Takes the lock on this node, or says who has it and waits in its queue.
--
-- KEYS[1]  the lock
-- KEYS[2]  its fence counter
-- KEYS[3]  its queue
-- KEYS[4]  the restart guard's marker; absent without the guard
--          Without fencing there is neither counter nor queue: 2 and 3 are
--          absent, or the lock again before 4.
-- ARGV[1]  owner value of this attempt (32 hex digits)
-- ARGV[2]  what follows owner and counter in the lock's value
-- ARGV[3]  how long the lock lives, ms
-- ARGV[4]  how long the counter outlives its use, and the clock's way up to it, ms
-- ARGV[5]  where a new counter starts, µs: the same for every node
-- ARGV[6]  how far this node's clock may pull that start towards itself, µs
-- ARGV[7]  not after: later than this the request is void, µs of the client's clock
-- ARGV[8]  ticket of whoever waits; '' for who does not
-- ARGV[9]  its place in the queue: when the wait began, µs, the same for every node
-- ARGV[10] this node's clock minus the client's clock, µs
-- ARGV[11] no counter starts or goes on below this, µs (the end of a quarantine)
-- ARGV[12] 1 if the client listens on this node's channels, so that it may queue
-- ARGV[13] how the channels on which waiters are told begin
-- ARGV[14] what the marker says, as the client knows it; absent without the guard
--
-- Replies
--   'c now'      granted: this node's counter (0 without fencing), and its clock, µs;
--                one string, because each part of an array costs the client memory
--   {value, ms, place}  taken: the first 512 bytes of the holder's value, how long it
--                lives (-1: for ever), and how many are before us in the queue (-1: we
--                are not in it)
--   {now}        too late: this node's clock, µs
--   {}           the marker is another one: this data is not what the client takes it for
--
-- The marker is read by the command that reads the lock, so the guard costs no
-- command here, and what wipes the lock (FLUSHALL, an old copy of the data)
-- wipes the marker with it. MGET takes a lock of another type for none, and
-- GETRANGE takes an empty one for none, hence the NX of the SET below, and the
-- GETRANGE that then tells the error. (GETRANGE and not GET, because a value of
-- somebody else's may be huge; under the guard MGET has to read it all.)
--
-- A packet that was delayed must not lock for a client that has gone, hence
-- "not after". The counter goes forward before the lock is made, because Redis
-- does not roll back: a script that stops in between leaves no lock behind.
--
-- A lock's end is an instant and no length of time: a server that is frozen
-- between the look at its clock and the SET would lock anew when it runs on. (So
-- it does with PX before Redis 7.2, which stops the clock for a script.) If it
-- is frozen before that look, "not after" has gone by.
local lock, queue, ticket = KEYS[1], KEYS[3], ARGV[8]
local held
if KEYS[4] then
  local found = redis.call('MGET', lock, KEYS[4])
  if found[2] ~= ARGV[14] then
    return {}
  end
  held = found[1]
else
  held = redis.call('GETRANGE', lock, 0, 511)
  if held == '' then
    held = false -- or an empty value, see the end
  end
end
if queue == lock then
  queue = nil
end
local waits = queue and ticket ~= '' and ARGV[12] == '1'
local kept = held and ticket ~= '' and string.sub(held, 1, 35) == string.sub(ticket, 1, 32) .. ' w '
local ours = held and string.sub(held, 1, 33) == ARGV[1] .. ' '
local now, late
if waits or not held or kept or ours then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  late = now > ARGV[7] + ARGV[10]
end

local function enqueue()
  redis.call('ZADD', queue, 'NX', ARGV[9], ticket)
  redis.call('PEXPIREAT', queue, (now - now % 1000) / 1000 + 60000) -- who waits looks more often than that
end

local function taken(by)
  local place = -1
  if waits and not late then
    enqueue()
    place = redis.call('ZRANK', queue, ticket) or -1
  end
  return { string.sub(by, 1, 512), redis.call('PTTL', lock), place }
end

if held and not kept and not ours then
  return taken(held)
end
if late then
  return { now }
end
local ends = (now - now % 1000) / 1000 + ARGV[3] -- ms; such a number is written with all its digits
if ours then
  -- Refused by a replica, which has the lock from its master: that is no vote.
  redis.call('PEXPIREAT', lock, ends)
  return string.format('%s %.0f', string.match(held, '^%d+', 34) or '0', now)
end
if queue and not kept and redis.call('ZCARD', queue) > 0 and redis.call('PTTL', lock) == -2 then -- an empty value is a lock
  if waits then
    enqueue()
  end
  local first = give(lock, queue, ticket, ARGV[13])
  if first and first ~= ticket then
    return taken(string.sub(first, 1, 32) .. ' w ')
  end
end

local counter, before, forget = 0, nil, nil
if KEYS[2] and KEYS[2] ~= lock then
  local last = redis.call('GET', KEYS[2])
  before = last
  if last then
    last = tonumber(string.match(last, '^%d+$'))
    if not last or last >= 9007199254740991 then -- 2^53-1: beyond, numbers have gaps
      return redis.error_reply('ERR quorumlock: the fence counter is not a number')
    end
    counter = last + 1
  else
    counter = math.min(math.max(tonumber(ARGV[5]), now - ARGV[6]), now + ARGV[6])
  end
  counter = math.max(counter, tonumber(ARGV[11]))
  forget = forgotten(now, counter, ARGV[4])
  redis.call('SET', KEYS[2], string.format('%.0f', counter), 'PXAT', forget)
end
local value = ARGV[1] .. ' ' .. string.format('%.0f', counter) .. ' ' .. ARGV[2]
if not redis.call('SET', lock, value, kept and 'XX' or 'NX', 'PXAT', ends) then
  if before then
    redis.call('SET', KEYS[2], before, 'PXAT', forget)
  elseif before == false then
    redis.call('DEL', KEYS[2])
  end
  return taken(redis.call('GETRANGE', lock, 0, 511))
end
return string.format('%.0f %.0f', counter, now)
