-- release  owner                   deletes the lock if it is ours, and reserves it for the
--          head of its queue; run.lua deletes, and calls this file where there is a queue
-- leave    owner ticket place mode the same; the ticket leaves the queue, or stays at place
--          if that is not ''. mode 'y': other tickets go first this once; 'f': the head is
--          woken and the lock stays free, so that clients without tickets may get it
--     1 deleted, 2 deleted and reserved for a waiter or left free for the
--     head, 0 missing, -1 another's, or reserved for the ticket that stays
--
-- This file decides which waiter is next, and wakes it. It reads and writes the lock, its queue, its watch,
-- which exists while waiters have just been woken, and the hint, KEYS[3]. `lock` is what the messages name: for a
-- slot what all slots of the name have in common.

local sharded = string.find(ARGV[6], 'c', 1, true)

function f.publish(kind, ticket, lock)
  local channel, message = ARGV[4] .. string.sub(ticket, 1, 16), kind .. string.sub(ticket, 1, 32) .. lock
  if sharded then
    return call('SPUBLISH', channel, message)
  end
  return call('PUBLISH', channel, message)
end

-- A queue holds the tickets of a lock's waiters, scored by the time of their calls.
-- Every node gets the same score, so all nodes have the same order. A ticket is 16 hex
-- digits of the Manager, 16 of the wait, its grace in ms, and 's' if it wants to read.
function f.enqueue(ticket, place)
  local stop = after('60000') -- waiters poll more often than that
  call('ZADD', queue, 'NX', place, ticket)
  call('PEXPIREAT', queue, stop)
  call('SET', KEYS[3], '1', 'PXAT', stop)
  hint = '1'
end

-- What a script may still do for the dead: a ticket that is dropped counts 4, one that is recalled 1. A lock whose
-- turn comes later is left free with its queue, for the next who asks: waiters poll. Each lock's head has a look.
f.spare = 1000

-- Reserves a free lock for the head of its queue and wakes it. A reservation is no vote:
-- the head acquires like any other client. A head whose channel has no subscriber is
-- dropped, but at most 64 of them, because a script stops the server. After 64 the queue
-- is recalled: living waiters come back. me is the asker's ticket, which needs no wake-up.
function f.serve(lock, me)
  local dropped = 0
  repeat
    local ahead = call('ZRANGE', queue, '0', '1', 'WITHSCORES')
    local first, place, second = ahead[1], ahead[2], ahead[3]
    if not first then
      return nil
    elseif string.sub(first, -1) == 's' then
      local head, asked = f.admit(lock)
      if head then
        return head
      end
      dropped, f.spare = dropped + asked, f.spare - 4 * asked
    else
      call('ZREM', queue, first)
      if first == me then
        return first
      end
      local grace = string.match(first, '^[1-9]%d?%d?$', 33)
      if grace and f.publish('r', first, lock) > 0 then
        call('SET', lock, string.sub(first, 1, 32) .. ' w ', 'PXAT', after(grace))
        if second then
          f.watch(lock, place, second, me)
        end
        return first
      end
      dropped, f.spare = dropped + 1, f.spare - 4
    end
  until dropped >= 64 or f.spare <= 0
  f.recall(lock)
end

