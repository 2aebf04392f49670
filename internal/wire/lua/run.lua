-- extend   prefix ms               prolongs the lock; prefix is 'owner t '
--     1 ours and at t, 2 ours and not at t, 3 ours and the marker differs: the data may be old, and
--     the key may be no vote (3 comes as '*'); 0 missing, reserved, or detached by another owner; -1 another's or revoked
--     {code, tickets, note} where others want the lock, if the client says in ARGV[6] that it
--                           knows this: one of these codes, how many tickets are queued, and the
--                           note of a mark or ''
-- heal     value ms not_after held   creates a lock again that this node has lost. If the
--          marker differs (quarantine), only until held, the instant at which the lost key
--          would have ended: a later heal would be a new vote
--     1 ours, 0 not_after has passed, -1 another's or revoked
-- read     value first             {held or nil, ms, register, tickets}; where readers have the
--                                  lock, also how many, and the values of 16 of them; held is then
--                                  value, if that is a reader's. Where tickets are queued, and `first`
--                                  is not '', also that many of them, see f.ahead
--
-- This file runs the operations, one after the other. It decides the common cases without a
-- function of the other files: the grant of a free lock, its renewal, its restoration and its
-- release. It reads and writes the lock and the registers, KEYS[1], and it looks whether the
-- lock has a queue. Any other operation is the function of its name in a room, which gets the lock and
-- the arguments.

