package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
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
	provider *provider
	runs     int // of pay; guarded by payments.mu
}

// inBubble runs a test of a bank, in which a payment takes a second.
func inBubble(t *testing.T, test func(t *testing.T, b *bank)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bank{cluster: quorumlocktest.Start(t, 3), payments: &payments{}, provider: &provider{takes: time.Second}}
		b.pay = func(ctx context.Context, key string) error {
			b.mu.Lock()
			b.runs++
			b.mu.Unlock()
			return b.provider.pay(ctx, key)
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
		b.pay = func(context.Context, string) error { <-release; return nil }
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
		b.pay = func(ctx context.Context, _ string) error {
			assert.Positive(t, token(ctx))
			b.cluster.Partition("0")
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), quorumlock.ErrLost)
			return context.Cause(ctx)
		}
		w := b.post(t.Context(), 0, "4711")
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Empty(t, b.keys["4711"].answer)
		b.cluster.Rejoin("0")
	})
}

// The handler on host 0 stalls for 30 s, and its lease ends. The request on host 1 begins before
// the late handler answers, and has not paid by then.
func TestAStalledHandlerNeitherPaysTwiceNorAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		pay := b.pay
		var stalled atomic.Bool
		b.pay = func(ctx context.Context, key string) error {
			if stalled.CompareAndSwap(false, true) {
				b.cluster.Partition("0")
				time.Sleep(29 * time.Second) // pay takes another second
				ctx = context.WithoutCancel(ctx)
			}
			return pay(ctx, key)
		}
		begun := time.Now()
		late := make(chan *httptest.ResponseRecorder, 1)
		go func() { late <- b.post(t.Context(), 0, "4711") }()
		time.Sleep(29500 * time.Millisecond)
		next := make(chan *httptest.ResponseRecorder, 1)
		go func() { next <- b.post(t.Context(), 1, "4711") }()
		w := <-late
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Contains(t, w.Body.String(), errStale.Error())
		assert.Less(t, time.Since(begun), 30400*time.Millisecond, "before the next request has paid")
		w = <-next
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, "paid\n", w.Body.String())
		b.cluster.Rejoin("0")
		assert.Equal(t, http.StatusOK, b.post(t.Context(), 1, "4711").Code)
		assert.Equal(t, 2, b.runs)
		assert.Equal(t, 1, b.provider.made)
	})
}

func TestTheStoreRefusesALowerTokenAndNone(t *testing.T) {
	p := &payments{}
	_, err := p.begin("4711", 8)
	require.NoError(t, err)
	require.ErrorIs(t, p.store("4711", "paid by the earlier", 7), errStale)
	require.NoError(t, p.store("4711", "paid by the later", 8))
	_, err = p.begin("4711", 7)
	require.ErrorIs(t, err, errStale)
	answer, err := p.begin("4711", 9)
	require.NoError(t, err)
	assert.Equal(t, "paid by the later", answer)
	require.ErrorIs(t, p.store("4711", "paid by the later", 8), errStale)
	_, err = p.begin("4712", 0)
	require.ErrorIs(t, err, errStale)
}

func TestTheLockIsFreeAfterAClientHasGoneOrTheHandlerPanicked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		assert.Equal(t, http.StatusServiceUnavailable, b.post(ctx, 0, "4711").Code)
		pay := b.pay
		b.pay = func(context.Context, string) error { panic(http.ErrAbortHandler) }
		assert.PanicsWithValue(t, http.ErrAbortHandler, func() { b.post(t.Context(), 0, "4711") })
		b.pay = pay
		begun := time.Now()
		assert.Equal(t, http.StatusOK, b.post(t.Context(), 1, "4711").Code)
		assert.Less(t, time.Since(begun), 1500*time.Millisecond)
	})
}

func TestAKeyThatCannotBeUsedIsABadRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		for key, want := range map[string]string{
			"": "is missing", strings.Repeat("x", 504): "is longer than 503 bytes", "\xff": "is not UTF-8",
		} {
			w := b.post(t.Context(), 0, key)
			assert.Equal(t, http.StatusBadRequest, w.Code, "%q", key)
			assert.Equal(t, "the key "+want+"\n", w.Body.String())
		}
		assert.Equal(t, http.StatusOK, b.post(t.Context(), 0, strings.Repeat("x", 503)).Code)
	})
}

func TestAnInvalidSettingIsAnErrorOfTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bank) {
		one := onePerKey{manager: b.cluster.Manager(t), wait: -time.Second, key: func(*http.Request) string { return "4711" }}
		w := httptest.NewRecorder()
		one.wrap(b.payments).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", http.NoBody))
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		assert.Zero(t, b.runs)
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
