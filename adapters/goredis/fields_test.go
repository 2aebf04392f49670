package goredis_test

import (
	"context"
	"net"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/goredis"
)

// fixed is a provider of credentials that never change.
type fixed struct{}

func (fixed) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return auth.NewBasicCredentials("a", "b"), func() error { return nil }, nil
}

type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}

// decisions returns the decision of the package's documentation for each field.
func decisions(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	all := map[string]string{}
	for _, block := range regexp.MustCompile(`(?m)^//\t(used|refused|without effect): ((?:.*\n//\t {6})*.*)$`).FindAllStringSubmatch(string(page), -1) {
		for _, field := range regexp.MustCompile(`\w+`).FindAllString(block[2], -1) {
			assert.Empty(t, all[field], "%s stands twice", field)
			all[field] = block[1]
		}
	}
	require.NotEmpty(t, all)
	return all
}

// kind is one of the functions, with options that a node can be made of.
type kind struct {
	options any // a pointer
	node    func(options any) (rueidis.ClientOption, error)
}

func kinds() map[string]kind {
	return map[string]kind{
		"Nodes": {
			&redis.Options{Addr: "a:1", Username: "u", Password: "p"},
			func(o any) (rueidis.ClientOption, error) {
				nodes, err := goredis.Nodes(o.(*redis.Options))
				if err != nil {
					return rueidis.ClientOption{}, err
				}
				return nodes[0], nil
			},
		},
		"Sentinel": {
			&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"a:1"}, Username: "u", Password: "p", SentinelUsername: "v", SentinelPassword: "q"},
			func(o any) (rueidis.ClientOption, error) { return goredis.Sentinel(o.(*redis.FailoverOptions)) },
		},
		"ClusterSlot": {
			&redis.ClusterOptions{Addrs: []string{"a:1"}, Username: "u", Password: "p"},
			func(o any) (rueidis.ClientOption, error) {
				return goredis.ClusterSlot("{locks}", o.(*redis.ClusterOptions))
			},
		},
		"Cluster": {
			&redis.ClusterOptions{Addrs: []string{"a:1"}, Username: "u", Password: "p"},
			func(o any) (rueidis.ClientOption, error) { return goredis.Cluster(o.(*redis.ClusterOptions)) },
		},
	}
}

// other returns a value that a field does not have.
func other(t *testing.T, name string, of reflect.Type) reflect.Value {
	t.Helper()
	switch {
	case name == "Addr":
		return reflect.ValueOf("/run/redis.sock")
	case name == "Network":
		return reflect.ValueOf("unix") // a:1 is not a socket, so it is refused: used
	case name == "StreamingCredentialsProvider":
		return reflect.ValueOf(fixed{})
	case name == "Limiter":
		return reflect.ValueOf(limiter{})
	case of.Kind() == reflect.Func:
		return reflect.MakeFunc(of, func([]reflect.Value) []reflect.Value { panic("no one calls it") })
	case of.Kind() == reflect.Pointer:
		return reflect.New(of.Elem())
	case of == reflect.TypeFor[[]string]():
		return reflect.ValueOf([]string{"b:2"})
	case of.Kind() == reflect.String:
		return reflect.ValueOf("other")
	case of.Kind() == reflect.Bool:
		return reflect.ValueOf(true)
	case of.Kind() == reflect.Int, of.Kind() == reflect.Int64:
		return reflect.ValueOf(2).Convert(of)
	}
	return reflect.Value{} // an interface: no value of it changes anything, because nothing reads it
}

// readable returns an option as a map, in which a function is only present or absent.
func readable(o rueidis.ClientOption) map[string]any {
	fields := map[string]any{}
	for i := range reflect.TypeOf(o).NumField() {
		field, value := reflect.TypeOf(o).Field(i), reflect.ValueOf(o).Field(i)
		if field.Type.Kind() == reflect.Func {
			fields[field.Name] = !value.IsNil()
		} else {
			fields[field.Name] = value.Interface()
		}
	}
	return fields
}

// A new field of go-redis fails here, until doc.go says what happens to it.
func TestEachFieldOfGoRedisIsUsedRefusedOrWithoutEffectAsTheDocumentationSays(t *testing.T) {
	decided := decisions(t)
	seen := map[string]bool{}
	for name, k := range kinds() {
		before, err := k.node(k.options)
		require.NoError(t, err)
		for i := range reflect.TypeOf(k.options).Elem().NumField() {
			field := reflect.TypeOf(k.options).Elem().Field(i)
			if !field.IsExported() {
				assert.Equal(t, "readOnly", field.Name, "%s has a new field that only go-redis sets", name) // of its own clients of cluster nodes
				continue
			}
			seen[field.Name] = true
			changed := reflect.New(reflect.TypeOf(k.options).Elem())
			changed.Elem().Set(reflect.ValueOf(k.options).Elem())
			if value := other(t, field.Name, field.Type); value.IsValid() {
				changed.Elem().Field(i).Set(value)
			} else if decided[field.Name] != "without effect" {
				t.Errorf("%s.%s: no value of its type is known here", name, field.Name)
			}
			after, err := k.node(changed.Interface())
			var invalid *quorumlock.InvalidError
			switch decided[field.Name] {
			case "used":
				if field.Name == "Network" {
					require.ErrorIs(t, err, quorumlock.ErrInvalid)
					continue
				}
				require.NoError(t, err, field.Name)
				assert.NotEqual(t, readable(before), readable(after), "%s.%s has no effect", name, field.Name)
			case "refused":
				require.ErrorAs(t, err, &invalid, "%s.%s", name, field.Name)
				require.ErrorIs(t, err, quorumlock.ErrInvalid)
				of := reflect.TypeOf(k.options).Elem().Name()
				assert.True(t, strings.HasSuffix(invalid.What, of+"."+field.Name), "%s: %s: %v", name, field.Name, err)
				assert.NotEmpty(t, invalid.Fix)
			case "without effect":
				require.NoError(t, err, "%s.%s", name, field.Name)
				assert.Equal(t, readable(before), readable(after), "%s.%s has an effect", name, field.Name)
			default:
				t.Errorf("%s.%s is new: decide what happens to it, and write it into doc.go", name, field.Name)
			}
		}
	}
	for field := range decided {
		assert.True(t, seen[field], "%s is in doc.go, and no option has it", field)
	}
}

