//go:build unix

package doctor

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestTheMasterOfASlotIsSoundWithThePrefixOfTheSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	owner, _ := c.Owner(redistest.Slot("{locks}"))
	other := (owner + 1) % 3
	judged := func(server int, prefix string) ([]string, string) {
		n := Probe(t.Context(), options([]string{c.Addrs()[server]}, nil)[0], prefix)
		s := guarded
		s.Prefix = prefix
		r := Judge([]Node{n}, s)
		return found(r), fmt.Sprint(r.Findings)
	}
	findings, text := judged(owner, "{locks}:")
	assert.Empty(t, findings, text)
	broken := []string{"fail no_quorum -1", "fail cluster_mode 0"}
	findings, text = judged(other, "{locks}:")
	assert.Equal(t, broken, findings, text)
	assert.Contains(t, text, "the slot of the prefix belongs to another server of the cluster: MOVED")
	assert.Contains(t, text, c.Addrs()[owner])
	for _, prefix := range []string{"quorumlock:", "locks{}:", "locks{locks}:"} { // all keys of a slot begin with its tag
		findings, text = judged(owner, prefix)
		assert.Equal(t, broken, findings, text)
		assert.Contains(t, text, "quorumlock doctor --nodes MASTER --prefix '{TAG}:'", "doctor itself refuses slot:{TAG}@NODES")
	}
	findings, text = judged(owner+3, "{locks}:")
	assert.Equal(t, []string{"fail no_quorum -1", "fail replica 0"}, findings, text)
}
