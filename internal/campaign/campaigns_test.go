package campaign

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A campaign comes to a queue of its process while a node's messages begin. It must not miss both the
// node and the news of it: otherwise it would poll the node.
func TestACampaignThatComesWhileANodeIsSubscribedKnowsTheNode(t *testing.T) {
	s := idle(3)
	s.contended.Store(true)
	asked := false
	s.Subscribed(1, func() []*Campaign {
		asked = true
		assert.True(t, begin(s, &caller{}).waiter(0, false).Subscribed.Has(1))
		return nil
	})
	assert.True(t, asked)
}
