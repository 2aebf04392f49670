-- mark     owner kind ms not_after note   marks the lock of an owner; owner is 'owner ', and 32 zeros
--          for readers. Kind 'a' asks
--          the holder to release it. Kind 'x' revokes the lease, and the lock lives for ms at
--          least. Kind 'd' detaches it, and the lock lives for ms, for whoever resumes it
--     {1, left}  marked, {2, left} it was revoked already, and kind 'd' has not marked it; left is how
--                long the lock had to live, ms (-1: no end)
--     0     not_after has passed
--     -1    missing, another's, or readers are only expected: see reserved in shared.lua
-- drop     owner                   deletes a detached lock: as release
-- back     owner from              gives a lock that owner has resumed back to those who have the handle of
--          `from`, for as long as it still lives: 1, or -1 where it is not the owner's
--
-- This file decides what becomes of a marked lock, and how a lease is taken away: not by deleting
-- the lock, which would let another client in while the holder still works. A lock that was asked
-- for is 'owner a …'; byte 255 and the note follow the rest of its value. One that was revoked is
-- 'x owner …', and one that was detached 'd owner …': they begin like another owner's, so whatever
-- the holder has sent neither prolongs nor restores them, also by a script of an older client. The
-- file reads and writes the lock, and reads the set of its readers.

function f.note(lock)
  return string.match(call('GETRANGE', lock, '0', '1023'), '\255(.*)$') or ''
end

function f.mark(lock, owner, kind, duration, not_after, note)
  local held = call('GETRANGE', lock, '0', '1023')
  local left = call('PTTL', lock)
  local form, shown = string.match(held, '^([xds]) (.*)$')
  shown = shown or held
  local ours = string.sub(shown, 1, 33) == owner and string.sub(shown, 33) ~= ' w ' and left ~= -2
  if form == 's' or not string.find(owner, '[^0 ]') then -- of readers
    local taken = readers(held) and not shared().reserved(lock, held, owner)
    ours = ours and (taken or shared().revoked(held))
  end
  if not ours then
    return -1
  elseif form == 'x' and kind == 'd' then
    return { 2, left }
  elseif now > not_after + offset then
    return 0
  end
  local code = form == 'x' and 2 or 1
  if kind == 'a' and form and form ~= 's' then
    return { code, left }
  end
  f.room()
  local rest = string.match(shown, '^[^\255]*', string.sub(shown, 33, 35) == ' a ' and 36 or 34)
  if kind == 'd' or kind == 'x' and left >= 0 and left < tonumber(duration) then
    call('PEXPIREAT', lock, after(duration))
  end
  local value = kind ~= 'a' and kind .. ' ' .. owner or (form and 's ' or '') .. owner .. 'a '
  call('SET', lock, value .. rest .. (kind == 'd' and '' or '\255' .. note), 'XX', 'KEEPTTL')
  return { code, left }
end

function f.drop(lock, owner)
  local held = call('GETRANGE', lock, '0', '34')
  local ours = held == 'd ' .. owner
  if ours then
    call('DEL', lock)
  end
  return f.hand(lock, held, ours)
end

function f.back(lock, owner, from)
  local held = call('GETRANGE', lock, '0', '1023')
  local rest = string.match(held, '^%d+ [^\255]*', string.sub(held, 33, 35) == ' a ' and 36 or 34)
  if string.sub(held, 1, 33) ~= owner or not rest then
    return -1
  end
  f.room()
  call('SET', lock, 'd ' .. from .. rest, 'XX', 'KEEPTTL')
  return 1
end

-- What extend makes of a lock that does not begin with proof, 'owner t ': its answer, or nil if
-- the lock is ours; whether it shows t behind a mark; and whether it has a mark.
function f.differs(lock, held, proof)
  local owner = string.sub(proof, 1, 33)
  if readers(held) and not set then
    return '?'
  elseif shared().reserved(lock, held, owner) then
    return 0
  elseif string.sub(held, 1, 35) == 'x ' .. owner then
    return -1, false, true
  elseif string.sub(held, 1, 33) ~= owner then
    return held == '' and call('EXISTS', lock) == 0 and 0 or -1
  elseif string.sub(held, 33, 35) == ' a ' then
    local shown = call('GETRANGE', lock, '35', tostring(#proof + 1))
    return nil, owner .. shown == proof, true
  end
end