func TestOptionsThatAreNoServerAreRefusedByName(t *testing.T) {
	nodes := func(o *redis.Options) func() error {
		return func() error { _, err := goredis.Nodes(&redis.Options{}, o); return err }
	}
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	defer func() { require.NoError(t, failover.Close()) }()
	for want, call := range map[string]func() error{
		"node 1: redis.Options nil":                 nodes(nil),
		"node 1: redis.Options.Addr FailoverClient": nodes(failover.Options()),
		"node 1: redis.Options.Network tcp4":        nodes(&redis.Options{Network: "tcp4", Addr: "a:1"}),
		"node 1: redis.Options.Addr redis.sock":     nodes(&redis.Options{Network: "unix", Addr: "redis.sock"}),
		"node 1: redis.Options.Protocol 4":          nodes(&redis.Options{Protocol: 4}),
		"redis.FailoverOptions nil":                 func() error { _, err := goredis.Sentinel(nil); return err },
		"redis.ClusterOptions nil":                  func() error { _, err := goredis.ClusterSlot("{a}", nil); return err },
		"redis.FailoverOptions.RouteByLatency":      func() error { _, err := goredis.Sentinel(&redis.FailoverOptions{RouteByLatency: true}); return err },
		"redis.ClusterOptions.RouteByLatency: cannot": func() error {
			_, err := goredis.ClusterSlot("{a}", &redis.ClusterOptions{RouteByLatency: true})
			return err
		},
	} {
		err := call()
		require.ErrorIs(t, err, quorumlock.ErrInvalid, want)
		assert.Contains(t, err.Error(), want)
	}
}

func TestDefaultsAreThoseOfGoRedis(t *testing.T) {
	nodes, err := goredis.Nodes(&redis.Options{Username: "without a password", DB: -1, Protocol: 1})
	require.NoError(t, err)
	assert.Equal(t, []string{"localhost:6379"}, nodes[0].InitAddress)
	assert.Empty(t, nodes[0].Username, "go-redis does not log in")
	assert.Zero(t, nodes[0].SelectDB)
	assert.False(t, nodes[0].AlwaysRESP2)
	nodes, err = goredis.Nodes(&redis.Options{Addr: "/run/redis.sock"}, &redis.Options{Protocol: 2, DialTimeout: 80 * time.Millisecond})
	require.NoError(t, err)
	assert.Equal(t, []string{"/run/redis.sock"}, nodes[0].InitAddress)
	assert.True(t, nodes[1].AlwaysRESP2)
	assert.Equal(t, 80*time.Millisecond, nodes[1].Dialer.Timeout)
}

func TestTheFirstSourceOfCredentialsIsThatOfGoRedis(t *testing.T) {
	given := func(o *redis.Options) rueidis.AuthCredentials {
		o.Password = "fixed"
		nodes, err := goredis.Nodes(o)
		require.NoError(t, err)
		got, err := nodes[0].AuthCredentialsFn(rueidis.AuthCredentialsContext{})
		require.NoError(t, err)
		return got
	}
	plain := func() (string, string) { return "plain", "p" }
	withContext := func(ctx context.Context) (string, string, error) {
		deadline, ok := ctx.Deadline()
		assert.True(t, ok)
		assert.LessOrEqual(t, time.Until(deadline), time.Second, "DialTimeout bounds it")
		return "with context", "p", nil
	}
	assert.Equal(t, "plain", given(&redis.Options{CredentialsProvider: plain}).Username)
	both := given(&redis.Options{CredentialsProvider: plain, CredentialsProviderContext: withContext, DialTimeout: time.Second})
	assert.Equal(t, "with context", both.Username)
	assert.Empty(t, given(&redis.Options{CredentialsProvider: func() (string, string) { return "no one", "" }}).Username)
}

func TestADialerGetsTheNetworkAndDecidesAboutTLS(t *testing.T) {
	for addr, network := range map[string]string{"a:1": "tcp", "/run/redis.sock": "unix"} {
		nodes, err := goredis.Nodes(&redis.Options{Addr: addr, Dialer: func(_ context.Context, gotNetwork, gotAddr string) (net.Conn, error) {
			assert.Equal(t, network, gotNetwork)
			assert.Equal(t, addr, gotAddr)
			return nil, context.Canceled
		}})
		require.NoError(t, err)
		_, err = nodes[0].DialCtxFn(t.Context(), addr, nil, nil)
		require.ErrorIs(t, err, context.Canceled)
	}
}
