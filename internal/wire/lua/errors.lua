-- This file decides how an error of Redis is reported to the client. It reads no key and
-- writes none. An operation that fails answers {error}.

-- The text of an error. Redis 7.0 reports only that the user may not run a command. So
-- the text lists all of our commands that the user may not run.
function f.describe(problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  if string.find(text, "can't run this command", 1, true) and redis.acl_check_cmd then
    local ours = 'dbsize del exists getrange pexpireat pttl publish set zadd zcard zrange zrank zrem zscore'
    if string.find(ARGV[6], 'c', 1, true) then
      ours = string.gsub(ours, 'publish', 'spublish')
    end
    for command in string.gmatch(ours, '%l+') do
      -- Without arguments the server reads past them: it answers anything, or crashes (7.0.15).
      if not redis.acl_check_cmd(command, KEYS[1], KEYS[1], KEYS[1]) then
        text = text .. ' +' .. command
      end
    end
  end
  return text
end
