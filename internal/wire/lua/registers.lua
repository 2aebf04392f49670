-- forget   age most                drops registers older than age, µs, at most `most` of
--          them: how many it dropped
--
-- This file decides which value a fencing register gets: it only grows, and none is below
-- the base. Values are even: the odd numbers are tokens of readers, which move no register.
-- It reads and writes the registers, KEYS[1], the base, KEYS[2], and the lock, which shows
-- the register's value; it reads the queue's length.

-- Moves the register of a lock that was just created with value. If the register ends
-- up at another value than t, the lock shows that value.
function f.move(lock, value, t)
  local waiting = hint and call('ZCARD', queue) or 0
  if not cap then
    return waiting == 0 and 1 or { 0, 0, waiting }
  end
  t = tonumber(t)
  local from = register(lock)
  local target = math.min(t, now + cap)
  target = target - target % 2
  local following = from + 2 - from % 2
  if following > target and following < 9007199254740992 and string.find(ARGV[6], '1', 1, true) then
    target = following
  end
  if target <= from then
    target = 0
  end
  local text = string.format('%.0f', target)
  if target > 0 then
    call('ZADD', KEYS[1], text, lock)
  end
  if target ~= t then
    local owner, metadata = string.match(value, '^(%x+ )%d+( .*)$')
    call('SET', lock, owner .. text .. metadata, 'XX', 'KEEPTTL')
  end
  return { target, from, waiting }
end

-- Lets what follows write on a server at its maxmemory, too. It removes nothing; but a script that
-- has written may write more. A user who may not run it is told of that where room matters.
function f.room()
  redis.pcall('ZREM', KEYS[1], '')
end

-- The base is raised before the registers are dropped. A user without the right to SET would
-- otherwise drop registers and leave the base, and a later token could be lower.
function f.forget(_, age, most)
  if base == 1 / 0 then
    return 0 -- it has to be raised to the dropped registers, and its value is unknown
  end
  local old = call('ZRANGE', KEYS[1], '-inf', string.format('%.0f', now - age), 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')
  if #old == 0 then
    return 0
  end
  local names = {}
  for i = 1, #old, 2 do
    names[#names + 1] = old[i]
  end
  f.room()
  f.rebase(tonumber(old[#old]))
  call('ZREM', KEYS[1], unpack(names))
  return #names
end

function f.rebase(to)
  if to > base or base == 1 / 0 then
    base = to
    call('SET', KEYS[2], string.format('%.0f', to))
  end
end
