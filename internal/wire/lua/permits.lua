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
-- the queue and the set; release, leave and pass come here for slots.
function permits()
  local p = {}

  -- The name of a slot's queue and its number; nil for any other lock.
  function p.family(lock)
    local family, slot = string.match(lock, '^([^\255]*\255p)(%d*)$')
    return family, tonumber(slot)
  end

  -- How many of the slots below limit are not taken, and by how many waiters that are let in.
  function p.free(family, limit)
    local slots = {}
    for i = 0, limit - 1 do
      slots[#slots + 1] = family .. i
    end
    return limit - call('EXISTS', unpack(slots))
  end

  function p.admitted(family)
    local set = family .. '\255a'
    local ended = call('ZRANGE', set, '-inf', string.format('%.0f', ms), 'BYSCORE', 'LIMIT', '0', '500')
    if ended[1] then
      call('ZREM', set, unpack(ended))
    end
    return call('ZCARD', set)
  end

  -- A free slot from `first` on, and `others` of them further on.
  function p.slot(family, first, limit, others)
    for i = first, first + limit - 1 do
      if call('EXISTS', family .. i % limit) == 0 then
        if others == 0 then
          return i % limit
        end
        others = others - 1
      end
    end
    return -1
  end

  -- Lets the waiters at the head of the queue in, one for each slot that is free. Returns whether me
  -- is one of them, and the first of the others.
  function p.serve(family, first, me)
    local queue, head, served = family .. '\255q', nil, 0
    for _ = 1, 64 do
      local ahead = call('ZRANGE', queue, '0', '1', 'WITHSCORES')
      if not ahead[1] then
        return false, head
      end
      local grace, limit = string.match(ahead[1], '^([1-9]%d?%d?)p(%d+)$', 33)
      if limit and p.free(family, limit + 0) <= p.admitted(family) then
        return false, head
      end
      call('ZREM', queue, ahead[1])
      local slot = limit and ahead[1] ~= me and p.slot(family, first % limit, limit + 0, served)
      if ahead[1] == me or slot and rare().publish('r', ahead[1], family .. slot) > 0 then
        call('ZADD', family .. '\255a', after(grace), string.sub(ahead[1], 1, 32))
        call('PEXPIREAT', family .. '\255a', after(60000))
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
    return false, head
  end

  -- Reports whether a client may take a free slot: it was let in, or nobody is before it.
  function p.entitled(family, slot, limit, ticket, mode)
    local stop = call('ZSCORE', family .. '\255a', string.sub(ticket, 1, 32))
    if stop and tonumber(stop) > ms then
      return true
    end
    if mode == 'l' then
      rare().recall(family, ticket)
    end
    local mine = p.serve(family, slot, ticket)
    return mine or call('ZCARD', family .. '\255q') == 0 and p.free(family, limit) > p.admitted(family)
  end

  function p.permit(lock, value, duration, late, t, ticket, place, limit, mode)
    if not hint and not late and call('SET', lock, value, 'NX', 'PXAT', after(duration)) then
      made = lock
      if cap and (t + 0 <= base or t + 0 > now + cap or call('ZADD', KEYS[1], 'GT', 'CH', t, lock) ~= 1) then
        return rare().move(lock, value, t)
      end
      return 1
    end
    local family, slot = p.family(lock)
    local queues = place ~= '' and not late and string.find(ARGV[6], 's', 1, true)
    local reply = lock -- not entitled
    local held = call('GETRANGE', lock, '0', '511')
    local ours = string.sub(held, 1, 33) == string.sub(value, 1, 33)
    local mine = not ours and not late and p.entitled(family, slot, limit, ticket, mode)
    if ours or late or mine then
      reply = rare().contend(lock, value, duration, late, t)
    end
    if type(reply) ~= 'table' and reply ~= lock and reply ~= 1 then
      return reply -- late
    elseif reply == 1 or reply ~= lock and type(reply[1]) == 'number' then
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
    local left = held == '' and p.kept(family) or p.left(family, limit)
    return { held, left, position, mine and p.slot(family, slot, limit, 0) or -1 }
  end

  -- How long waiters are let in, ms, for the last of them; nil if none is.
  function p.kept(family)
    local stop = call('ZRANGE', family .. '\255a', '-1', '-1', 'WITHSCORES')[2]
    return stop and math.max(stop - ms, 0)
  end

  -- How long the slot lives that ends first, ms; -1 if none ends.
  function p.left(family, limit)
    local least = -1
    for i = 0, limit - 1 do
      local left = call('PTTL', family .. i)
      if left >= 0 and (least < 0 or left < least) then
        least = left
      end
    end
    return least
  end

  -- What a release, a leave and a pass do behind the slot: see settle in queue.lua.
  function p.settle(lock, free, ours, ticket, place, mode)
    local family, slot = p.family(lock)
    local _, head
    local stays = place and place ~= '' and string.find(ARGV[6], 's', 1, true)
    local set, name = family .. '\255a', string.sub(ticket or '', 1, 32)
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

  permits = function() return p end
  return p
end
