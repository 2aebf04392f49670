-- Takes the lock on this node, or says who has it.
--
-- KEYS[1]  the lock
-- KEYS[2]  its fence counter; absent without fencing
-- ARGV[1]  owner value of this attempt (32 hex digits)
-- ARGV[2]  what follows owner and counter in the lock's value
-- ARGV[3]  how long the lock lives, ms
-- ARGV[4]  how long the counter lives, ms
-- ARGV[5]  where a new counter starts, µs: the same for every node
-- ARGV[6]  how far this node's clock may pull that start towards itself, µs
-- ARGV[7]  not after: later than this the request is void, µs of the client's clock
-- ARGV[8]  this node's clock minus the client's clock, µs
-- ARGV[9]  no counter starts or goes on below this, µs (the end of a quarantine)
--
-- Replies
--   integer c    granted; c is this node's counter, 0 without fencing
--   {value, ms}  taken: the first 512 bytes of the holder's value, and how long it lives (-1: for ever)
--   {now}        too late: this node's clock, µs
--
-- A packet that was delayed must not lock for a client that has gone, hence
-- "not after". The counter goes forward before the lock is made, because Redis
-- does not roll back: a script that stops in between leaves no lock behind.
local held = redis.call('GET', KEYS[1])
if held then
  if string.sub(held, 1, 33) == ARGV[1] .. ' ' then
    return tonumber(string.match(held, '^%d+', 34)) or 0
  end
  return { string.sub(held, 1, 512), redis.call('PTTL', KEYS[1]) }
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > ARGV[7] + ARGV[8] then
  return { now }
end

local counter = 0
if KEYS[2] then
  local last = redis.call('GET', KEYS[2])
  if last then
    last = tonumber(last)
    if not last then
      return redis.error_reply('ERR quorumlock: the fence counter is not a number')
    end
    counter = last + 1
  else
    counter = math.min(math.max(tonumber(ARGV[5]), now - ARGV[6]), now + ARGV[6])
  end
  counter = math.max(counter, tonumber(ARGV[9]))
  redis.call('SET', KEYS[2], string.format('%.0f', counter), 'PX', ARGV[4])
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', counter) .. ' ' .. ARGV[2], 'PX', ARGV[3])
return counter
