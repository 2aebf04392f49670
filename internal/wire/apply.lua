-- Runs a list of operations on the locks of one prefix, in their order, and
-- answers each.
--
-- KEYS[1]  the registers: a sorted set, lock -> fencing register, µs
-- KEYS[2]  the base: the least value of every register
-- KEYS[3]  the hint: it exists while a lock of the prefix may have a queue
-- KEYS[4]  the restart guard's marker
-- KEYS[5…] the lock of each operation
-- ARGV[1]  this node's clock minus the client's, µs
-- ARGV[2]  when the call was sent, µs of the client's clock
-- ARGV[3]  the marker that the client knows, or a text that matches no marker while the
--          node is in quarantine; '' without the guard, which votes only where there is no
--          marker, or one that ends in 'open'
-- ARGV[4]  the prefix of the channels on which waiters are woken
-- ARGV[5]  how far a register may move ahead of this node's clock, µs; '' without fencing
-- ARGV[6]  's' if the client is subscribed here, so that its tickets may queue; '1' if
--          this is the only node
-- ARGV[7…] each operation: its name, and its arguments as listed below
--
-- Reply {now, codes, r…}: this node's clock, µs; one character for each operation: '1',
-- '2', '0' for that number, '-' for -1, and '*' for an answer that is one of the r. An
-- operation that fails answers {error}, and the others still run. (One string for the
-- numbers costs server and client a fraction of an array.)
--
-- acquire  value ms not_after t    creates the lock
-- wait     value ms not_after t ticket place mode   the same for a client that queues;
--          mode 'l': a reservation for another ticket lapsed unused while it waited
--     1                     granted, the register has moved to t
--     {moved, from, tickets}  granted, the register has moved from `from` to `moved` (0: it
--                           has not moved and is ahead, at `from`); `tickets` are queued.
--                           Without fencing {0, 0, tickets}, if there are tickets
--     {held, ms, position}  taken: the first 512 bytes of the value in the way, how long
--                           the lock lives (-1: no end), our rank in the queue (-1: none)
--     0                     not_after has passed
--     -1                    the marker differs: this is not the data that the client knows,
--                           or the client lacks the guard that the others rely on
-- extend   prefix ms               prolongs the lock; prefix is 'owner t '
--     1 ours and at t, 2 ours and not at t (or the marker differs: the data may be old),
--     0 missing or reserved, -1 another's
-- heal     value ms not_after held   creates a lock again that this node has lost. If the
--          marker differs (quarantine), only until held, the instant at which the lost key
--          would have ended: a later heal would be a new vote
--     1 ours, 0 not_after has passed, -1 another's
-- raise    owner t metadata        moves the register of a lock that is ours to t
--     {from, tickets}: the register before (-1: not ours, not below t, or the marker
--     differs), tickets in the queue
-- release  owner                   deletes the lock if it is ours, and reserves it for the
--          head of its queue
-- leave    owner ticket place mode the same; the ticket leaves the queue, or stays at place
--          if that is not ''. mode 'y': other tickets go first this once; 'f': the head is
--          woken and the lock stays free, so that clients without tickets may get it
-- pass     ticket                  the ticket leaves the queue, and what was reserved for
--          it is reserved for the next waiter
--     1 deleted, 2 deleted (or passed on) and reserved for a waiter or left free for the
--     head, 0 missing, -1 another's, or reserved for the ticket that stays
-- read                             {held or nil, ms, register, tickets}
-- forget   age most                drops registers older than age, µs, at most `most` of
--          them: how many it dropped
-- guard    run_id ms trust force nonce open not_after   starts a quarantine if the server's
--          process or data has changed: {end of the quarantine, µs, ms, marker}. open is
--          'open' if clients without the guard may still vote, or '': the first '' ends
--          that. With '' for run_id it writes nothing; 0 and '' if there is no marker, or if
--          not_after has passed
-- list     version n ids known fresh ms adds keeps not_after   on the lists in use: is a
--          list of n nodes admitted, whose votes may stand beside those of the other lists?
--          ids are the identities of its nodes as far as they are known; known is that of
--          this node, and fresh a new one. adds is '1' to register it for ms, and keeps '1'
--          to prolong it, or the parts of it that stand, whether it is admitted or not.
--          {identity of this node or '', ms for which the list is refused, the list in its
--          way, 1 if the list is registered}
--
-- A lock ends at an absolute instant. Otherwise a server that is frozen between reading
-- its clock and the SET would bring a lock back when it resumes. For the same reason
-- extend checks ARGV[2]: a lock that has expired by then stays missing.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local ms = (now - now % 1000) / 1000
local offset, cap = ARGV[1] + 0, tonumber(ARGV[5])
local known = call('MGET', KEYS[2], KEYS[3], KEYS[4])
local base, hint, marker = tonumber(known[1] or 0), known[2], known[3]
if not base or not (base < 1 / 0) then
  base = 1 / 0 -- no number, or no usable one: see f.register
