package otel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
)

// Otherwise the last of them would hide the others.
func TestEachNodeHasASeriesOfItsOwn(t *testing.T) {
	seen := map[attribute.Distinct]string{}
	for _, addr := range []string{
		"redis-a:6379", "redis-a:6380", "redis-b:6379", "[::1]:6379", "/run/redis.sock", "slot:{qlb0}", "slot:{qlb1}", "sentinel:one", "sentinel:two",
	} {
		set := attribute.NewSet(addressOf(addr)...)
		assert.Empty(t, seen[set.Equivalent()], addr)
		seen[set.Equivalent()] = addr
	}
	host := addressOf("redis-a:6379")
	assert.Equal(t, []attribute.KeyValue{attrAddress.String("redis-a"), attrPort.Int(6379)}, host)
}
