-- Where gopher-lua is not like the Lua 5.1 in Redis, and a script can be put
-- right by replacing functions. Goes before each script, in one line, so that
-- line numbers in errors stay true. Only whole-line comments are allowed here.
local tostring, tonumber = (function()
  local str, num, load, fmt, cat = tostring, tonumber, loadstring, string.format, table.concat
  -- Redis prints 14 digits, gopher-lua as many as it takes.
  local function text(v)
    if type(v) ~= 'number' then return str(v) end
    if v == 1/0 then return 'inf' end
    if v == -1/0 then return '-inf' end
    return fmt('%.14g', v)
  end
  -- gopher-lua takes no exponent here and a leading zero for octal.
  local function parse(v, base)
    if base ~= nil then return num(v, base) end
    if type(v) ~= 'string' then return num(v) end
    local sign, digits, rest = string.match(v, '^%s*([-+]?)0*(%d[%d.]*)([eE]?[-+]?%d*)%s*$')
    if digits == nil then return num(v) end
    if rest ~= '' and not string.match(rest, '^[eE][-+]?%d+$') then return nil end
    if string.match(digits, '%..*%.') then return nil end
    if sign ~= '-' then sign = '' end
    return load('return ' .. sign .. digits .. rest)()
  end
  string.format = function(pattern, ...)
    local args, n, i = {...}, select('#', ...), 0
    local wrong = function(kind, v)
      error("bad argument #" .. (i + 1) .. " to 'format' (" .. kind .. " expected, got " .. type(v) .. ")", 0)
    end
    pattern = string.gsub(pattern, '%%([+ #0-]*%d*%.?%d*)(.)', function(flags, verb)
      if verb == '%' then return '%%' end
      i = i + 1
      local v = args[i]
      if verb == 's' then
        if type(v) == 'number' then v = text(v) end
        if type(v) ~= 'string' then wrong('string', v) end
        args[i] = v
      elseif verb ~= 'q' then
        args[i] = parse(v)
        if args[i] == nil then wrong('number', v) end
        if verb == 'u' then verb = 'd' end
      end
      return '%' .. flags .. verb
    end)
    return fmt(pattern, unpack(args, 1, n))
  end
  table.concat = function(list, sep, from, to)
    local copy = {}
    from, to = from or 1, to or #list
    for i = from, to do
      copy[i] = list[i]
      if type(copy[i]) == 'number' then copy[i] = text(copy[i]) end
    end
    return cat(copy, sep or '', from, to)
  end
  return text, parse
end)()
