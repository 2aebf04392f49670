//go:build unix

package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/fence/redisfence"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an empty Redis, a client of it and a Fence on the client.
type world struct {
	*redisfence.Fence
	server *redistest.Server
	client rueidis.Client
}

// eachProtocol runs test over RESP2 and RESP3.
func eachProtocol(t *testing.T, test func(t *testing.T, w world), opts ...redisfence.Option) {
	server := redistest.Start(t, 1)[0]
	for name, resp2 := range map[string]bool{"RESP2": true, "RESP3": false} {
		t.Run(name, func(t *testing.T) {
			server.MustDo("FLUSHALL")
			client, err := rueidis.NewClient(rueidis.ClientOption{
				InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true, AlwaysRESP2: resp2,
			})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			fence, err := redisfence.New(client, opts...)
			require.NoError(t, err)
			test(t, world{Fence: fence, server: server, client: client})
		})
	}
}

func TestAWriteWithALowerTokenIsRefusedAndOneWithTheSameTokenIsNot(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		ctx := t.Context()
		const token = 1_795_344_466_720_373 // as large as real tokens
		require.NoError(t, w.Set(ctx, "k", token, "a"))
		require.NoError(t, w.Set(ctx, "k", token, "b"), "several writes of one holder")
		require.NoError(t, w.Set(ctx, "k", token+1, "c"))
		assert.Equal(t, strconv.Itoa(token+1), w.server.MustDo("GET", w.RegisterKey("k")), "not 1.7953444667204e+15")

		err := w.Set(ctx, "k", token, "late")
		var stale *redisfence.StaleError
		require.ErrorAs(t, err, &stale)
		require.ErrorIs(t, err, redisfence.ErrStale)
		assert.Equal(t, redisfence.StaleError{Resource: "k", Token: token, Seen: token + 1}, *stale)
		assert.Equal(t, "c", w.server.MustDo("GET", "k"))
		require.NoError(t, w.Set(ctx, "other", 1, "x"), "every resource has a token of its own")
	})
}

func TestNeighboursAtTheLargestTokenAreToldApart(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		const largest = 1<<53 - 1
		require.NoError(t, w.Check(t.Context(), "r", largest-1))
		require.NoError(t, w.Check(t.Context(), "r", largest))
		require.ErrorIs(t, w.Check(t.Context(), "r", largest-1), redisfence.ErrStale)
		require.NoError(t, w.Check(t.Context(), "r", largest))
		require.ErrorIs(t, w.Check(t.Context(), "r", 9), redisfence.ErrStale)
		require.NoError(t, w.Check(t.Context(), "digits", 9))
		require.NoError(t, w.Check(t.Context(), "digits", 10), "numbers are compared, not texts")
		require.ErrorIs(t, w.Check(t.Context(), "digits", 9), redisfence.ErrStale)
	})
}

func TestCheckShowsATokenBeforeTheFirstWrite(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		require.NoError(t, w.Set(t.Context(), "k", 1, "a"))
		require.NoError(t, w.Check(t.Context(), "k", 2))
		require.ErrorIs(t, w.Set(t.Context(), "k", 1, "late"), redisfence.ErrStale)
		assert.Equal(t, "a", w.server.MustDo("GET", "k"))
	})
}

func TestHSetWritesFieldsUnlessTheTokenIsStale(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		ctx := t.Context()
		require.NoError(t, w.HSet(ctx, "h", 2, "f", "1", "g", "2"))
		require.ErrorIs(t, w.HSet(ctx, "h", 1, "f", "late"), redisfence.ErrStale)
		assert.Equal(t, []any{"1", "2"}, w.server.MustDo("HMGET", "h", "f", "g"))

		many := make([]string, 2*redisfence.MaxPairs)
		for i := range many {
			many[i] = strconv.Itoa(i)
		}
		require.NoError(t, w.HSet(ctx, "many", 1, many...))
		for _, wrong := range [][]string{nil, {"f"}, append(many, "f", "g")} {
			require.ErrorIs(t, w.HSet(ctx, "h", 2, wrong...), redisfence.ErrInvalid)
		}
	})
}

var withdraw = redisfence.NewScript(`
	local left = tonumber(redis.call('GET', KEYS[1]) or '0') - tonumber(ARGV[1])
	if left < 0 then return redis.error_reply('POOR not enough') end
	redis.call('SET', KEYS[1], left)
	return left`)

func TestEvalRunsAScriptWithItsOwnKeysAndArguments(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		ctx := t.Context()
		w.server.MustDo("SET", "balance", "10")
		reply, err := w.Eval(ctx, withdraw, "account", 2, []string{"balance"}, []string{"4"})
		require.NoError(t, err)
		left, err := reply.AsInt64()
		require.NoError(t, err)
		assert.EqualValues(t, 6, left)

		_, err = w.Eval(ctx, withdraw, "account", 1, []string{"balance"}, []string{"4"})
		require.ErrorIs(t, err, redisfence.ErrStale)
		_, err = w.Eval(ctx, withdraw, "account", 3, []string{"balance"}, []string{"40"})
		refusal, ok := rueidis.IsRedisErr(errors.Unwrap(err))
		require.True(t, ok, "%v", err)
		assert.Equal(t, "POOR not enough", refusal.Error())
		assert.Equal(t, "6", w.server.MustDo("GET", "balance"))

		reply, err = w.Eval(ctx, redisfence.NewScript(`return #KEYS + 10 * #ARGV`), "account", 3, nil, nil)
		require.NoError(t, err)
		count, err := reply.AsInt64()
		require.NoError(t, err)
		assert.Zero(t, count)
		_, err = w.Eval(ctx, redisfence.NewScript(`return seen`), "account", 3, nil, nil)
		require.ErrorContains(t, err, "nonexistent global variable 'seen'", "the guard's variables are hidden")
		reply, err = w.Eval(ctx, redisfence.NewScript(``), "account", 3, nil, nil)
		require.NoError(t, err)
		assert.True(t, reply.IsNil())
	})
}

