package wire_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestADeadlineOfOursIsNotTheCallers(t *testing.T) {
	ours := fmt.Errorf("ask the Sentinel: %w", context.DeadlineExceeded)
	assert.NotErrorIs(t, wire.Opaque(ours), context.DeadlineExceeded)
	assert.EqualError(t, wire.Opaque(ours), ours.Error())
	other := errors.New("connection refused")
	assert.Same(t, other, wire.Opaque(other))
}

func TestAServerThatCannotRunTheScriptsIsAnErrorThatSaysSo(t *testing.T) {
	for text, fix := range map[string]string{
		"unknown command 'SCRIPT', with args beginning with: 'LOAD' 'x' ":                                         "use a server that runs Lua scripts",
		"unknown command `evalsha`, with args beginning with: `x`":                                                "use a server that runs Lua scripts",
		"This instance has Lua scripting support disabled":                                                        "use a server that runs Lua scripts", // of Garnet
		"unknown command 'HELLO', with args beginning with: 'script' ":                                            "do not rename commands",
		"Unknown command called from script script: on @user_script:43.":                                          "do not rename commands", // of Valkey
		"Error running script (call to 5c4d): @user_script:2: script tried accessing undeclared key, key: quorum": "report this",
	} {
		var config *wire.ConfigError
		status, err := wire.Classify(wire.OperationError(text))
		assert.Equal(t, wire.Misconfigured, status)
		assert.ErrorAs(t, err, &config)
		assert.Contains(t, config.Fix, fix, text)
	}
}

func TestARightThatTheServerNamesIsInTheFix(t *testing.T) {
	for text, right := range map[string]string{
		"NOPERM this user has no permissions to run the 'time' command":                       "+time,",          // Redis 7.0
		"NOPERM User u has no permissions to run the 'cluster|nodes' command":                 "+cluster|nodes,", // 7.2 and later
		"ACL failure in script: User u has no permissions to run the 'pubsub|numsub' command": "+pubsub|numsub,", // in a script
	} {
		var config *wire.ConfigError
		_, err := wire.Classify(wire.OperationError(text))
		assert.ErrorAs(t, err, &config)
		assert.Contains(t, config.Fix, right, text)
	}
}
