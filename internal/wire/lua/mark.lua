-- mark     owner kind ms not_after note   writes a note into the lock that an owner holds; owner
--          is 'owner '. Kind 'a' asks the holder to release the lock. Kind 'x' revokes the
--          lease: the lock is neither prolonged nor healed any more, and lives for ms at least
--     {1, left}  marked; left is how long the lock had to live, ms (-1: no end)
--     0     not_after has passed
--     -1    missing, or another's
--
-- This file decides what becomes of a marked lock, and how a lease is taken away: not by deleting
-- the lock, which would let another client in while the holder still works. A marked lock is
-- 'owner a …' or 'owner x …'; byte 255 and the note follow the rest of its value. The file reads
-- and writes the lock.

function f.note(lock)
  return string.match(call('GETRANGE', lock, '0', '1023'), '\255(.*)$') or ''
end

function f.mark(lock, owner, kind, duration, late, note)
  local held = call('GETRANGE', lock, '0', '1023')
  local left = call('PTTL', lock)
  local mark = string.sub(held, 33, 35)
  if string.sub(held, 1, 33) ~= owner or mark == ' w ' or left == -2 then
    return -1
  elseif late then
    return 0
  elseif mark ~= ' x ' or kind == 'x' then
    local rest = string.match(held, '^[^\255]*', (mark == ' a ' or mark == ' x ') and 36 or 34)
    if kind == 'x' and left >= 0 and left < tonumber(duration) then
      call('PEXPIREAT', lock, after(duration)) -- before the SET, which a full server then allows
    end
    call('SET', lock, owner .. kind .. ' ' .. rest .. '\255' .. note, 'XX', 'KEEPTTL')
  end
  return { 1, left }
end

-- What extend makes of a lock that does not begin with proof, 'owner t ': its answer, or nil if
-- the lock is ours; whether it shows t behind a mark; and whether it has a mark.
function f.differs(lock, held, proof)
  local mark = string.sub(held, 33, 35)
  if string.sub(held, 33) == ' w ' then
    return 0
  elseif string.sub(held, 1, 33) ~= string.sub(proof, 1, 33) then
    return held == '' and call('EXISTS', lock) == 0 and 0 or -1
  elseif mark == ' x ' then
    return -1, false, true
  elseif mark == ' a ' then
    local shown = call('GETRANGE', lock, '35', tostring(#proof + 1))
    return nil, string.sub(held, 1, 33) .. shown == proof, true
  end
end
