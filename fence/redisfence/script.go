package redisfence

import "github.com/redis/rueidis"

// Error replies of the guard. INFO errorstats counts by the first word.
const (
	staleReply    = "FENCESTALE "
	registerReply = "FENCEREGISTER "
)

// guard comes before every script. It compares as numbers, which is exact: both are
// at most 2^53 − 1. It writes the token as the text that it got, because tostring
// prints a number of this size as 1.7953444667204e+15.
//
// Its variables are in a block, where the script that follows does not see them.
const guard = `do
local register, token = KEYS[1], ARGV[1]
local seen = redis.pcall('GET', register)
if type(seen) == 'table' or (seen and not (#seen <= 16 and string.find(seen, '^%d+$'))) then
  return redis.error_reply('FENCEREGISTER ' .. 'holds no token')
end
if seen and tonumber(seen) > tonumber(token) then
  return redis.error_reply('FENCESTALE ' .. seen)
end
if seen ~= token then redis.call('SET', register, token) end
end
local function rest(list)
  local without = {}
  for i = 2, #list do without[i - 1] = list[i] end
  return without
end
`

// Script is a Lua script that runs only with a token that is not stale. It is safe
// for concurrent use; make it once and keep it.
type Script struct {
	lua *rueidis.Lua
}

// NewScript returns a script with this Lua body. The body sees its own KEYS and
// ARGV, without the guard's, and may return what any script may return:
//
//	var withdraw = redisfence.NewScript(`
//		local left = tonumber(redis.call('GET', KEYS[1]) or '0') - tonumber(ARGV[1])
//		if left < 0 then return redis.error_reply('POOR not enough') end
//		redis.call('SET', KEYS[1], left)
//		return left`)
//
// A first line that begins with #! (flags of Redis 7) is not possible.
func NewScript(body string) *Script {
	// The body becomes a function, whose KEYS and ARGV hide the guard's.
	text := guard + "return (function(KEYS, ARGV)\n" + body + "\nend)(rest(KEYS), rest(ARGV))"
	// The digest comes from the server: SHA-1 in this process is refused under FIPS.
	return &Script{lua: rueidis.NewLuaScript(text, rueidis.WithLoadSHA1(true))}
}

var (
	checkScript = NewScript(`return 1`)
	setScript   = NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
	hsetScript  = NewScript(`return redis.call('HSET', KEYS[1], unpack(ARGV))`)
)
