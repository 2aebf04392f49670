package wire

import _ "embed"

// Lean is the script for a lone operation: an acquire without a ticket, or a release; lua/lean.lua says what it does, and
// vote.Look which of its locks are votes.
//
//go:embed lua/lean.lua
var Lean string
