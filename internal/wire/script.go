package wire

import _ "embed"

// Apply is the script that runs every operation of the package; its header describes
// keys, arguments and replies.
//
//go:embed apply.lua
var Apply string
