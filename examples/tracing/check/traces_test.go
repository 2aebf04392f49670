package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// arrived returns the spans that a Collector printed in a run of the example.
func arrived(t *testing.T) []*span {
	t.Helper()
	text, err := os.ReadFile("testdata/collector.txt")
	require.NoError(t, err)
	spans, err := parse(string(text))
	require.NoError(t, err)
	return spans
}

func TestTheOutputOfACollectorIsRead(t *testing.T) {
	spans := arrived(t)
	require.Len(t, spans, 16)
	hold := spans[1]
	assert.Equal(t, "checkout", hold.service)
	assert.Equal(t, "github.com/quorumlock/quorumlock", hold.scope)
	assert.Equal(t, "quorumlock.hold", hold.name)
	assert.Equal(t, "b2ed0b95edc76cd0", hold.id)
	assert.Equal(t, "Unset", hold.status)
	assert.Empty(t, hold.parent)
	assert.Equal(t, []link{{"abec725c37002a9f4254c1cd82492d84", "08bc112bebbe15f8"}}, hold.links)
	assert.Equal(t, 1360006364*time.Nanosecond, hold.length())
	assert.Equal(t, "1795371519873202", hold.attributes["quorumlock.token"])
	verdict, err := judge(spans)
	require.NoError(t, err)
	assert.Contains(t, verdict, "4 acquire, 3 of them linked to holders; 4 hold, 4 release")
}

func TestSpansThatAreNotAsDocumentedFailTheCheck(t *testing.T) {
	for name, spoil := range map[string]func(s *span){
		"no links":             func(s *span) { s.links = nil },
		"links lead elsewhere": func(s *span) { s.links = []link{{s.trace, "0000000000000001"}, {s.trace, s.id}} },
		"a hold is a child":    func(s *span) { s.parent = "0000000000000001" },
		"nobody waited":        func(s *span) { s.attributes["quorumlock.wait.duration"] = "0" },
		"a token of another":   func(s *span) { s.attributes["quorumlock.token"] = s.id },
		"one service":          func(s *span) { s.service = "checkout" },
		"a hold of no length":  func(s *span) { s.end = s.start.Add(-time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			spans := arrived(t)
			for _, s := range spans {
				if s.name == "quorumlock.acquire" && len(s.links) > 0 || s.name == "quorumlock.hold" {
					spoil(s)
				}
			}
			_, err := judge(spans)
			assert.Error(t, err)
		})
	}
	_, err := judge(arrived(t)[:12])
	assert.Error(t, err, "some are missing")
}
