-- Prolongs locks that are still ours. Never creates one.
--
-- ARGV[1]  when this was sent, µs of this node's clock
-- ARGV[2]  keys for each lock: 2 (lock, fence counter), or 1 without fencing
-- ARGV[3]  how long a counter outlives its use, and the clock's way up to it, ms
-- KEYS     for each lock: the lock, and its fence counter
-- ARGV[4…] for each lock: owner value, how long it lives from now in ms, token
--
-- Replies {now, r…}: this node's clock in µs, and for each lock
--    1  ours, prolonged; an existing counter is at the token or above
--    0  it does not exist, or is kept for somebody who waits: that is nobody's yet
--   -1  it is somebody else's, or no lock at all
--
-- One bad key must not cost the other locks of the batch their renewal, hence
-- pcall: a key of another type is somebody else's, and a counter that is no
-- number is left alone.
--
-- The end is an instant (see acquire.lua): a server that is frozen on the way
-- would bring back, when it runs on, what expired meanwhile. If it was frozen
-- before the look at the clock the lock still seems to be there, but for longer
-- than it can be, since nothing that was sent later has run yet. An end that is
-- not ahead deletes the lock and reports success, so a length of 0 is refused.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ms = (now - now % 1000) / 1000
local replies = { now }
local stride = tonumber(ARGV[2])
local arg = 4
for key = 1, #KEYS, stride do
  local owner, px, token = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2])
  arg = arg + 3
  if tonumber(px) < 1 then
    return redis.error_reply('ERR quorumlock: a lock cannot live ' .. px .. ' ms')
  end
  local held = redis.pcall('GETRANGE', KEYS[key], 0, 35)
  if type(held) == 'table' then
    if not string.find(held.err, 'WRONGTYPE', 1, true) then
      return held
    end
    replies[#replies + 1] = -1
  elseif held == '' and redis.call('PTTL', KEYS[key]) == -2 or string.sub(held, 33) == ' w ' then
    replies[#replies + 1] = 0
  elseif string.sub(held, 1, 33) ~= owner .. ' ' then
    replies[#replies + 1] = -1
  elseif now > ARGV[1] + px * 1000 then
    replies[#replies + 1] = 0
  else
    redis.call('PEXPIREAT', KEYS[key], ms + px)
    if stride == 2 then
      local last = redis.pcall('GET', KEYS[key + 1])
      last = type(last) == 'string' and tonumber(string.match(last, '^%d+$'))
      if last and last > 9007199254740991 then -- no counter of ours, see acquire.lua
        last = nil
      end
      if last and last < token then
        redis.call('SET', KEYS[key + 1], string.format('%.0f', token), 'PXAT', forgotten(now, token, ARGV[3]))
      elseif last then
        redis.call('PEXPIREAT', KEYS[key + 1], forgotten(now, last, ARGV[3]))
      end
    end
    replies[#replies + 1] = 1
  end
end
return replies
