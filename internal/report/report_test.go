package report

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A panic in the reporter's goroutine would end the process.
func TestTheReporterSurvivesAPanic(t *testing.T) {
	r := New(slog.New(slog.DiscardHandler))
	for range 2 {
		assert.NotPanics(t, func() { r.call(func() { panic("the user's") }) })
	}
	assert.Equal(t, 2, r.panics)
	assert.Contains(t, r.first, "the user's\n")
}