func TestAFailedWriteLeavesTheTokenRaised(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		w.server.MustDo("LPUSH", "list", "x")
		err := w.HSet(t.Context(), "list", 5, "f", "1")
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorIs(t, w.Check(t.Context(), "list", 4), redisfence.ErrStale)
	})
}

func TestARegisterThatHoldsSomethingElseIsNamed(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		for _, foreign := range []string{"", "abc", "1e3", "-1", "12 ", "99999999999999999", "0x10"} {
			w.server.MustDo("SET", w.RegisterKey("k"), foreign)
			err := w.Set(t.Context(), "k", 7, "v")
			require.ErrorIs(t, err, redisfence.ErrRegister, foreign)
			require.ErrorContains(t, err, w.RegisterKey("k"))
		}
		w.server.MustDo("DEL", w.RegisterKey("k"))
		w.server.MustDo("LPUSH", w.RegisterKey("k"), "x")
		require.ErrorIs(t, w.Set(t.Context(), "k", 7, "v"), redisfence.ErrRegister)
		assert.Nil(t, w.server.MustDo("GET", "k"))
	}, redisfence.WithPrefix("tokens/"))
}

func TestScriptsAreLoadedAgainAfterTheServerForgotThem(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		require.NoError(t, w.Set(t.Context(), "k", 1, "a"))
		w.server.MustDo("SCRIPT", "FLUSH")
		require.NoError(t, w.Set(t.Context(), "k", 2, "b"))
	})
}

// The largest token wins whatever the order, and the value is the one that it
// wrote.
func TestConcurrentWritesNeverGoBack(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var accepted []int64
		for range 8 {
			wg.Go(func() {
				for range 100 {
					token := 1 + rand.Int64N(1e15)
					err := w.Set(context.Background(), "k", token, strconv.FormatInt(token, 10))
					if errors.Is(err, redisfence.ErrStale) {
						continue
					}
					assert.NoError(t, err)
					mu.Lock()
					accepted = append(accepted, token)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		assert.Equal(t, fmt.Sprint(slices.Max(accepted)), w.server.MustDo("GET", "k"))
	})
}

func TestInAClusterTheRegisterIsInTheSlotOfItsResourceAndNoTwoShareOne(t *testing.T) {
	server := redistest.Start(t, 1, "--cluster-enabled", "yes")[0]
	slot := func(key string) any { return server.MustDo("CLUSTER", "KEYSLOT", key) }
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	fence, err := redisfence.New(client)
	require.NoError(t, err)
	registers := map[string]string{}
	for _, resource := range []string{"k", "{k}", "a{k}b", "{k", "k{}", "{}k", ":k", "::{k}", ":{k}", "a{b}c{d}", "{{k}}"} {
		register := fence.RegisterKey(resource)
		if resource != "k{}" && resource != "{}k" { // "}" without a tag
			assert.Equal(t, slot(resource), slot(register), resource)
		}
		assert.Empty(t, registers[register], resource)
		registers[register] = resource
	}

	server.MustDo("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	require.Eventually(t, func() bool {
		info, err := server.Do("CLUSTER", "INFO")
		return err == nil && strings.Contains(fmt.Sprint(info), "cluster_state:ok")
	}, 30*time.Second, 10*time.Millisecond)
	for _, resource := range []string{"k", "{k}", "a{k}b"} {
		require.NoError(t, fence.Set(t.Context(), resource, 2, "v"))
		require.ErrorIs(t, fence.Set(t.Context(), resource, 1, "late"), redisfence.ErrStale)
	}
	require.ErrorContains(t, fence.Set(t.Context(), "k{}", 1, "v"), "slot", "a name with } and no tag")
}

func TestWhatCannotBeUsedIsRefusedByName(t *testing.T) {
	eachProtocol(t, func(t *testing.T, w world) {
		ctx := t.Context()
		_, evalErr := w.Eval(ctx, nil, "r", 1, nil, nil)
		for what, err := range map[string]error{
			"client nil":                second(redisfence.New(nil)),
			`prefix ""`:                 second(redisfence.New(w.client, redisfence.WithPrefix(""))),
			`prefix "a{b}"`:             second(redisfence.New(w.client, redisfence.WithPrefix("a{b}"))),
			"token 0":                   w.Set(ctx, "k", 0, "v"),
			"token 9007199254740992":    w.Set(ctx, "k", 1<<53, "v"),
			"token 9223372036854775807": w.Check(ctx, "k", math.MaxInt64),
			"token -5":                  w.HSet(ctx, "k", -5, "f", "v"),
			`resource ""`:               w.Set(ctx, "", 1, "v"),
			`resource "xxx`:             w.Set(ctx, strings.Repeat("x", 513), 1, "v"),
			"script nil":                evalErr,
		} {
			require.ErrorIs(t, err, redisfence.ErrInvalid, what)
			assert.Contains(t, err.Error(), what)
		}
		assert.EqualValues(t, 0, w.server.MustDo("DBSIZE"))
	})
}

func second[T any](_ T, err error) error { return err }
