package wire_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestAnOldServerIsRefusedByItsVersion(t *testing.T) {
	for version, want := range map[string]string{
		"6.0.16": `server is Redis "6.0.16", and locks need 7.0 or later: upgrade it to Redis 7.0 or later, or to Valkey`,
		"6.2.14": `server is Redis "6.2.14", and locks need 7.0 or later: upgrade it to Redis 7.0 or later, or to Valkey`,
		"7.0.0":  "", "7.2.4": "", "8.0.2": "", "10.1": "", "255.255.255": "", "": "", "unknown": "", "valkey 8.1.0": "",
	} {
		if err := wire.TooOld(version); want != "" {
			assert.EqualError(t, err, want)
		} else {
			assert.NoError(t, err, version)
		}
	}
}
