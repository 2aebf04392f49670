-- permit   value ms not_after t ticket place limit mode   acquires the slot of a permit, of which
--          there are `limit`; ticket is '' for a client that does not queue
--     granted, late and the marker as for acquire
--     {held, ms, position, free}  taken: as for acquire, but ms is that of the slot that ends first;
--                                 and a slot that may be asked for at once, -1 if there is none.
--                                 A slot that is free and kept for others has '' for held, and ms
--                                 until their rights end
--
-- This file decides which waiters may take a slot. A slot is a lock as any other, 'name\255p3', and
-- all slots of a name have one queue, one watch and one set. A waiter is let in to the name and not to
-- a slot: while it is in the set it may take any slot that is free. There are never more of them than
-- free slots. The message that wakes it names a slot, so that those who are let in together ask for
-- different ones. A ticket ends with 'p' and the limit of its client. The file reads and writes the slot,
-- the queue and the set; release, leave and quit of a ticket come here for slots.
--
-- The set says which slots are free without a look at each. A free slot is in it with its number as the score, a
-- taken one with the instant at which that ends, ms, and a waiter that is let in, by the name of its ticket, with the
-- instant at which that ends and 1e15: so each question is about a range. The set is a hint and no vote: it says who
-- asks where, and the key of the slot decides. Every operation on a slot writes into the set until when the slot is
-- taken, a renewal included. So a set that was lost is right again when each holder has renewed its lease; until
-- then a slot may look free, and whoever asks for it writes it.
local p
function permits()
  if p then
    return p
  end
  p = {}
  local tidied, filled = {}, {} -- the sets that this script has tidied, and below which number it has filled each
  local rights = 1e15
  local instant, alive = string.format('%.0f', ms), string.format('(%.0f', rights + ms)

  -- The name that the slots of a lock have in common, and its number; nil for any other lock.
  function p.family(lock)
    local family, number = string.match(lock, '^([^\255]*\255p)(%d*)$')
    return family, tonumber(number)
  end

  -- Writes members of the set, which then lasts for `duration`, ms, at least, and returns how many are new. A full server
  -- does without: what it refuses here must not be followed by a write, after which it would allow all others.
  function p.add(duration, ...)
    local added = redis.pcall('ZADD', set, ...)
    if type(added) == 'number' and call('PTTL', set) < duration then
      call('PEXPIREAT', set, after(duration + 60000))
    end
    return added
  end

  -- Has the set show all slots below limit, and as free what it lacked. Where it has a slot, it has all below.
  function p.fill(limit)
    if limit <= (filled[set] or 0) then
      return
    end
    filled[set] = limit
    if call('ZSCORE', set, limit - 1) then
      return
    end
    local free = {}
    for number = 0, limit - 1 do
      local text = string.format('%d', number) -- Redis before 7.2 converts numbers slowly
      free[2 * number + 1], free[2 * number + 2] = text, text
    end
    p.add(0, 'NX', unpack(free))
  end

  -- Writes into the set until when a slot is taken: for `duration`, ms, or as its key says.
  function p.write(lock, duration)
    local _, number = p.family(lock)
    local left = number and tonumber(duration or call('PTTL', lock))
    if left == -2 then
      redis.pcall('ZADD', set, 'XX', number, number)
    elseif left then
      left = left < 0 and 60000 or left
      if p.add(left, after(left), number) == 1 then
        p.fill(number)
      end
    end
  end

  -- How many members have a score below `bound`.
  function p.below(bound)
    local first = call('ZRANGE', set, bound, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    return first and call('ZRANK', set, first) or call('ZCARD', set)
  end

  -- Has the set show slots as free that have ended, and no right that has: once in a script.
  function p.tidy()
    if tidied[set] then
      return
    end
    tidied[set] = true
    for _, number in ipairs(call('ZRANGE', set, '1000000000', instant, 'BYSCORE', 'LIMIT', '0', '128')) do
      redis.pcall('ZADD', set, 'XX', number, number)
    end
    local ended = call('ZRANGE', set, string.format('%.0f', rights), string.sub(alive, 2), 'BYSCORE', 'LIMIT', '0', '500')
    if ended[1] then
      call('ZREM', set, unpack(ended))
    end
  end

  -- How many slots below limit are free.
  function p.free(limit)
    p.tidy()
    p.fill(limit)
    return p.below(limit)
  end

  -- The free slot below limit that comes after `others` free ones from `first` on, around the limit; -1 if none is free.
  function p.slot(first, limit, others)
    local free = p.free(limit)
    local rank = free > 0 and (p.below(first) + others) % free
    return rank and tonumber(call('ZRANGE', set, rank, rank)[1]) or -1
  end

  -- How many waiters are let in.
  function p.admitted()
    local first = call('ZRANGE', set, alive, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    return first and call('ZCARD', set) - call('ZRANK', set, first) or 0
  end

  -- Reports whether the waiter with a ticket of this name is let in.
  function p.lets(name)
    return tonumber(call('ZSCORE', set, name) or 0) > rights + ms
  end

  -- Lets the waiters at the head of the queue in, one for each slot that is free, and 64 at most: f.watch has woken
  -- some behind them. If all 64 were dead, the queue is recalled. Returns whether me is one of them, the first of the
  -- others, and whether the queue is empty now.
  function p.serve(family, first, me)
    local head, served, free, of, admitted = nil, 0, 0, nil, nil
    for _ = 1, 64 do
      local ahead = call('ZRANGE', queue, '0', '1', 'WITHSCORES')
      if not ahead[1] then
        return false, head, true
      end
      local grace, limit = string.match(ahead[1], '^([1-9]%d?%d?)p(%d+)$', 33)
      if limit and (limit ~= of or free <= admitted) then
        admitted = admitted or p.admitted()
        free, of = p.free(limit + 0), limit
        if free <= admitted then
          return false, head
        end
      end
      call('ZREM', queue, ahead[1])
      local number = limit and ahead[1] ~= me and p.slot(first % limit, limit + 0, served)
      if ahead[1] == me or number and rare().publish('r', ahead[1], family .. number) > 0 then
        p.add(grace + 0, 'GT', string.format('%.0f', rights + ms + grace), string.sub(ahead[1], 1, 32))
        admitted = (admitted or 0) + 1
        if ahead[1] == me then
          return true, head
        end
        head, served = head or ahead[1], served + 1
        if ahead[3] then
          rare().watch(family, ahead[2], ahead[3], me)
        end
      else
        rare().spare = rare().spare - 4
        if rare().spare <= 0 then
          break
        end
      end
    end
    if head then
      return false, head, false
    end
    rare().recall(family, me)
    return false, nil, call('ZCARD', queue) == 0
  end

  -- Reports whether a client may take a free slot: it was let in, or nobody is before it.
  function p.entitled(family, number, limit, ticket, mode)
    if ticket ~= '' and p.lets(string.sub(ticket, 1, 32)) then
      return true
    end
    if mode == 'l' and p.free(limit) > p.admitted() then -- or whoever was woken has taken it
      rare().recall(family, ticket)
    end
    local mine, _, empty = p.serve(family, number, ticket)
    if mine or not empty then
      return mine
    end
    return p.free(limit) > p.admitted()
  end

  function p.permit(lock, value, duration, not_after, t, ticket, place, limit, mode)
    if not votes then
      return -1
    end
    local late = now > not_after + offset
    limit = limit + 0
    p.fill(limit)
    if not hint and not late and call('SET', lock, value, 'NX', 'PXAT', after(duration)) then
      made = lock
      p.write(lock, duration)
      if cap and (t + 0 <= base or t + 0 > now + cap or call('ZADD', KEYS[1], 'GT', 'CH', t, lock) ~= 1) then
        return rare().move(lock, value, t)
      end
      return 1
    end
    local family, number = p.family(lock)
    local queues = place ~= '' and not late and string.find(ARGV[6], 's', 1, true)
    local reply = lock -- not entitled
    local held = call('GETRANGE', lock, '0', '511')
    local ours = string.sub(held, 1, 33) == string.sub(value, 1, 33)
    if held == '' then
      call('ZADD', set, 'XX', number, number) -- a full server refuses this, and would refuse the slot
    end
    if (held == '') ~= (tonumber(call('ZSCORE', set, number) or 0) <= ms) then
      p.write(lock) -- the key decides, whoever has changed it
    end
    local mine = not ours and not late and p.entitled(family, number, limit, ticket, mode)
    if ours or late or mine then
      reply = rare().contend(lock, value, duration, late, t)
    end
    if type(reply) ~= 'table' and reply ~= lock and reply ~= 1 then
      return reply -- late
    elseif reply == 1 or reply ~= lock and type(reply[1]) == 'number' then
      p.write(lock, duration)
      call('ZREM', set, string.sub(ticket, 1, 32))
      call('ZREM', queue, ticket)
      local waiting = call('ZCARD', queue)
      if reply == 1 then -- without fencing
        return waiting == 0 and 1 or { 0, 0, waiting }
      end
      reply[3] = waiting
      return reply
    end
    if queues and not mine then
      rare().enqueue(ticket, place)
    end
    local position = queues and call('ZRANK', queue, ticket) or -1
    return { held, held == '' and p.kept() or p.left(), position, mine and p.slot(number, limit, 0) or -1 }
  end

  -- How long waiters are let in, ms, for the last of them; nil if none is.
  function p.kept()
    local stop = tonumber(call('ZRANGE', set, '-1', '-1', 'WITHSCORES')[2] or 0)
    return stop > rights and math.max(stop - rights - ms, 0) or nil
  end

  -- How long the slot lives that ends first, ms; -1 if none is taken.
  function p.left()
    local first = call('ZRANGE', set, '(' .. instant, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
    return first and first + 0 < rights and first - ms or -1
  end

  -- What a release, a leave and a quit do behind the slot: see settle in queue.lua.
  function p.settle(lock, free, ours, ticket, place, mode)
    local family, number = p.family(lock)
    local _, head
    local stays = place and place ~= '' and string.find(ARGV[6], 's', 1, true)
    local name = string.sub(ticket or '', 1, 32)
    if ours then
      p.write(lock)
    else
      rare().room()
    end
    local yields = stays and mode == 'y'
    if ticket and (yields or not stays) then
      call('ZREM', queue, ticket)
      call('ZREM', set, name)
    elseif stays and not p.lets(name) then
      rare().enqueue(ticket, place)
    end
    if free or ticket then
      _, head = p.serve(family, number or 0)
    end
    if yields then
      rare().enqueue(ticket, place)
    end
    return ours and (head and string.sub(head, 1, 32) ~= name and 2 or 1) or free and 0 or -1
  end

  return p
end
