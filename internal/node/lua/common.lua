-- Goes before the scripts that share it.

-- Says when a counter is forgotten, as PXAT takes it: so long after its use, and
-- after this node's clock has come up to it. A counter may be ahead of that clock:
-- another node's date is wrong, or a quarantine ended by such a clock. Forgotten
-- before the clock has come up to it, it would start anew below what was granted.
-- now and counter in µs, life in ms.
local function forgotten(now, counter, life)
  local used = math.max(now, counter)
  return (used - used % 1000) / 1000 + life
end

-- The queue of a lock has the tickets of those who wait, by when they came: a
-- number that is the same on every node, so that all have the same order. A lock
-- that is free is kept for the first of them, for as long as its ticket says, and
-- that one is told. It is no vote: who was told still has to acquire. Who does not
-- listen any more (PUBLISH reaches nobody) is dropped. One that is frozen is still
-- connected, so the second is told that it may be its turn when the grace is over.
--
-- A message is 'k' (kept) or 'n' (next), the ticket's name, and the lock.
--
-- Whoever is first is taken out. me is here and need not be told. Returns its
-- ticket, or nothing when nobody waits.
local function give(lock, queue, me, channels)
  for _ = 1, 64 do -- a script stops the server; the rest is for the next one
    local ahead = redis.call('ZRANGE', queue, 0, 1)
    local first, second = ahead[1], ahead[2]
    if not first then
      return nil
    end
    redis.call('ZREM', queue, first)
    if first == me and me ~= '' then -- a member '' is garbage, and me '' is nobody
      return first
    end
    local ticket, grace = string.sub(first, 1, 32), string.match(first, '^[1-9]%d?%d?$', 33)
    if grace and redis.call('PUBLISH', channels .. string.sub(ticket, 1, 16), 'k' .. ticket .. lock) > 0 then
      redis.call('SET', lock, ticket .. ' w ', 'PX', grace)
      if second and second ~= me then
        redis.call('PUBLISH', channels .. string.sub(second, 1, 16), 'n' .. string.sub(second, 1, 32) .. lock)
      end
      return first
    end
  end
end
