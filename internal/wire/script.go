package wire

import _ "embed"

// The parts of the script. The header of each describes what it decides, and which keys it reads
// and writes.
var (
	//go:embed lua/head.lua
	luaHead string
	//go:embed lua/acquire.lua
	luaAcquire string
	//go:embed lua/queue.lua
	luaQueue string
	//go:embed lua/registers.lua
	luaRegisters string
	//go:embed lua/mark.lua
	luaMark string
	//go:embed lua/shared.lua
	luaShared string
	//go:embed lua/permits.lua
	luaPermits string
	//go:embed lua/guard.lua
	luaGuard string
	//go:embed lua/lists.lua
	luaLists string
	//go:embed lua/names.lua
	luaNames string
	//go:embed lua/errors.lua
	luaErrors string
	//go:embed lua/run.lua
	luaRun string
)

// Apply is the script that runs every operation; lua/head.lua describes its keys, arguments
// and replies. The functions for rare cases, for readers and for permits are made when a call first
// needs one, because most calls need none.
var Apply = luaHead + `
local shared, permits, wanted
local f -- the functions for rare cases
local function rare()
if f then
  return f
end
f = {}

` + luaAcquire + "\n" + luaQueue + "\n" + luaRegisters + "\n" + luaMark + "\n" + luaGuard + "\n" + luaLists + "\n" + luaNames + "\n" + luaErrors + `
return f
end

` + luaShared + "\n" + luaPermits + "\n" + luaRun
