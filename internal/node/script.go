package node

import (
	"embed"
)

// The scripts; each file's header tells keys, arguments and replies.
//
//go:embed lua/*.lua
var files embed.FS

// scripts holds the source of every operation.
var scripts = func() (sources [kinds]string) {
	for k := range kinds {
		source, err := files.ReadFile("lua/" + k.String() + ".lua")
		if err != nil {
			panic("quorumlock: script missing from the build: " + err.Error())
		}
		sources[k] = string(source)
	}
	return sources
}()