-- Adds the character of an answer that is not 1, and for '*' its reply. The characters '1' are added together, because
-- a longer string for each would be a tenth of what a call of 128 renewals costs.
local function answer(code, reply)
  if code == '*' then
    details = details or { 0, 0 }
    details[#details + 1] = reply
  end
  codes, ones = codes .. string.rep('1', ones) .. code, 0
end

-- How many wait for a lock.
local function waiters(by)
  local count = by('ZCARD', queue)
  return type(count) == 'number' and count > 0 and rare().living(count) or count
end

-- The answer of a renewal where others may want the lock.
function wanted(lock, code, marked)
  if not string.find(ARGV[6], 'w', 1, true) then
    return code
  end
  local waiting = hint and code > 0 and waiters(redis.pcall) or 0
  waiting = type(waiting) == 'number' and waiting or 0 -- a renewal needs no right to count them
  if waiting == 0 and not marked then
    return code
  end
  return { code, waiting, marked and rare().note(lock) or '' }
end

-- Runs the remaining operations.
local function run()
  local KEYS, ARGV, call, sub = KEYS, ARGV, call, string.sub -- the server looks a global up by its name each time
  local fenced = cap
  local sharing, others -- how many arguments the operations of a room have
  local registers, furthest = KEYS[1], now + (cap or 0)
  for i = key, #KEYS, step do
    local lock, at, op = KEYS[i], arg, ARGV[arg]
    local a, b = ARGV[at + 1], ARGV[at + 2]
    key = i + step
    if step > 1 then
      queue, watch, set = KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
      slot = string.find(lock, '\255p', 1, true)
    end
    local reply
    if op == 'acquire' or op == 'wait' then
      local waits = op == 'wait'
      arg = at + (waits and 8 or 5)
      local late, t = now > ARGV[at + 3] + offset, ARGV[at + 4]
      local simple = votes and not late
      if simple and hint and queue then
        simple = call('EXISTS', queue) == 0
      end
      if not votes then
        reply = -1
      elseif hint and not queue then
        reply = '?'
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
    elseif op == 'release' or op == 'leave' then
      arg = at + (op == 'leave' and 5 or 2)
      local held = call('GETRANGE', lock, '0', '32')
      local ours = held == a or string.sub(held, 1, 2) == 'x ' and call('GETRANGE', lock, '2', '34') == a
      if hint and not queue then
        reply = '?'
      else
        if ours then
          call('DEL', lock)
        end
        if hint or op == 'leave' then
          reply = rare().hand(lock, held, ours, unpack(ARGV, at + 2, arg - 1))
        else
          if ours and slot then
            permits().write(lock)
          end
          reply = ours and 1 or held == '' and call('EXISTS', lock) == 0 and 0 or -1
        end
      end
    elseif op == 'extend' then
      arg = at + 3
      local held = call('GETRANGE', lock, '0', '49') -- as long as most proofs, so that the strings are equal
      local same, marked = held == a or sub(held, 1, #a) == a, nil
      if hint and not queue then
        reply = '?'
      elseif not same then
        reply, same, marked = rare().differs(lock, held, a)
      end
      if not reply and now > sent + b * 1000 then
        reply = 0
      elseif not reply then
        call('PEXPIREAT', lock, after(b))
        reply = votes and (same and 1 or 2) or 3
        if slot then
          permits().write(lock, b)
        end
      end
      if marked or hint and reply ~= '?' and reply > 0 then
        reply = wanted(lock, reply, marked)
      end
    elseif op == 'heal' then
      arg = at + 5
      local held = call('GETRANGE', lock, '0', '49')
      if now > ARGV[at + 3] + offset or not votes and now > ARGV[at + 4] + offset then
        reply = 0
      elseif held == '' then -- missing, or another client's empty value
        reply = call('SET', lock, a, 'NX', 'PXAT', after(b)) and 1 or -1
      elseif shared().reserved(lock, held, a) then -- a lease takes precedence
        call('SET', lock, a, 'PXAT', after(b))
        reply = 1
      elseif string.sub(held, 1, 33) == string.sub(a, 1, 33) then
        call('PEXPIREAT', lock, after(b))
        reply = 1
      else
        reply = -1
      end
      if reply == 1 and slot then
        permits().write(lock, b)
      end
    elseif op == 'read' then
      arg = at + 3
      local left = call('PTTL', lock)
      local held = left ~= -2 and call('GETRANGE', lock, '0', '1023')
      local waiting = waiters(call)
      local known, value = pcall(register, lock) -- a read reports what exists
      reply = { held, left, known and value or -1, waiting }
      if held and readers(held) then
        reply = shared().list(lock, a, reply)
      end
      if b ~= '' and waiting > 0 then
        reply[#reply + 1] = rare().ahead(b)
      end
    else
      sharing = sharing or { share = 6, prolong = 2, restore = 4, raise = 2, quit = 4 }
      local room, count = shared, sharing[op]
      if op == 'permit' then
        room, count = permits, 8
      elseif not count then
        others = others
          or { anew = 4, resume = 5, mark = 5, drop = 1, back = 2, guard = 7, list = 9, announce = 3, scan = 3, forget = 2 }
        room, count = rare, others[op]
      end
      if not count then
        return redis.error_reply('ERR quorumlock: no operation ' .. tostring(op))
      end
      arg = at + count + 1
      reply = room()[op](lock, unpack(ARGV, at + 1, at + count))
      if slot and op ~= 'permit' then
        permits().write(lock)
      end
    end
    made = nil
    if reply == 1 then
      ones = ones + 1
    elseif reply == 0 then
      answer('0')
    elseif reply == -1 then
      answer('-')
    elseif reply == 2 then
      answer('2')
    elseif reply == '?' then
      answer('?')
    else
      answer('*', reply)
    end
  end
end

-- Runs all operations: an error ends its own operation and no other. This is a function
-- because in-process nodes run the script as well, and after an error their Lua no longer
-- shares the variables of this chunk with its functions.
local function all()
  if marker and not votes and ARGV[3] == '' then
    votes = now > rare().bound()
  end
  repeat
    local ok, problem = pcall(run)
    if ok and problem then
      return problem
    elseif not ok then
      if made then
        redis.pcall('DEL', made) -- an error is no vote: it leaves no lock behind
        made = nil
      end
      answer('*', { rare().describe(problem) })
    end
  until ok
  codes = codes .. string.rep('1', ones)
  if details then
    details[1], details[2] = now, codes
    return details
  end
  return { now, codes }
end

return all()
