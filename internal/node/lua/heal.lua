-- Re-creates locks that this node has lost while their lease is still valid.
--
-- KEYS     the locks
-- ARGV[1]  this node's clock minus the client's clock, µs
-- ARGV[2…] for each lock: its whole value, how long it lives in ms, and the
--          instant after which it must not come back, µs of the client's clock
--
-- Replies {now, r…}: this node's clock in µs, and for each lock
--    1  ours, alive
--    0  too late
--   -1  it is somebody else's, or a key of another type (see extend.lua)
--
-- The fence counter is left alone: only an acquisition makes one, so that the
-- counters of the nodes stay level.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ms = (now - now % 1000) / 1000
local replies = { now }
for key = 1, #KEYS do
  local value, px, last = ARGV[3 * key - 1], ARGV[3 * key], ARGV[3 * key + 1]
  if tonumber(px) < 1 then
    return redis.error_reply('ERR quorumlock: a lock cannot live ' .. px .. ' ms')
  end
  local ends = ms + px -- an instant: see acquire.lua
  local held = redis.pcall('GETRANGE', KEYS[key], 0, 35)
  if type(held) == 'table' then
    if not string.find(held.err, 'WRONGTYPE', 1, true) then
      return held
    end
    held = '-'
  end
  if now > last + ARGV[1] then
    replies[key + 1] = 0
  elseif held == '' then -- none, or somebody else's that is empty
    replies[key + 1] = redis.call('SET', KEYS[key], value, 'NX', 'PXAT', ends) and 1 or -1
  elseif string.sub(held, 33) == ' w ' then -- kept for somebody who waits: a lease goes before
    redis.call('SET', KEYS[key], value, 'PXAT', ends)
    replies[key + 1] = 1
  elseif string.sub(held, 1, 33) == string.sub(value, 1, 33) then
    redis.call('PEXPIREAT', KEYS[key], ends)
    replies[key + 1] = 1
  else
    replies[key + 1] = -1
  end
end
return replies
