package integration

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Another client flushes the scripts in a loop. Each node gets the script again, and no call fails.
func TestALoopOfSCRIPTFLUSHFailsNoCall(t *testing.T) {
	testkit.OnlyAddrs(t, "it floods servers of its own")
	t.Parallel()
	m, servers := testkit.Manager(t, 3, patient()...)
	stop := make(chan struct{})
	var neighbours sync.WaitGroup
	for _, s := range servers {
		neighbours.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.MustDo("SCRIPT", "FLUSH")
				}
			}
		})
	}
	failed := 0
	for i := range 200 {
		l, err := m.TryAcquire(background, fmt.Sprint("free-", i))
		if err != nil {
			failed++
			t.Log(err)
			continue
		}
		assert.NoError(t, l.Renew(background))
		assert.NoError(t, l.Release(background))
	}
	close(stop)
	neighbours.Wait()
	require.Zero(t, failed, "of 200")
	testkit.Eventually(t, "no key is left", func() bool {
		for i := range 200 {
			if testkit.Locks(t, servers, fmt.Sprint("free-", i)) > 0 {
				return false
			}
		}
		return true
	})
}
