-- Replaces functions in which gopher-lua differs from the Lua 5.1 in Redis. It is put
-- before each script, in one line, so that line numbers in errors stay correct. Only
-- whole-line comments are allowed here.
local tostring, tonumber, pcall, xpcall = (function()
  local str, num, load, fmt, cat, try, handle = tostring, tonumber, loadstring, string.format, table.concat, pcall, xpcall
  -- Redis prints 14 digits, gopher-lua as many as the number needs.
  local function text(v)
    if type(v) ~= 'number' then return str(v) end
    if v == 1/0 then return 'inf' end
    if v == -1/0 then return '-inf' end
    if v ~= v then return 'nan' end
    return fmt('%.14g', v)
  end
  -- gopher-lua accepts no exponent and no infinity here, and reads a leading zero as octal.
  local function parse(v, base)
    if base ~= nil then return num(v, base) end
    if type(v) ~= 'string' then return num(v) end
    local sign, digits, rest = string.match(v, '^%s*([-+]?)0*(%d[%d.]*)([eE]?[-+]?%d*)%s*$')
    if digits == nil then
      local minus, word = string.match(string.lower(v), '^%s*([-+]?)(%l+)%s*$')
      if word == 'inf' or word == 'infinity' then return minus == '-' and -1/0 or 1/0 end
      if word == 'nan' then return 0/0 end
      return num(v)
    end
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
  -- The error of a command arrives as a text with a line, like an error of the script
  -- itself. Redis makes a table of it, which only xpcall passes on; pcall returns its text.
  local function failure(problem)
    if type(problem) ~= 'string' then return problem end
    local line, rest = string.match(problem, '^:(%d+): (.*)$')
    if line == nil then return problem end
    local bare = string.match(rest, '^(.*) script: %x+, &c%.?$')
    if string.find(rest, '^ERR wrong number of arguments') then
      rest = 'ERR Wrong number of args calling Redis command from script'
    elseif bare then
      rest = string.find(bare, '^%u+ ') and bare or 'ERR ' .. bare
    elseif not string.find(rest, '^%u+ ') then
      return 'user_script:' .. line .. ': ' .. rest
    end
    return { err = rest }
  end
  local function finish(ok, ...)
    if ok then return ok, ... end
    local problem = failure((...))
    if type(problem) == 'table' and type(problem.err) == 'string' then problem = problem.err end
    return ok, problem
  end
  return text, parse, function(...) return finish(try(...)) end, function(f, handler)
    return handle(f, function(problem) return handler(failure(problem)) end)
  end
end)()
