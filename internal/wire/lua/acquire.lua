-- acquire  value ms not_after t    creates the lock
-- wait     value ms not_after t ticket place mode   the same for a client that queues;
--          mode 'l': a reservation for another ticket lapsed unused while it waited
--     1                     granted, the register has moved to t
--     {moved, from, tickets}  granted, the register has moved from `from` to `moved` (0: it
--                           has not moved and is ahead, at `from`); `tickets` are queued.
--                           Without fencing {0, 0, tickets}, if there are tickets
--     {held, ms, position}  taken: the first 512 bytes of the value in the way, how long
--                           the lock lives (-1: no end), our rank in the queue (-1: none);
--                           where readers have it, also how many, and the value of one
--     0                     not_after has passed
--     -1                    the marker differs: this is not the data that the client knows,
--                           or the client lacks the guard that the others rely on
--
-- resume   value ms not_after t from    replaces the owner of a lock that was detached, 'd from',
--          from is 'owner ': the same answers, and taken ('' for a missing lock) if the lock
--          shows anything else
--
-- anew     value ms not_after t    the same as acquire, for a client that may have made the lock with the script
--          lean.lua, and does not count it: that lock is deleted first
--
-- run.lua grants a free lock that has no queue. This file decides all other cases: who has
-- the lock, or for whom it is reserved. It reads and writes the lock, its queue, and by way
-- of registers.lua the registers.

function f.taken(lock, held, ticket, place)
  local position = -1
  if ticket then
    f.enqueue(ticket, place)
    position = call('ZRANK', queue, ticket) or -1
  end
  if not readers(held) then
    return { held, call('PTTL', lock), position }
  end
  if ticket then
    shared().lives(ticket)
  end
  local count, value = shared().trim(lock)
  return { held, call('PTTL', lock), position, count, value }
end

-- Gives the lock of a lease that was detached to the one that resumes it. No lock is created: a node
-- that has lost it cannot say that nobody else has had it since.
function f.resume(lock, value, duration, not_after, t, from)
  if not votes then
    return -1
  end
  local late = now > not_after + offset
  local held = call('GETRANGE', lock, '0', '511')
  if string.sub(held, 1, 33) == string.sub(value, 1, 33) then
    return f.contend(lock, value, duration, late, t) -- asked again
  elseif string.sub(held, 1, 35) ~= 'd ' .. from then
    return f.taken(lock, held)
  elseif late then
    return 0
  end
  if cap then
    register(lock) -- if this fails, the lock stays as it was: those who have the handle can try again
  end
  call('SET', lock, value, 'XX', 'PXAT', after(duration))
  made = lock
  return f.move(lock, value, t)
end

-- Acquires a lock that this attempt may have made already. Its register has not moved as a vote needs, so its
-- first answer must not be given again.
function f.anew(lock, value, duration, not_after, t)
  if call('GETRANGE', lock, '0', '32') == string.sub(value, 1, 33) then
    call('DEL', lock)
  end
  return votes and f.contend(lock, value, duration, now > not_after + offset, t) or -1
end

-- Acquires a lock that exists, or has a queue, or whose request is late.
function f.contend(lock, value, duration, late, t, ticket, place, mode)
  if late or not string.find(ARGV[6], 's', 1, true) then
    place = nil
  end
  local held = call('GETRANGE', lock, '0', '511') -- another client's value may be huge
  if readers(held) and not set then
    return '?'
  elseif readers(held) and shared().clear(lock) then
    held = '' -- the reader that would have lasted longest has left, and the others have ended
  end
  if held ~= '' or call('EXISTS', lock) == 1 then
    local reserved = ticket and held == string.sub(ticket, 1, 32) .. ' w '
    local ours = string.sub(held, 1, 33) == string.sub(value, 1, 33)
    if not ours and not reserved then
      return f.taken(lock, held, place and ticket, place)
    elseif late then
      return 0
    elseif ours then -- asked again: give the first answer again
      call('PEXPIREAT', lock, after(duration)) -- a replica refuses this: its copy is no vote
      local shown = tonumber(string.match(held, '^%d+', string.sub(held, 33, 35) == ' a ' and 36 or 34) or 0)
      return cap and { shown, shown > 0 and shown - 1 or register(lock), 0 } or 1
    end
    call('SET', lock, value, 'XX', 'PXAT', after(duration))
    made = lock
  elseif late then
    return 0
  else
    if mode == 'l' then
      f.recall(lock, ticket)
    else
      if place then
        f.enqueue(ticket, place)
      end
      local first = queue and not slot and f.serve(lock, ticket)
      if first and first ~= ticket then
        return f.taken(lock, call('GETRANGE', lock, '0', '511'), place and ticket, place)
      end
    end
    call('SET', lock, value, 'PXAT', after(duration))
    made = lock
  end
  if ticket then
    call('ZREM', queue, ticket)
  end
  return f.move(lock, value, t)
end