end
local votes = ARGV[3] == marker or ARGV[3] == '' and (not marker or string.sub(marker, -4) == 'open')
local codes, details = '', nil
local key, arg = 5, 7 -- of the next operation
local made -- the lock that an unfinished acquisition has created

-- The instant that many ms from now, as text: Redis before 7.2 converts numbers slowly,
-- and most locks of a call have the same duration.
local asked, instant
local function after(duration)
  if asked ~= duration then
    asked, instant = duration, string.format('%.0f', ms + duration)
  end
  return instant
end

-- The functions for rare cases; most calls need none of them.
local function rare()
  local f = {}

  function f.publish(kind, ticket, lock)
    return call('PUBLISH', ARGV[4] .. string.sub(ticket, 1, 16), kind .. string.sub(ticket, 1, 32) .. lock)
  end

  -- A queue holds the tickets of a lock's waiters, scored by the time of their calls.
  -- Every node gets the same score, so all nodes have the same order. A ticket is 16 hex
  -- digits of the Manager, 16 of the wait, and its grace in ms.
  function f.enqueue(lock, ticket, place)
    local stop = after('60000') -- waiters poll more often than that
    call('ZADD', lock .. '\255q', 'NX', place, ticket)
    call('PEXPIREAT', lock .. '\255q', stop)
    call('SET', KEYS[3], '1', 'PXAT', stop)
    hint = '1'
  end

  -- Reserves a free lock for the head of its queue and wakes it. A reservation is no vote:
  -- the head acquires like any other client. A head whose channel has no subscriber is
  -- dropped, but at most 64 of them, because a script stops the server. After 64 the queue
  -- is recalled: living waiters come back. me is the asker's ticket, which needs no wake-up.
  function f.serve(lock, me)
    local queue = lock .. '\255q'
    for _ = 1, 64 do
      local ahead = call('ZRANGE', queue, '0', '1', 'WITHSCORES')
      local first, place, second = ahead[1], ahead[2], ahead[3]
      if not first then
        return nil
      end
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
    end
    f.recall(lock)
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
    local watched = call('GETRANGE', lock .. '\255n', '0', '31')
    if tonumber(place) < (tonumber(watched) or 0) then
      return
    end
    local queue, places, at, rank = lock .. '\255q', {}, 0, 1
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
      call('SET', lock .. '\255n', places[math.floor(#places / 2) + 1], 'PX', '20')
    end
  end

  -- Empties a queue whose head has let its grace pass: the first 500 tickets, which takes
  -- most of a millisecond. Otherwise each ticket of a dead process would cost one grace;
  -- this way they cost one in all.
  function f.recall(lock, me)
    local queue = lock .. '\255q'
    local tickets = call('ZRANGE', queue, '0', '499')
    for _, ticket in ipairs(tickets) do
      if ticket ~= me then
        f.publish('a', ticket, lock)
      end
    end
    if tickets[1] then
      call('ZREM', queue, unpack(tickets))
    end
  end

  function f.taken(lock, held, ticket, place)
    local position = -1
    if ticket then
      f.enqueue(lock, ticket, place)
      position = call('ZRANK', lock .. '\255q', ticket) or -1
    end
    return { held, call('PTTL', lock), position }
  end

  function f.register(lock)
    if base == 1 / 0 then
      error('quorumlock: the base of the registers is no number', 0)
    end
    return math.max(tonumber(call('ZSCORE', KEYS[1], lock) or 0), base)
  end

  -- Moves the register of a lock that was just created with value. If the register ends
  -- up at another value than t, the lock shows that value.
  function f.move(lock, value, t)
    local waiting = hint and call('ZCARD', lock .. '\255q') or 0
    if not cap then
      return waiting == 0 and 1 or { 0, 0, waiting }
    end
    t = tonumber(t)
    local from = f.register(lock)
    local target = math.min(t, now + cap)
    if string.find(ARGV[6], '1', 1, true) then
      target = math.max(target, from + 1)
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

  -- Acquires a lock that exists, or has a queue, or whose request is late.
  function f.contend(lock, value, duration, late, t, ticket, place, mode)
    if late or not string.find(ARGV[6], 's', 1, true) then
      place = nil
    end
    local held = call('GETRANGE', lock, '0', '511') -- another client's value may be huge
    if held ~= '' or call('EXISTS', lock) == 1 then
      local reserved = ticket and held == string.sub(ticket, 1, 32) .. ' w '
      local ours = string.sub(held, 1, 33) == string.sub(value, 1, 33)
      if not ours and not reserved then
        return f.taken(lock, held, place and ticket, place)
      elseif late then
        return 0
      elseif ours then -- asked again: give the first answer again
        call('PEXPIREAT', lock, after(duration)) -- a replica refuses this: its copy is no vote
        local shown = tonumber(string.match(held, '^%d+', 34) or 0)
        return cap and { shown, shown > 0 and shown - 1 or f.register(lock), 0 } or 1
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
          f.enqueue(lock, ticket, place)
        end
        local first = f.serve(lock, ticket)
        if first and first ~= ticket then
          return f.taken(lock, string.sub(first, 1, 32) .. ' w ', place and ticket, place)
        end
      end
      call('SET', lock, value, 'PXAT', after(duration))
      made = lock
    end
    if ticket then
      call('ZREM', lock .. '\255q', ticket)
    end
    return f.move(lock, value, t)
  end

  -- Finishes a release: held is the value that was there; if it was ours, it is deleted.
  -- A client that cannot be woken here keeps no place in the queue.
  function f.hand(lock, held, ours, ticket, place, mode)
    local free = ours or held == '' and call('EXISTS', lock) == 0
    local stays = place and place ~= '' and string.find(ARGV[6], 's', 1, true)
    local yields = stays and mode == 'y'
    if stays and call('GETRANGE', lock, '0', '35') == string.sub(ticket, 1, 32) .. ' w ' then
      return -1 -- reserved for it meanwhile: if it also stayed, it would get two turns
    end
    if stays and not yields then
      f.enqueue(lock, ticket, place)
    elseif ticket then
      call('ZREM', lock .. '\255q', ticket)
    end
    -- If the ticket that stays is the head, the lock is reserved for it: otherwise the
    -- free lock with a queue would look as if its head were dead.
    local head
    if free and mode == 'f' then
      head = call('ZRANGE', lock .. '\255q', '0', '0')[1]
      if head then
        f.publish('f', head, lock)
      end
    elseif free then
      head = f.serve(lock)
    end
    if yields then
      f.enqueue(lock, ticket, place)
    end
    return ours and (head and head ~= ticket and 2 or 1) or free and 0 or -1
  end

  function f.pass(lock, ticket)
    call('ZREM', lock .. '\255q', ticket)
    local held = call('GETRANGE', lock, '0', '35')
    if held == string.sub(ticket, 1, 32) .. ' w ' then
      call('DEL', lock)
    elseif held ~= '' or call('EXISTS', lock) == 1 then
      return -1
    end
    return f.serve(lock, ticket) and 2 or held == '' and 0 or 1
  end

  function f.raise(lock, owner, t, metadata)
    local from = -1
    local held = call('GETRANGE', lock, '0', '35')
    if votes and string.sub(held, 1, 33) == owner and string.sub(held, 33) ~= ' w ' then
      local register = f.register(lock)
      if register < tonumber(t) then
        from = register
        call('SET', lock, owner .. t .. ' ' .. metadata, 'XX', 'KEEPTTL')
        call('ZADD', KEYS[1], t, lock)
      end
    end
    return { from, hint and call('ZCARD', lock .. '\255q') or 0 }
  end

  function f.forget(age, most)
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
    call('ZREM', KEYS[1], '') -- removes nothing; but after a write a full server allows SET
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

  -- A marker names the server process. A restart and a failover change the process; a
  -- FLUSHALL and a first use lose the marker. For a failover group, `run` also has the
  -- group's epoch behind its last point; a client of an older epoch changes nothing. The
  -- nonce makes every marker new, so that clients notice lost data even if the same
  -- process wrote a marker again. An end beyond 2^53-1, where doubles have gaps, is not
  -- valid. 'open' is part of the last word, so that the marker keeps its four words.
  function f.guard(run, longest, trust, force, nonce, open, late)
    if late then
      return { 0, 0, '' }
    end
    local old, stop, agreed = string.match(marker or '', '^(%S+) (%d+) (%d+) %w+$')
    stop = tonumber(stop)
    if run == '' then
      return { stop or 0, tonumber(agreed or 0), marker or '' }
    elseif not marker then
      call('GETRANGE', KEYS[4], '0', '0') -- a key of another type is an error: it is another program's data
    end
    local closed = old and string.sub(marker, -4) ~= 'open'
    local epoch, before = string.match(run, '%.(%d+)$'), string.match(old or '', '%.(%d+)$')
    local later = epoch and before and tonumber(before) > tonumber(epoch)
    if old and stop < 9007199254740991 and (agreed ~= longest or later or old == run and force ~= '1') then
      if not closed and open == '' and agreed == longest and not later then
        marker = string.sub(marker, 1, -5)
        call('SET', KEYS[4], marker)
      end
      return { stop, tonumber(agreed), marker }
    end
    stop = now + longest * 1000
    if not marker and trust == '1' and call('DBSIZE') == 0 then
      stop = 0
    end
    marker = run .. ' ' .. string.format('%.0f', stop) .. ' ' .. longest .. ' ' .. nonce .. (closed and '' or open)
    call('SET', KEYS[4], marker)
    f.rebase(stop)
    return { stop, tonumber(longest), marker }
  end

  -- The identity of this node for clients, whatever address they use. Only a client that
  -- knew the node restores an identity that was lost with the data. Others wait for that
  -- until the quarantine is over, or has an end beyond the longest lease, which is no end.
  function f.identity(lists, stored, known, fresh)
    if not stored then
      local stop, longest = string.match(marker or '', '^%S+ (%d+) (%d+) ')
      local over = stop and (now >= tonumber(stop) or stop - now > longest * 1000)
      stored = known ~= '' and known or over and fresh or ''
      if stored ~= '' then
        call('ZADD', lists, '9007199254740991', 'node ' .. stored)
      end
    end
    return stored
  end

  -- The identity of this node, the lists in use, and the entries that have ended.
  function f.entries(lists)
    local stored, others, gone = nil, {}, {}
    local all = call('ZRANGE', lists, '0', '-1', 'WITHSCORES')
    for i = 1, #all, 2 do
      local stop = tonumber(all[i + 1])
      if string.sub(all[i], 1, 5) == 'node ' then
        stored = string.sub(all[i], 6)
      elseif stop > now then
        others[#others + 1] = { text = all[i], stop = stop }
      else
        gone[#gone + 1] = all[i]
      end
    end
    return stored, others, gone
  end

  -- Two lists may be used side by side if every majority of one shares a node with every
  -- majority of the other: if both majorities have more nodes than both lists together.
  -- Nodes that a client has not met yet give it no vote, so they do not count. A list
  -- takes the place of its parts, with which the same client began.
  function f.list(lists, version, size, ids, known, fresh, lifetime, adds, keeps)
    local stored, others, gone = f.entries(lists)
    local own = f.identity(lists, stored, known, fresh)
    if own == '' then
      return { '', 0, '', 0 }
    end
    local names, mine = { own }, { [own] = true }
    for name in string.gmatch(ids, '%w+') do
      if not mine[name] then
        names[#names + 1], mine[name] = name, true
      end
    end
    local stop, parts, refused, cover = now + lifetime * 1000, {}, nil, nil
    for _, other in ipairs(others) do
      local form, length, theirs = string.match(other.text, '^(%d+) (%d+) (.*)$')
      local both, shared = #names, 0
      for name in string.gmatch(theirs or '', '%w+') do
        if mine[name] then
          shared = shared + 1
        else
          both = both + 1
        end
      end
      if form ~= version or math.floor(size / 2) + math.floor(length / 2) + 2 <= both then
        refused = refused and refused.stop > other.stop and refused or other
      elseif length == size and shared == #names then
        cover = other
      elseif length == size and both == #names then
        parts[#parts + 1] = other
      end
    end
    if not refused and not cover and adds == '1' and #others >= 64 then
      refused = others[1] -- it ends first
    end
    local function prolong(entry)
      call('ZADD', lists, 'GT', string.format('%.0f', stop), entry.text)
    end
    if adds == '1' and not refused then
      for _, part in ipairs(parts) do
        gone[#gone + 1], stop = part.text, math.max(stop, part.stop)
      end
      if #gone > 0 then
        call('ZREM', lists, unpack(gone))
      end
      table.sort(names)
      cover = cover or { text = version .. ' ' .. size .. ' ' .. table.concat(names, ',') }
      prolong(cover)
    elseif keeps == '1' then -- leases of the client rely on what stands
      parts[#parts + 1] = cover
      for _, entry in ipairs(parts) do
        prolong(entry)
      end
    else
      cover = nil
    end
    if refused then
      return { own, math.ceil((refused.stop - now) / 1000), refused.text, 0 }
    end
    return { own, 0, '', cover and 1 or 0 }
  end

  -- The text of an error. Redis 7.0 reports only that the user may not run a command. So
  -- the text lists all of our commands that the user may not run.
  function f.describe(problem)
    local text = type(problem) == 'table' and problem.err or tostring(problem)
    if string.find(text, "can't run this command", 1, true) and redis.acl_check_cmd then
      local ours = 'dbsize del exists getrange pexpireat pttl publish set zadd zcard zrange zrank zrem zscore'
      for command in string.gmatch(ours, '%l+') do
        if not redis.acl_check_cmd(command) then
          text = text .. ' +' .. command
        end
      end
    end
    return text
  end

  rare = function() return f end
  return f
end

-- Adds an answer that is not a small number.
local function answer(reply)
  details = details or { 0, 0 }
  details[#details + 1] = reply
  codes = codes .. '*'
end

-- Runs the remaining operations.
local function run()
  local fenced = cap
  local registers, furthest = KEYS[1], now + (cap or 0)
  for i = key, #KEYS do
    local lock, at, op = KEYS[i], arg, ARGV[arg]
    local a, b = ARGV[at + 1], ARGV[at + 2]
    key = i + 1
    local reply
    if op == 'acquire' or op == 'wait' then
      local waits = op == 'wait'
      arg = at + (waits and 8 or 5)
      local late, t = now > ARGV[at + 3] + offset, ARGV[at + 4]
      local simple = votes and not late
      if simple and hint then
        simple = call('EXISTS', lock .. '\255q') == 0
      end
      if not votes then
        reply = -1
      elseif simple and call('SET', lock, a, 'NX', 'PXAT', after(b)) then
        made = lock
        if fenced and (waits or t + 0 <= base or t + 0 > furthest or call('ZADD', registers, 'GT', 'CH', t, lock) ~= 1) then
          reply = rare().move(lock, a, t)
        else
          reply = 1
        end
      elseif waits then
        reply = rare().contend(lock, a, b, late, t, ARGV[at + 5], ARGV[at + 6], ARGV[at + 7])
      else
        reply = rare().contend(lock, a, b, late, t)
      end
      made = nil
    elseif op == 'release' then
      arg = at + 2
      local held = call('GETRANGE', lock, '0', '32')
      local ours = held == a
      if ours then
        call('DEL', lock)
      end
      if hint then
        reply = rare().hand(lock, held, ours)
      else
        reply = ours and 1 or held == '' and call('EXISTS', lock) == 0 and 0 or -1
      end
    elseif op == 'extend' then
      arg = at + 3
      local held = call('GETRANGE', lock, '0', '49')
      local same = held == a or string.sub(held, 1, #a) == a
      local reserved = not same and string.sub(held, 33) == ' w '
      if reserved then
        reply = 0
      elseif not same and string.sub(held, 1, 33) ~= string.sub(a, 1, 33) then
        reply = held == '' and call('EXISTS', lock) == 0 and 0 or -1
      elseif now > ARGV[2] + offset + b * 1000 then
        reply = 0
      else
        call('PEXPIREAT', lock, after(b))
        reply = same and votes and 1 or 2
      end
    elseif op == 'heal' then
      arg = at + 5
      local held = call('GETRANGE', lock, '0', '49')
      if now > ARGV[at + 3] + offset or not votes and now > ARGV[at + 4] + offset then
        reply = 0
      elseif held == '' then -- missing, or another client's empty value
        reply = call('SET', lock, a, 'NX', 'PXAT', after(b)) and 1 or -1
      elseif string.sub(held, 33) == ' w ' then -- a lease takes precedence over a reservation
        call('SET', lock, a, 'PXAT', after(b))
        reply = 1
      elseif string.sub(held, 1, 33) == string.sub(a, 1, 33) then
        call('PEXPIREAT', lock, after(b))
        reply = 1
      else
        reply = -1
      end
    elseif op == 'raise' then
      arg = at + 4
      reply = rare().raise(lock, a, b, ARGV[at + 3])
    elseif op == 'leave' then
      arg = at + 5
      local held = call('GETRANGE', lock, '0', '32')
      local ours = held == a
      if ours then
        call('DEL', lock)
      end
      reply = rare().hand(lock, held, ours, b, ARGV[at + 3], ARGV[at + 4])
    elseif op == 'pass' then
      arg = at + 2
      reply = rare().pass(lock, a)
    elseif op == 'read' then
      arg = at + 1
      local left = call('PTTL', lock)
      local held = left ~= -2 and call('GETRANGE', lock, '0', '511')
      local waiting = call('ZCARD', lock .. '\255q')
      local known, register = pcall(rare().register, lock) -- a read reports what exists
      reply = { held, left, known and register or -1, waiting }
    elseif op == 'forget' then
      arg = at + 3
      reply = rare().forget(a, b)
    elseif op == 'guard' then
      arg = at + 8
      reply = rare().guard(a, b, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], now > ARGV[at + 7] + offset)
    elseif op == 'list' then
      arg = at + 10
      reply = { '', 0, '', 0 }
      if now <= ARGV[at + 9] + offset then
        reply = rare().list(lock, a, b, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 8])
      end
    else
      return redis.error_reply('ERR quorumlock: no operation ' .. tostring(op))
    end
    if reply == 1 then
      codes = codes .. '1'
    elseif reply == 0 then
      codes = codes .. '0'
    elseif reply == -1 then
      codes = codes .. '-'
    elseif reply == 2 then
      codes = codes .. '2'
    else
      answer(reply)
    end
  end
end

-- Runs all operations: an error ends its own operation and no other. This is a function
-- because in-process nodes run the script as well, and after an error their Lua no longer
-- shares the variables of this chunk with its functions.
local function all()
  repeat
    local ok, problem = pcall(run)
    if ok and problem then
      return problem
    elseif not ok then
      if made then
        redis.pcall('DEL', made) -- an error is no vote: it leaves no lock behind
        made = nil
      end
      answer({ rare().describe(problem) })
    end
  until ok
  if details then
    details[1], details[2] = now, codes
    return details
  end
  return { now, codes }
end

return all()
