-- share    value ms not_after ticket place mode   adds a reader to the lock; ticket is '' for a
--          client that does not queue. A lock of our own becomes shared
--     {0, register, tickets}    granted; the register has not moved. Where no tickets are queued,
--                               the register alone if it is above 2, and 1 without fencing
--     {held, ms, position, readers, value}  taken, as for acquire; `value` is that of one of the
--                               `readers`, where the lock is shared
--     0, -1                     as for acquire
-- prolong  value ms                extend of a reader; a lock of our own becomes shared
-- restore  value ms not_after held heal of a reader
-- raise    value t                 moves the register of a lock that is ours to t, which value shows; or
--                                  of a lock where we read, for a value that shows 0
--     {from, tickets}: the register before (-1: not ours, not below t, for a reader above t, or the
--     marker differs), tickets in the queue
-- quit     value ticket place mode leave of a reader, with '' for no ticket; or of a ticket, for the
--                                  value 'ticket w ': what was reserved for it is reserved for the
--                                  next waiter, and no lease is touched. 0 also where others read, and this one
--                                  does not: nothing shows that another client was granted the lock
--
-- This file decides who reads. A lock of readers is the string `theirs`, which is another owner's
-- for every other operation, also in the scripts of older clients. Beside it is the set of the
-- readers, by the instants at which they end, ms. A reader counts only while the string
-- is there: whoever makes the string makes the set anew. Among the readers are the reservations of
-- those who were woken, 'ticket w '. The file reads and writes the lock, the set, the queue and
-- the registers, KEYS[1].
local s
function shared()
  if s then
    return s
  end
  s = {}
  local nobody = string.rep('0', 32)
  local theirs = 's ' .. nobody .. ' 0 0 - '

  -- Reports whether a lock that shows held is one of readers that was revoked.
  function s.revoked(held)
    return string.sub(held, 1, 42) == 'x ' .. nobody .. ' 0 0 - \255'
  end

  -- Makes the lock one of readers, for `duration` ms at least. One that is its owner's already needs no room.
  function s.open(lock, duration, alone)
    if alone then
      rare().room()
    end
    call('SET', lock, theirs, 'PXAT', after(duration))
    made = lock
    call('DEL', set)
  end

  -- Lets the lock live as long as a reader that has just got `duration` ms, and a little longer, so
  -- that not each reader has to do this: trim makes it exact when a writer asks. The set lives longer
  -- still. (The server's clock may have moved by a millisecond since it began the script.)
  function s.stretch(lock, duration)
    if call('PTTL', lock) < duration + 2 then
      call('PEXPIREAT', lock, string.format('%.0f', ms + duration + math.floor(duration / 8)))
      call('PEXPIREAT', set, after(2 * duration))
      s.drop('64') -- otherwise the set would grow as long as others read
    end
  end

  -- Drops at most that many readers that have ended.
  function s.drop(most)
    local ended = call('ZRANGE', set, '(0', string.format('%.0f', ms), 'BYSCORE', 'LIMIT', '0', most)
    if ended[1] then
      call('ZREM', set, unpack(ended))
    end
  end

  function s.add(lock, value, duration)
    call('ZADD', set, after(duration), value)
    s.stretch(lock, duration)
  end

  function s.reads(value)
    local stop = call('ZSCORE', set, value)
    return stop and tonumber(stop) > ms
  end

  -- Reports whether the lock is reserved: for a waiter, or it is one of readers, and all of them have been
  -- woken and have not come yet; or for those who have a handle. A lease, whose value begins with `owner `,
  -- takes precedence: otherwise a holder could not restore a lock that this node has lost for as long as
  -- readers wait. While it is valid, no majority has a lock that another owner has detached, and none will
  -- again. What that owner has sent before finds its own lock, and does not take it.
  function s.reserved(lock, held, owner)
    if string.sub(held, 1, 2) == 'd ' then
      local of = string.match(call('GETRANGE', lock, '0', '511'), '^d (' .. string.rep('[0-9a-f]', 32) .. ') %d+ %-?%d+ %S+ ')
      return of and of ~= nobody and of ~= string.sub(owner, 1, 32)
    elseif not readers(held) then
      return #held == 35 and string.find(held, '^[0-9a-f]+ w $') ~= nil
    end
    local all = call('ZRANGE', set, string.format('(%.0f', ms), '+inf', 'BYSCORE', 'LIMIT', '0', '129')
    for _, value in ipairs(all) do
      if string.sub(value, 33) ~= ' w ' then
        return false
      end
    end
    return #all < 129
  end

  -- Deletes a lock of readers if none is left, and reports whether it has.
  function s.clear(lock)
    local stop = call('ZRANGE', set, '-1', '-1', 'WITHSCORES')[2]
    if stop and tonumber(stop) > ms then
      return false
    end
    call('DEL', lock, set)
    return true
  end

  -- How many readers have not ended. One that has died may stay in the set for a while.
  function s.count()
    local first = call('ZRANGE', set, string.format('(%.0f', ms), '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    local ended = first and call('ZRANK', set, first)
    return ended and call('ZCARD', set) - ended or 0
  end

  -- Drops readers that have ended. Returns how many are left, and the one that ends last; the lock then
  -- ends with it.
  function s.trim(lock)
    s.drop('500')
    local last = call('ZRANGE', set, '-1', '-1', 'WITHSCORES')
    if not last[1] or last[2] + 0 == 0 then -- only what probe has written
      return 0, ''
    end
    call('PEXPIREAT', lock, last[2])
    return s.count(), last[1]
  end

  -- A process that is stopped keeps its connection. So a writer that bars a reader must ask again from time to
  -- time: the set's first member, which ended at 0, has its ticket, whether it was told to, and since when it has
  -- not asked. It is told to after 2 s ('a'), and 1 s later it leaves the queue; when it continues, it has its place
  -- again. Returns the message to send, and whether the writer is stopped.
  function s.probe(ticket)
    local me = string.sub(ticket, 1, 32)
    local first = call('ZRANGE', set, '0', '0')[1]
    local told, since = string.match(first or '', '^([pa])(%d+) w $', 33)
    local known = told and string.sub(first, 1, 32) == me
    local stopped = known and told == 'a' and ms - since >= 1000
    if not first or known and not stopped and (told == 'a' or ms - since < 2000) then
      return 'p', false
    end
    if told then
      call('ZREM', set, first)
    end
    if stopped then
      return 'p', true
    end
    told = known and 'a' or 'p'
    call('ZADD', set, '0', me .. told .. string.format('%.0f w ', ms))
    return told, false
  end

  -- The writer with this ticket has asked, and is not stopped.
  function s.lives(ticket)
    local first = call('ZRANGE', set, '0', '0')[1] or ''
    if string.sub(first, 1, 32) == string.sub(ticket, 1, 32) and string.find(first, '^[pa]%d+ w $', 33) then
      call('ZREM', set, first)
    end
  end

  -- Reports whether a writer that came before must be let in first, and whether one has left the queue because its
  -- process has ended: no other request looks at it before the last reader has left, which may take hours.
  function s.barred(lock, value, ticket, place, probes)
    local ahead
    local dropped = false
    if place ~= '' then
      ahead = call('ZRANGE', queue, '-inf', '(' .. place, 'BYSCORE', 'LIMIT', '0', '64')
    else
      ahead = call('ZRANGE', queue, '0', '63')
    end
    for _, other in ipairs(ahead) do
      if string.sub(other, -1) ~= 's' then
        if s.reads(value) or s.reads(string.sub(ticket, 1, 32) .. ' w ') then
          return false, dropped
        end
        local message, stopped = 'p', false
        if probes then
          message, stopped = s.probe(other)
        end
        if rare().publish(message, other, lock) > 0 and not stopped then
          return true, dropped
        end
        call('ZREM', queue, other)
        dropped = true
      end
    end
    return false, dropped
  end

  -- Reports whether a lock that shows held is this owner's alone.
  function s.alone(held, value)
    return string.sub(held, 1, 33) == string.sub(value, 1, 33) and string.sub(held, 33) ~= ' w '
  end

  function s.granted(lock, waiting)
    if not cap then
      return waiting > 0 and { 0, 0, waiting } or 1
    end
    local at = register(lock)
    return (waiting > 0 or at <= 2) and { 0, at, waiting } or at
  end

  function s.share(lock, value, duration, not_after, ticket, place, mode)
    if not votes then
      return -1
    end
    local late = now > not_after + offset
    local held = call('GETRANGE', lock, '0', '511')
    if not hint and not late and readers(held) then
      s.add(lock, value, duration)
      return s.granted(lock, 0)
    end
    local open, alone = readers(held), s.alone(held, value)
    local free = held == '' and call('EXISTS', lock) == 0
    if free and mode == 'l' and not late then
      rare().recall(lock, ticket)
    end
    local barred, dropped = false, false
    if hint and (open or free) then
      barred, dropped = s.barred(lock, value, ticket, place, open and not late)
    end
    if barred or not (open or alone or free) then
      local queues = place ~= '' and not late and string.find(ARGV[6], 's', 1, true)
      if free and not late then
        if queues then
          rare().enqueue(ticket, place)
        end
        rare().serve(lock, ticket)
        held = call('GETRANGE', lock, '0', '511')
      elseif open and dropped then
        rare().admit(lock)
      end
      return rare().taken(lock, held, queues and ticket, place)
    elseif late then
      return 0
    end
    if not open then
      s.open(lock, duration, alone)
    end
    s.add(lock, value, duration)
    if ticket ~= '' then
      call('ZREM', set, string.sub(ticket, 1, 32) .. ' w ')
      call('ZREM', queue, ticket)
    end
    if hint then
      rare().admit(lock)
    end
    return s.granted(lock, hint and call('ZCARD', queue) or 0)
  end

  function s.prolong(lock, value, duration)
    local held = call('GETRANGE', lock, '0', '43')
    local open, alone = readers(held), s.alone(held, value)
    if not open and s.reserved(lock, held, value) or held == '' and call('EXISTS', lock) == 0 then
      return 0
    elseif not (open or alone) then
      return wanted(lock, -1, s.revoked(held))
    elseif open and not s.reads(value) or now > sent + duration * 1000 then
      return 0
    end
    call('ZREM', set, '') -- removes nothing; but after a write a full server allows ZADD
    if alone then
      s.open(lock, duration)
      made = nil -- it is a vote already, which an error does not take away
    end
    s.add(lock, value, duration)
    return wanted(lock, votes and 1 or 3, string.sub(held, 35, 37) == ' a ')
  end

  function s.restore(lock, value, duration, not_after, stop)
    local held = call('GETRANGE', lock, '0', '43')
    local open = readers(held)
    local gone = held == '' and call('EXISTS', lock) == 0
    if now > not_after + offset or not votes and now > stop + offset then
      return 0
    elseif not (open or gone or s.reserved(lock, held, value) or s.alone(held, value)) then
      return -1
    end
    if not open then
      s.open(lock, duration, s.alone(held, value))
      made = nil
    end
    s.add(lock, value, duration)
    if call('PTTL', set) < 2 * duration then -- it may have been lost alone; or others in it last longer
      call('PEXPIREAT', set, after(2 * duration))
    end
    return 1
  end

  function s.raise(lock, value, t)
    local from, held = -1, call('GETRANGE', lock, '0', '43')
    local reader = string.sub(value, 33, 35) == ' 0 '
    local ours = reader and readers(held) and s.reads(value) or not reader and s.alone(held, value)
    if votes and ours then
      local at = register(lock)
      if at < tonumber(t) or reader and at == tonumber(t) then
        from = at
        if not reader then
          call('SET', lock, value, 'XX', 'KEEPTTL')
        end
        call('ZADD', KEYS[1], t, lock)
      end
    end
    return { from, hint and call('ZCARD', queue) or 0 }
  end

  function s.quit(lock, value, ticket, place, mode)
    local held = call('GETRANGE', lock, '0', '43')
    local ours = (readers(held) or s.revoked(held)) and call('ZREM', set, value) == 1
    local missing = readers(held) and not ours and place == '' -- as a renewal says
    local free = false
    local lease = s.alone(held, value) or string.sub(held, 1, 2) == 'x ' and s.alone(string.sub(held, 3), value)
    if held == value or lease and string.sub(value, 33) ~= ' w ' then
      call('DEL', lock)
      ours, free = true, true
    elseif readers(held) then
      if ticket ~= '' and place == '' then
        call('ZREM', set, string.sub(ticket, 1, 32) .. ' w ')
      end
      free = s.clear(lock)
    elseif not s.revoked(held) then -- which stays: this node may not know all that were revoked
      ours, free = false, held == '' and call('EXISTS', lock) == 0
    end
    if not hint and ticket == '' then
      return ours and 1 or (free or missing) and 0 or -1
    end
    local code = rare().settle(lock, free, ours, ticket ~= '' and ticket, place, mode)
    return code == -1 and missing and 0 or code
  end

  -- Completes a read of a lock of readers: how many there are, and the 16 that last longest.
  function s.list(lock, value, reply)
    reply[1] = value ~= '' and s.reads(value) and value or reply[1]
    reply[5] = s.count()
    reply[6] = reply[5] > 0 and call('ZRANGE', set, tostring(-math.min(reply[5], 16)), '-1') or {}
    return reply
  end

  return s
end
