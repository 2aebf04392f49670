package node

import (
	"embed"
)

// The scripts; each file's header tells keys, arguments and replies.
//
//go:embed lua/*.lua
var files embed.FS

// common has the functions that scripts share.
//
//go:embed lua/common.lua
var common string

// scripts holds the source of every operation.
var scripts = func() (sources [kinds]string) {
	for k := range kinds {
		source, err := files.ReadFile("lua/" + k.String() + ".lua")
		if err != nil {
			panic("quorumlock: script missing from the build: " + err.Error())
		}
		if sources[k] = string(source); k == Acquire || k == Extend || k == Raise || k == Release {
			sources[k] = common + sources[k]
		}
	}
	return sources
}()

// Scripts returns the source of every operation by its name, for tests that have to
// know one on the wire by its digest.
func Scripts() map[string]string {
	all := map[string]string{}
	for k, source := range scripts {
		all[Kind(k).String()] = source
	}
	return all
}
