-- guard    run_id ms trust force nonce open not_after   starts a quarantine if the server's
--          process or data has changed: {end of the quarantine, µs, ms, marker}. open is
--          'open' if clients without the guard may still vote, or '': the first '' ends
--          that. With '' for run_id it writes nothing; 0 and '' if there is no marker, or if
--          not_after has passed
--
-- This file decides whether the server may have forgotten locks. It reads and writes the
-- marker, KEYS[4], and raises the base, KEYS[2], to the end of the quarantine. head.lua
-- compares the marker for each vote.

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
