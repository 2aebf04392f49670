package node

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A panic in the goroutine of a dial would end the process.
func TestAPanicOfAUsersFunctionIsAnError(t *testing.T) {
	assert.NotPanics(t, func() {
		value, err := callSafely("AuthCredentialsFn", func() (int, error) { panic("the user's") })
		assert.Zero(t, value)
		assert.EqualError(t, err, "AuthCredentialsFn panicked: the user's")
	})
}
