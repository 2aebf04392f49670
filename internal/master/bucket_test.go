package master

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Two clients that put a name into different buckets would both get it. So neither the hash nor a tag may ever change.
func TestTheBucketOfANameNeverChanges(t *testing.T) {
	slotsOfBuckets := [Buckets]int{464, 1467, 2507, 3687, 4593, 5546, 6634, 7750, 8627, 9721, 10633, 11828, 12690, 13784, 14760, 15893} // by CLUSTER KEYSLOT
	for b, slot := range slotsOfBuckets {
		assert.Equal(t, slot, Slot(BucketTag(b)), BucketTag(b))
		assert.InDelta(t, 1024*b+512, slot, 128, "%s: masters with equal ranges of slots have equal numbers of buckets", BucketTag(b))
		assert.Len(t, BucketTag(b), len(BucketTag(0)), "the keys of all buckets have prefixes of one length")
		assert.True(t, IsBucket(BucketTag(b)))
	}
	assert.False(t, IsBucket("{locks}"))
	for name, slot := range map[string]int{ // by CLUSTER KEYSLOT
		"123456789": 12739, "": 0, "foo": 12182, "{user1000}.following": 3443, "{user1000}.followers": 3443,
		"foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "foo{bar}{zap}": 5061, "{": 4092, "日本": 10949,
	} {
		assert.Equal(t, slot/1024, Bucket(name), name)
	}
}

func TestNamesSpreadEvenlyOverTheBuckets(t *testing.T) {
	for _, format := range []string{"job/%d", "orders/%05d/invoice", "%x", "tenant-%d"} {
		const names = 10_000
		var counts [Buckets]int
		for i := range names {
			counts[Bucket(fmt.Sprintf(format, i*7919))]++
		}
		for b, n := range counts {
			assert.InDelta(t, names/Buckets, n, .2*names/Buckets, "%s in bucket %d", format, b)
		}
	}
}
