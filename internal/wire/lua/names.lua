-- scan     cursor pattern count   looks at about that many keys of the server, from a cursor on
--     {the next cursor, '0' after the last key, {the matching keys of strings}}
--
-- This file finds locks by their names. It reads no key, only their names, and writes none.

-- The other keys behind a lock have a byte 255 in their names, which no name of a lock has.
function f.scan(_, cursor, pattern, count)
  local page = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'string')
  local names = {}
  for _, key in ipairs(page[2]) do
    if not string.find(key, '\255', 1, true) then
      names[#names + 1] = key
    end
  end
  return { page[1], names }
end
