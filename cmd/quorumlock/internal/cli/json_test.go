package cli

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

// The command uses the library's names.
func TestTheCommandsJSONAgreesWithThatOfTheLibrary(t *testing.T) {
	holder := quorumlock.Holder{Label: "web-1", Owner: "ab", TraceParent: "00-…", Since: time.Now().Local(), Asked: "ops: deploy", Revoked: "ops: it hangs", Detached: true}
	s := quorumlock.Status{
		Name: "job", Known: true, Held: true, Token: 7, Until: time.Now(), AsOf: time.Now(), Err: assert.AnError, Holder: holder, Votes: 3, Readers: 2, Holders: []quorumlock.Holder{holder}, TTL: 1500 * time.Microsecond, Fence: 7, Waiters: 4,
		Nodes: []quorumlock.NodeStatus{{Addr: "a:6379", Holder: holder, Readers: 2, TTL: time.Second, Fence: 7, QuarantinedFor: time.Second}},
	}
	ours, theirs := keysOf(t, lockJSON(s, 2)), keysOf(t, s)
	node, theirNode := ours["nodes"].([]any)[0].(map[string]any), theirs["nodes"].([]any)[0].(map[string]any)
	delete(ours, "nodes")
	delete(theirs, "nodes")
	for key, value := range theirs {
		assert.Equal(t, value, ours[key], key)
	}
	for key, value := range node {
		assert.Equal(t, theirNode[key], value, key)
	}
}

func keysOf(t *testing.T, v any) (keys map[string]any) {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &keys))
	return keys
}
