-- guard    run_id ms trust force nonce open not_after   starts a quarantine if the server's
--          process or data has changed: {end of the quarantine, µs, ms, marker}. open is
--          'open' if clients without the guard may still vote, or '': the first '' ends
--          that. With '' for run_id it writes nothing, and also answers for how long the marker
--          binds clients without the guard, ms; 0 and '' if there is no marker, or if not_after
--          has passed
--
-- This file decides whether the server may have forgotten locks. It reads the lists, KEYS[5], reads and writes the
-- marker, KEYS[4], and raises the base, KEYS[2], to the end of the quarantine. head.lua
-- compares the marker for each vote.

-- The instant until which the marker binds clients without the guard, µs: until then a lease of a
-- client with it may be alive. Such a client keeps its list in use for longer than its leases (see
-- lists.lua). A node in quarantine may have no list yet: then the end of that counts, and three looks.
function f.bound()
  local stop = tonumber(string.match(marker, '^%S+ (%d+) %d+ %w+$'))
  local all = redis.pcall('ZRANGE', KEYS[5], '-2', '-1', 'WITHSCORES')
  if not stop or all.err then
    return 9007199254740991 -- nothing is known, so it binds
  end
  stop = stop + 30000000
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 5) ~= 'node ' then
      stop = math.max(stop, tonumber(all[i + 1]))
    end
  end
  return stop
end

-- A marker names the server process. A restart and a failover change the process; a
-- FLUSHALL and a first use lose the marker. For a failover group, `run` also has the
-- group's epoch behind its last point; a client of an older epoch changes nothing. The
-- nonce makes every marker new, so that clients notice lost data even if the same
-- process wrote a marker again. An end beyond 2^53-1, where doubles have gaps, is not
-- valid. 'open' is part of the last word, so that the marker keeps its four words. A marker that binds
-- no client any more is opened by a rollout, and replaced by the marker of a guard with another time, or of clients
-- that list the server differently: only the word for a failover group ends with an epoch.
function f.guard(_, run, longest, trust, force, nonce, open, not_after)
  if now > not_after + offset then
    return { 0, 0, '', run == '' and 0 or nil }
  end
  local old, stop, agreed = string.match(marker or '', '^(%S+) (%d+) (%d+) %w+$')
  local opened = old and string.sub(marker, -4) == 'open'
  stop = tonumber(stop)
  if run == '' then
    local binds = old and not opened and math.max(f.bound() - now, 0) or 0
    return { stop or 0, tonumber(agreed or 0), marker or '', math.ceil(binds / 1000) }
  elseif not marker then
    call('GETRANGE', KEYS[4], '0', '0') -- a key of another type is an error: it is another program's data
  end
  local bound = old and now <= f.bound()
  local epoch, before = string.match(run, '%.(%d+)$'), string.match(old or '', '%.(%d+)$')
  local later = epoch and before and tonumber(before) > tonumber(epoch)
  local differs = agreed ~= longest or old and not epoch ~= not before
  -- The node's clock has been set back since. Each new process would wait as long as the first one did, until the clock
  -- has come there, so the quarantine begins again.
  local ahead = old and stop > now + longest * 1000 + 1000000
  if old and stop < 9007199254740991 and (later or differs and bound or not differs and old == run and force ~= '1' and not ahead) then
    if not differs and not later and (opened and open == '' or not opened and open ~= '' and not bound) then
      marker = opened and string.sub(marker, 1, -5) or marker .. open
      f.room()
      call('SET', KEYS[4], marker)
    end
    return { stop, tonumber(agreed), marker }
  end
  stop = now + longest * 1000
  if not marker and trust == '1' and call('DBSIZE') == 0 then
    stop = 0
  end
  f.room()
  marker = run .. ' ' .. string.format('%.0f', stop) .. ' ' .. longest .. ' ' .. nonce .. (bound and not opened and '' or open)
  call('SET', KEYS[4], marker)
  f.rebase(stop)
  return { stop, tonumber(longest), marker }
end
