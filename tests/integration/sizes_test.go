package integration

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// docs/reference.md gives these bounds to operators. Names and the label have 24 bytes.
func TestALockAndANameTakeTheMemoryOfAServerThatTheReferenceSays(t *testing.T) {
	t.Parallel()
	const names, callers = 20_000, 50
	m, servers := testkit.Manager(t, 1, quorumlock.WithHolder("orders-worker-7f9c4d-x2v"))
	memory := func() int64 { return servers[0].Info("memory", "used_memory") } // all that it has allocated
	before := memory()
	all := make([]*quorumlock.Lease, names)
	each := func(do func(i int) error) {
		var group sync.WaitGroup
		for c := range callers {
			group.Go(func() {
				for i := c; i < names; i += callers {
					if err := do(i); !assert.NoError(t, err) {
						return
					}
				}
			})
		}
		group.Wait()
	}
	each(func(i int) (err error) {
		all[i], err = m.TryAcquire(t.Context(), fmt.Sprintf("orders/customer/%08d", i))
		return err
	})
	require.False(t, t.Failed())
	held := (memory() - before) / names
	each(func(i int) error { return all[i].Release(t.Context()) })
	free := (memory() - before) / names
	t.Logf("a lease that is held %d B, a name in the 24 h after it %d B", held, free)
	assert.Less(t, held, int64(600))
	assert.Less(t, free, int64(250))
}