-- Wakes the readers at the head of the queue, up to the first writer, and has the lock wait for
-- each as if it read already. Each reader that comes admits more, so 64 at a time are enough.
-- Returns the first that can be woken, and how many have left the queue.
function f.admit(lock)
  local ahead = call('ZRANGE', queue, '0', '64', 'WITHSCORES')
  local i, gone, woken, longest = 1, {}, {}, 0
  while i < 128 and ahead[i] and string.sub(ahead[i], -1) == 's' do
    local grace = string.match(ahead[i], '^([1-9]%d?%d?)s$', 33)
    if grace and f.publish('r', ahead[i], lock) > 0 then
      woken[#woken + 1] = after(grace)
      woken[#woken + 1] = string.sub(ahead[i], 1, 32) .. ' w '
      longest = math.max(longest, grace + 0)
    end
    gone[#gone + 1], i = ahead[i], i + 2
  end
  if gone[1] then
    call('ZREM', queue, unpack(gone))
  end
  if not woken[1] then
    return nil, #gone
  end
  if not readers(call('GETRANGE', lock, '0', '43')) then
    shared().open(lock, longest)
  end
  call('ZADD', set, unpack(woken))
  shared().stretch(lock, longest)
  if ahead[i] then
    f.watch(lock, ahead[i - 1], ahead[i])
  end
  return string.sub(woken[2], 1, 32), #gone
end

-- The head may be dead. So the node also wakes waiters behind it, and each asks when its
-- rank among them has come: the second waits one grace, the others two and a little more.
-- They stand further and further apart, and the last of the queue is one of them: so one of
-- them lives, however many tickets at the front are dead. The second is woken each time,
-- the others at most once in 20 ms, until the queue has come to the middle one of them.
function f.watch(lock, place, second, me)
  if second ~= me then
    f.publish('1', second, lock)
  end
  local watched = call('GETRANGE', watch, '0', '31')
  if tonumber(place) < (tonumber(watched) or 0) then
    return
  end
  local places, at, rank = {}, 0, 1
  local last = call('ZCARD', queue) - 1
  while at < last do
    rank, at = rank + 1, rank < 8 and math.min(2 * at + 1, last) or last
    local found = call('ZRANGE', queue, at, at, 'WITHSCORES')
    if found[1] ~= me then
      f.publish(rank, found[1], lock)
    end
    places[#places + 1] = found[2]
  end
  if places[1] then
    call('SET', watch, places[math.floor(#places / 2) + 1], 'PX', '20')
  end
end

-- Empties a queue whose head has let its grace pass: the first 500 tickets, which takes
-- most of a millisecond. Otherwise each ticket of a dead process would cost one grace;
-- this way they cost one in all.
function f.recall(lock, me)
  local tickets = f.spare > 0 and call('ZRANGE', queue, '0', math.min(f.spare, 500) - 1) or {}
  f.spare = f.spare - #tickets
  for _, ticket in ipairs(tickets) do
    if ticket ~= me then
      f.publish('a', ticket, lock)
    end
  end
  if tickets[1] then
    call('ZREM', queue, unpack(tickets))
  end
end

-- How many of a queue's tickets have a process that can be woken here; others stay until they are served.
-- A script looks at the first 500 of a queue, and at 1,000 in all, which takes less than a millisecond. The
-- others count, as do all without the right to PUBSUB NUMSUB (in a cluster, PUBSUB SHARDNUMSUB).
local looks, dead, gone = 1000, {}, {}
function f.living(count)
  if looks > 0 and not dead[queue] then
    local channels, tickets = { 'PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB' }, {}
    local first = redis.pcall('ZRANGE', queue, '0', math.min(looks, 500) - 1)
    for _, ticket in ipairs(first) do
      local channel = ARGV[4] .. string.sub(ticket, 1, 16)
      if not tickets[channel] then
        channels[#channels + 1] = channel
      end
      tickets[channel] = (tickets[channel] or 0) + 1
    end
    looks, dead[queue] = looks - #first, 0
    local found = redis.pcall(unpack(channels))
    for i = 1, #found, 2 do
      if found[i + 1] == 0 then
        gone[found[i]], dead[queue] = true, dead[queue] + tickets[found[i]]
      end
    end
  end
  return math.max(count - (dead[queue] or 0), 0)
end

-- The first `most` tickets of a queue and the place of each, {ticket, place, …}, for people. It looks at the first 64,
-- and leaves out those that f.living has found dead.
function f.ahead(most)
  local ahead, found = redis.pcall('ZRANGE', queue, '0', '63', 'WITHSCORES'), {}
  for i = 1, #ahead, 2 do
    if #found < 2 * most and not gone[ARGV[4] .. string.sub(ahead[i], 1, 16)] then
      found[#found + 1], found[#found + 2] = ahead[i], ahead[i + 1]
    end
  end
  return found
end

-- Finishes a release: held is the value that was there; if it was ours, it is deleted.
function f.hand(lock, held, ours, ticket, place, mode)
  return f.settle(lock, ours or held == '' and call('EXISTS', lock) == 0, ours, ticket, place, mode)
end

function f.reserved(lock, ticket)
  local reservation = string.sub(ticket, 1, 32) .. ' w '
  local held = call('GETRANGE', lock, '0', '43')
  return held == reservation or readers(held) and shared().reads(reservation)
end

-- Brings the queue up to date after a release. free means that the lock is, and ours that it was
-- ours. A client that cannot be woken here keeps no place in the queue.
function f.settle(lock, free, ours, ticket, place, mode)
  if slot then
    return permits().settle(lock, free, ours, ticket, place, mode)
  end
  local stays = place and place ~= '' and string.find(ARGV[6], 's', 1, true)
  local yields = stays and mode == 'y'
  if stays and f.reserved(lock, ticket) then
    return -1 -- reserved for it meanwhile: if it also stayed, it would get two turns
  end
  if stays and not yields then
    f.enqueue(ticket, place)
  elseif ticket then
    call('ZREM', queue, ticket)
  end
  -- If the ticket that stays is the head, the lock is reserved for it: otherwise the
  -- free lock with a queue would look as if its head were dead.
  local head = free and mode == 'f' and call('ZRANGE', queue, '0', '0')[1]
  if head and f.publish('f', head, lock) == 0 then
    head = nil -- it is dead, and the others would not hear that the lock is free
  end
  if free and not head then
    head = f.serve(lock)
  elseif not free and readers(call('GETRANGE', lock, '0', '43')) then
    f.admit(lock)
  end
  if yields then
    f.enqueue(ticket, place)
  end
  return ours and (head and string.sub(head, 1, 32) ~= string.sub(ticket or '', 1, 32) and 2 or 1) or free and 0 or -1
end
