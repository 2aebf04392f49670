-- list     version n ids known fresh ms adds keeps not_after   on the lists in use: is a
--          list of n nodes admitted, whose votes may stand beside those of the other lists?
--          ids are the identities of its nodes as far as they are known; known is that of
--          this node, and fresh a new one. adds is '1' to register it for ms, and keeps '1'
--          to prolong it, or the parts of it that stand, whether it is admitted or not.
--          {identity of this node or '', ms for which the list is refused, the list in its
--          way, 1 if the list is registered}
-- announce text ms not_after       tells clients with other lists of this one for ms, and of
--          theirs: {text, ms left, …} of all that stand. Whatever the server refuses of it is
--          left out: it is a notice, and no vote depends on it.
--
-- This file decides whether the majorities of two lists of nodes meet. It reads and writes
-- the operation's own key: a sorted set of the lists and, for list, of this node's identity, by
-- the instants at which they end, µs. It reads the marker that head.lua has read.

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
-- takes the place of its parts, with which the same client began. A part prolongs no list
-- of which it may be a part: commands that meet the nodes for the first time would keep
-- a list for ever that no client has any more.
function f.list(lists, version, size, ids, known, fresh, lifetime, adds, keeps, not_after)
  if now > not_after + offset then
    return { '', 0, '', 0 }
  end
  local stored, others, gone = f.entries(lists)
  f.room()
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
  local stop, parts, refused, same = now + lifetime * 1000, {}, nil, nil
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
    elseif length == size and both == #names then
      if shared == #names then
        same = other
      else
        parts[#parts + 1] = other
      end
    end
  end
  if not refused and not same and adds == '1' and #others >= 64 then
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
    same = same or { text = version .. ' ' .. size .. ' ' .. table.concat(names, ',') }
    prolong(same)
  elseif keeps == '1' then -- leases of the client rely on what stands
    parts[#parts + 1] = same
    for _, entry in ipairs(parts) do
      prolong(entry)
    end
  else
    same = nil
  end
  if refused then
    return { own, math.ceil((refused.stop - now) / 1000), refused.text, 0 }
  end
  return { own, 0, '', same and 1 or 0 }
end

-- The key ends with its last list. A node that shows 64 lists takes no other one.
function f.announce(key, text, lifetime, not_after)
  if now > not_after + offset then
    return {}
  end
  local all = redis.pcall('ZRANGE', key, '0', '127', 'WITHSCORES')
  local reply = {}
  for i = 1, #all, 2 do
    local left = all[i + 1] - now
    if left > 0 then
      reply[#reply + 1], reply[#reply + 2] = all[i], math.ceil(left / 1000)
    else
      redis.pcall('ZREM', key, all[i])
    end
  end
  local stop, flag = string.format('%.0f', now + lifetime * 1000), #reply < 128 and 'GT' or 'XX'
  if type(redis.pcall('ZADD', key, flag, stop, text)) == 'number' then
    redis.pcall('PEXPIREAT', key, after(lifetime))
  end
  return reply
end
