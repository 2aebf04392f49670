package wire

import _ "embed"

// Lean is the script for a lone operation: an acquire without a ticket, or a release; lua/lean.lua describes it, and
// vote.Look decides which of its locks are votes.
//
//go:embed lua/lean.lua
var Lean string
