package node

import _ "embed"

// Apply is the script that runs every operation of the package; its header tells keys,
// arguments and replies.
//
//go:embed apply.lua
var Apply string
