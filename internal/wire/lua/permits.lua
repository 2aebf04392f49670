-- permit   value ms not_after t ticket place limit mode   acquires the slot of a permit, of which
--          there are `limit`; ticket is '' for a client that does not queue
--     granted, late and the marker as for acquire
--     {held, ms, position, free}  taken: as for acquire, but ms is that of the slot that ends first;
--                                 and a slot that may be asked for at once, -1 if there is none.
--                                 A slot that is free and kept for others has '' for held, and ms
--                                 until their rights end
--
-- This file decides which waiters may take a slot. A slot is a lock as any other, 'name\255p3', and
-- all slots of a name have one queue, that of 'name\255p'. A waiter is let in to the name and not to
-- a slot: while it is in the set of those who are let in ('\255a', by the instants at which that
-- ends, ms), it may take any slot that is free. There are never more of them than free slots. The
-- message that wakes it names a slot, so that those who are let in together ask for different ones.
-- A ticket ends with 'p' and the limit of its client. The file reads the slots, and reads and writes
-- the queue and the set; release, leave and quit of a ticket come here for slots.
--
-- The index ('\255t') says which slots are free without a look at each: a sorted set of the numbers
-- 0, 1, … A free slot has its number as the score, and a taken one the instant at which its key ends,
-- ms, which is far above every number. It is a hint and no vote: it says who asks where, and the key
-- of the slot decides. A grant, a heal and a release write it, a renewal does not: an entry that has
-- ended is compared with its key before nothing counts as free. Older clients write none of it: so the
-- slot that is asked for is compared as well, and one more in turn. After a minute the index is made
-- anew from the keys.
local p
function permits()
  if p then
    return p
  end
  p = {}
  local compared = {} -- indexes that this script has compared with keys
  local budget = 256 -- how many slots this script may still write into indexes for the first time
  local instant = string.format('%.0f', ms)
  local unknown = -1 -- a slot that an index does not have yet

  -- The name of a slot's queue and its number; nil for any other lock.
  function p.family(lock)
    local family, slot = string.match(lock, '^([^\255]*\255p)(%d*)$')
    return family, tonumber(slot)
  end

  -- Writes a slot that was taken for `duration`, ms, into the index, if there is one.
  function p.taken(lock, duration)
    local family, slot = p.family(lock)
    call('ZADD', family .. '\255t', 'XX', after(duration), slot)
  end

  function p.freed(lock)
    local family, slot = p.family(lock)
    call('ZADD', family .. '\255t', 'XX', slot, slot)
  end

  -- Writes slots into the index as their keys are. Returns how long the last of them lives, as PTTL
  -- says it, and whether one is free. mode is XX for slots that the index has, NX for others.
  function p.compare(family, slots, mode)
    local entries, left, free = {}, nil, false
    for i, slot in ipairs(slots) do
      left = call('PTTL', family .. slot)
      free = free or left == -2
      entries[2 * i - 1] = left == -2 and slot or after(left < 0 and 60000 or left)
      entries[2 * i] = slot
    end
    local written = redis.pcall('ZADD', family .. '\255t', mode, unpack(entries))
    if type(written) == 'table' and free then
      error(written, 0) -- a full server does not grant the slot either; what is taken, it refuses as ever
    end
    return left, free
  end

  -- How many free slots have a number below `bound`.
  function p.below(family, bound)
    local index = family .. '\255t'
    local entry = call('ZRANGE', index, bound, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    if entry then
      return call('ZRANK', index, entry)
    end
    return call('ZCARD', index)
  end

  -- How many slots below limit are free. Where these are no more than `enough`, the index is compared
  -- with some keys, and learns of 128 slots at a time. A script that uses up its budget leaves the
  -- others to the next one, for which the client asks again: it is sent to a slot that is unknown.
  function p.free(family, limit, enough)
    local index = family .. '\255t'
    local size, free = call('ZCARD', index), p.below(family, limit)
    if free <= enough and size > 0 and not compared[index] then
      compared[index] = true
      local slots = call('ZRANGE', index, '1000000000', instant, 'BYSCORE', 'LIMIT', '0', '15')
      slots[#slots + 1] = now % size
      local _, found = p.compare(family, slots, 'XX')
      free = found and p.below(family, limit) or free
    end
    while free <= enough and size < limit and budget > 0 do
      local slots = {}
      for slot = size, math.min(size + 127, limit - 1) do
        slots[#slots + 1] = slot
      end
      p.compare(family, slots, 'NX')
      call('PEXPIREAT', index, after(60000))
      size, free, budget = size + #slots, p.below(family, limit), budget - #slots
    end
    unknown = free <= enough and size < limit and size or -1
    return free
  end

  function p.admitted(family)
    local set = family .. '\255a'
    local count = call('ZCARD', set)
    if count == 0 then
      return 0
    end
    local ended = call('ZRANGE', set, '-inf', instant, 'BYSCORE', 'LIMIT', '0', '500')
    if ended[1] then
      call('ZREM', set, unpack(ended))
    end
    return count - #ended
  end

  -- One of `free` free slots: the first from `first` on, after `others` of them; -1 if there is none.
  function p.slot(family, first, free, others)
    if free == 0 then
      return -1
    end
    local rank = (p.below(family, first) + others) % free
    return tonumber(call('ZRANGE', family .. '\255t', rank, rank)[1])
  end

  -- Lets the waiters at the head of the queue in, one for each slot that is free. Returns whether me
  -- is one of them, the first of the others, and whether the queue is empty now.
  function p.serve(family, first, me)
    local queue, head, served = family .. '\255q', nil, 0
    local free, of, admitted = 0, nil, nil
    for _ = 1, 64 do
      local ahead = call('ZRANGE', queue, '0', '1', 'WITHSCORES')
      if not ahead[1] then
        return false, head, true
      end
      local grace, limit = string.match(ahead[1], '^([1-9]%d?%d?)p(%d+)$', 33)
      if limit and (limit ~= of or free <= admitted) then
        admitted = admitted or p.admitted(family)
        free, of = p.free(family, limit + 0, admitted), limit
        if free <= admitted then
          return false, head
        end
      end
      call('ZREM', queue, ahead[1])
      local slot = limit and ahead[1] ~= me and p.slot(family, first % limit, free, served)
      if ahead[1] == me or slot and rare().publish('r', ahead[1], family .. slot) > 0 then
        call('ZADD', family .. '\255a', after(grace), string.sub(ahead[1], 1, 32))
        call('PEXPIREAT', family .. '\255a', after(60000))
        admitted = (admitted or 0) + 1
        if ahead[1] == me then
          return true, head
        end
        head, served = head or ahead[1], served + 1
        if ahead[3] then
          rare().watch(family, ahead[2], ahead[3], me)
        end
      end
    end
    rare().recall(family, me)
    return false, head, true
  end

  -- Reports whether a client may take a free slot: it was let in, or nobody is before it.
  function p.entitled(family, slot, limit, ticket, mode)
    local stop = ticket ~= '' and call('ZSCORE', family .. '\255a', string.sub(ticket, 1, 32))
    if stop and tonumber(stop) > ms then
      return true
    end
    if mode == 'l' then
      rare().recall(family, ticket)
    end
    local mine, _, empty = p.serve(family, slot, ticket)
    if mine or not empty then
      return mine
    end
    local admitted = p.admitted(family)
    return p.free(family, limit, admitted) > admitted
  end

  function p.permit(lock, value, duration, not_after, t, ticket, place, limit, mode)
    if not votes then
      return -1
    end
    local late = now > not_after + offset
    limit = limit + 0
    if not hint and not late and call('SET', lock, value, 'NX', 'PXAT', after(duration)) then
      made = lock
      p.taken(lock, duration)
      if cap and (t + 0 <= base or t + 0 > now + cap or call('ZADD', KEYS[1], 'GT', 'CH', t, lock) ~= 1) then
        return rare().move(lock, value, t)
      end
      return 1
    end
    local family, slot = p.family(lock)
    local queues = place ~= '' and not late and string.find(ARGV[6], 's', 1, true)
    local reply = lock -- not entitled
    unknown = -1
    local held = call('GETRANGE', lock, '0', '511')
    local ours = string.sub(held, 1, 33) == string.sub(value, 1, 33)
    local shown = call('ZSCORE', family .. '\255t', slot)
    if shown and (tonumber(shown) < 1e9) ~= (held == '') then
      p.compare(family, { slot }, 'XX')
    end
    local mine = not ours and not late and p.entitled(family, slot, limit, ticket, mode)
    if ours or late or mine then
      reply = rare().contend(lock, value, duration, late, t)
    end
    if type(reply) ~= 'table' and reply ~= lock and reply ~= 1 then
      return reply -- late
    elseif reply == 1 or reply ~= lock and type(reply[1]) == 'number' then
      p.taken(lock, duration)
      call('ZREM', family .. '\255a', string.sub(ticket, 1, 32))
      call('ZREM', family .. '\255q', ticket)
      local waiting = call('ZCARD', family .. '\255q')
      if reply == 1 then -- without fencing
        return waiting == 0 and 1 or { 0, 0, waiting }
      end
      reply[3] = waiting
      return reply
    end
    if queues and not mine then
      rare().enqueue(family, ticket, place)
    end
    local position = queues and call('ZRANK', family .. '\255q', ticket) or -1
    local left = held == '' and p.kept(family) or p.left(family)
    local other = mine and p.slot(family, slot, p.free(family, limit, 0), 0) or -1
    return { held, left, position, other >= 0 and other or unknown }
  end

  -- How long waiters are let in, ms, for the last of them; nil if none is.
  function p.kept(family)
    local stop = call('ZRANGE', family .. '\255a', '-1', '-1', 'WITHSCORES')[2]
    return stop and math.max(stop - ms, 0)
  end

  -- How long the slot lives that ends first, ms; -1 if none ends. Slots that were renewed since they
  -- were written end later: of the index's first ones, up to 8 are compared with their keys.
  function p.left(family)
    local least = -1
    for _ = 1, 8 do
      local first = call('ZRANGE', family .. '\255t', '(' .. instant, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
      local left = first[1] and call('PTTL', family .. first[1]) or -1
      if left >= 0 and (least < 0 or left < least) then
        least = left
      end
      if left == -1 or left >= 0 and ms + left <= first[2] + 1 then -- the clock of PTTL may be ahead
        return least
      end
      p.compare(family, { first[1] }, 'XX')
    end
    return least
  end

  -- What a release, a leave and a quit do behind the slot: see settle in queue.lua.
  function p.settle(lock, free, ours, ticket, place, mode)
    local family, slot = p.family(lock)
    local _, head
    local stays = place and place ~= '' and string.find(ARGV[6], 's', 1, true)
    local set, name = family .. '\255a', string.sub(ticket or '', 1, 32)
    if ours then
      p.freed(lock)
    else
      rare().room()
    end
    local yields = stays and mode == 'y'
    if ticket and (yields or not stays) then
      call('ZREM', family .. '\255q', ticket)
      call('ZREM', set, name)
    elseif stays and tonumber(call('ZSCORE', set, name) or 0) <= ms then
      rare().enqueue(family, ticket, place)
    end
    if free or ticket then
      _, head = p.serve(family, slot or 0)
    end
    if yields then
      rare().enqueue(family, ticket, place)
    end
    return ours and (head and string.sub(head, 1, 32) ~= name and 2 or 1) or free and 0 or -1
  end

  return p
end
