package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bank is a payment service of two hosts with one database.
type bank struct {
	cluster *quorumlocktest.Cluster
	hosts   [2]http.Handler
	*payments
	runs int // of pay; guarded by payments.mu
}

// inBubble runs a test of a bank, in which a payment takes a second.
func inBubble(t *testing.T, test func(t *testing.T, b *bank)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bank{cluster: quorumlocktest.Start(t, 3), payments: &payments{}}
		b.pay = func(ctx context.Context) error {
			b.mu.Lock()
			b.runs++
			b.mu.Unlock()
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		for i := range b.hosts {
			m := b.cluster.ManagerFor(t, fmt.Sprint(i))
			b.hosts[i] = service(m, b.payments)
		}
		test(t, b)
	})
}

func (b *bank) post(ctx context.Context, host int, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", http.NoBody)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	b.hosts[host].ServeHTTP(w, r)
	return w
}

func TestARepeatedRequestWaitsAndGetsTheAnswerOfTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		var wg sync.WaitGroup
		for host := range b.hosts {
			wg.Go(func() {
				w := b.post(t.Context(), host, "4711")
				assert.Equal(t, http.StatusOK, w.Code)
				assert.Equal(t, "paid\n", w.Body.String())
			})
		}
		wg.Wait()
		assert.Equal(t, 1, b.runs)
	})
}

func TestOtherKeysDoNotWait(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { assert.Equal(t, http.StatusOK, b.post(t.Context(), i%2, fmt.Sprint(i)).Code) })
		}
		wg.Wait()
		assert.Less(t, time.Since(begun), 1100*time.Millisecond)
		assert.Equal(t, 10, b.runs)
	})
}

func TestARequestThatHasWaitedLongEnoughIsAConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		release := make(chan struct{})
		b.pay = func(context.Context) error { <-release; return nil }
		first := make(chan int)
		go func() { first <- b.post(t.Context(), 0, "4711").Code }()
		synctest.Wait()
		begun := time.Now()
		w := b.post(t.Context(), 1, "4711")
		assert.Equal(t, http.StatusConflict, w.Code)
		assert.Equal(t, "1", w.Header().Get("Retry-After"))
		assert.InDelta(t, 2, time.Since(begun).Seconds(), 0.1)
		close(release)
		assert.Equal(t, http.StatusOK, <-first)
	})
}

func TestALostLeaseEndsTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		b.pay = func(ctx context.Context) error {
			assert.Positive(t, token(ctx))
			b.cluster.Partition("0")
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), quorumlock.ErrLost)
			return context.Cause(ctx)
		}
		w := b.post(t.Context(), 0, "4711")
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Empty(t, b.answers)
		b.cluster.Rejoin("0")
	})
}

func TestALateWriteOfAnEarlierRequestIsRefused(t *testing.T) {
	p := &payments{}
	require.NoError(t, p.store("4711", "paid by the later", 8))
	require.Error(t, p.store("4711", "paid by the earlier", 7))
	assert.Equal(t, "paid by the later", p.answers["4711"])
}

func TestTheLockIsFreeAfterAClientHasGoneOrTheHandlerPanicked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		assert.Equal(t, http.StatusServiceUnavailable, b.post(ctx, 0, "4711").Code)
		pay := b.pay
		b.pay = func(context.Context) error { panic(http.ErrAbortHandler) }
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() { b.post(t.Context(), 0, "4711") })
		b.pay = pay
		begun := time.Now()
		assert.Equal(t, http.StatusOK, b.post(t.Context(), 1, "4711").Code)
		assert.Less(t, time.Since(begun), 1500*time.Millisecond)
	})
}

func TestAKeyThatCannotBeUsedIsABadRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		for _, key := range []string{"", strings.Repeat("x", 600), "\xff"} {
			assert.Equal(t, http.StatusBadRequest, b.post(t.Context(), 0, key).Code, "%q", key)
		}
	})
}

func TestWithoutAQuorumTheServiceIsUnavailable(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		b.cluster.Kill(0, 1)
		w := b.post(t.Context(), 0, "4711")
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Equal(t, "2", w.Header().Get("Retry-After"))
		b.cluster.Restart(0, 1)
	})
}

func TestTheServerStopsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "", listener) }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String()+"/payments", http.NoBody)
	require.NoError(t, err)
	r.Close = true
	r.Header.Set("Idempotency-Key", "4711")
	w, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, w.Body.Close())
	assert.Equal(t, http.StatusOK, w.StatusCode)
	cancel()
	require.NoError(t, <-ended)
}
