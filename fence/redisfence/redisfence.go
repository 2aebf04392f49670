// Package redisfence refuses writes of stale lock holders inside the script that
// writes to Redis.
//
// Each fenced resource has a register on the Redis that holds the data: a key
// with the highest token that the resource has seen. One script compares the
// token with the register, raises the register and writes, in one atomic step:
//
//	fences, err := redisfence.New(client)
//	...
//	err = fences.Set(ctx, "report:today", lease.Token(), text)
//	if errors.Is(err, redisfence.ErrStale) {
//		return err // another holder has taken over
//	}
//
// The data need not be on the nodes that grant the leases; a separate Redis is
// better. A register has no end of life. A Redis that evicts keys, or that loses its
// newest writes in a failover, can lose registers and then accepts a stale token.
package redisfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/fence"
)

// DefaultPrefix begins the keys of registers unless WithPrefix says otherwise.
const DefaultPrefix = "fence:"

// MaxPairs is the largest number of fields in one HSet. Lua can pass on no more
// than about 8000 arguments.
const MaxPairs = 3500

// ErrStale means that the resource has seen a larger token. See StaleError.
var ErrStale = fence.ErrStale

// ErrInvalid means that an argument or option cannot be used. See InvalidError.
var ErrInvalid = fence.ErrInvalid

// ErrRegister means that the key of a register holds something other than a token: another
// program has written there.
var ErrRegister = errors.New("redisfence: the register holds no token")

type (
	// StaleError says which write was refused and why. It is ErrStale.
	StaleError = fence.StaleError
	// InvalidError says what cannot be used, and how to fix it. It is ErrInvalid.
	InvalidError = fence.InvalidError
)

// Option configures a Fence.
type Option func(*Fence)

// WithPrefix sets the prefix of the keys of registers. All writers of a resource must use
// the same. It is at least one byte long and has no brace. Default DefaultPrefix.
func WithPrefix(prefix string) Option {
	return func(f *Fence) { f.prefix = prefix }
}

// Fence checks tokens and writes, through one client. It is safe for concurrent
// use, and it does not close the client.
type Fence struct {
	client rueidis.Client
	prefix string
}

// New returns a Fence that writes through client. It sends nothing. It returns an
// *InvalidError for a client of nil or a bad prefix.
func New(client rueidis.Client, opts ...Option) (*Fence, error) {
	f := &Fence{client: client, prefix: DefaultPrefix}
	for _, option := range opts {
		option(f)
	}
	if client == nil {
		return nil, &InvalidError{
			What: "client", Value: "nil", Bound: "a rueidis.Client",
			Fix: "make one with rueidis.NewClient for the Redis that holds the data",
		}
	}
	if f.prefix == "" || strings.ContainsAny(f.prefix, "{}") {
		return nil, &InvalidError{
			What: "prefix", Value: strconv.Quote(f.prefix), Bound: "one byte or more, without braces",
			Fix: "choose another one in WithPrefix",
		}
	}
	return f, nil
}

// RegisterKey returns the key of the register of a resource. It is in the hash
// slot of the key that has the resource's name, so that both can be in one script
// in a Redis Cluster too. (A name that contains "}" but no hash tag is the
// exception: it works on a single Redis only.)
func (f *Fence) RegisterKey(resource string) string {
	if hasTag(resource) {
		return f.prefix + ":" + resource // its own tag decides
	}
	return f.prefix + "{" + resource + "}"
}

// hasTag reports whether Redis Cluster hashes only a part of the key.
func hasTag(key string) bool {
	_, rest, found := strings.Cut(key, "{")
	return found && strings.Index(rest, "}") > 0
}

// Check raises the highest token that resource has seen to token, and returns
// nil. The same token may be shown any number of times. A holder calls it before
// it reads what it is going to change, so that the former holder cannot write in
// between.
//
// It returns a *StaleError when the resource has seen a larger token, an
// *InvalidError for an empty or too long resource and for a token below 1 or
// above fence.MaxToken, ErrRegister when the register's key holds something else,
// and otherwise the error of the client. After an error of the network the
// write may or may not have happened; with the same token it may be tried again.
func (f *Fence) Check(ctx context.Context, resource string, token int64) error {
	_, err := f.Eval(ctx, checkScript, resource, token, nil, nil)
	return err
}

// Set is SET key value with a token; the key is the resource. The key's time to
// live, if it had one, is dropped, as by SET. Its errors are as for Check.
func (f *Fence) Set(ctx context.Context, key string, token int64, value string) error {
	_, err := f.Eval(ctx, setScript, key, token, []string{key}, []string{value})
	return err
}

// HSet is HSET key field value … with a token; the key is the resource. Fields
// and values alternate. Its errors are as for Check, and an *InvalidError for
// no field, a field without a value, and more than MaxPairs fields.
func (f *Fence) HSet(ctx context.Context, key string, token int64, fieldsAndValues ...string) error {
	if n := len(fieldsAndValues); n == 0 || n%2 != 0 || n > 2*MaxPairs {
		return &InvalidError{
			What: "fieldsAndValues", Value: strconv.Itoa(n) + " strings", Bound: fmt.Sprintf("1 to %d pairs", MaxPairs),
			Fix: "pass field, value, field, value …, and many of them in several calls with the same token",
		}
	}
	_, err := f.Eval(ctx, hsetScript, key, token, []string{key}, fieldsAndValues)
	return err
}

// Eval runs a script if the token is not stale, in one atomic step with the
// check, and returns the script's reply. Resource names the register; keys and
// args are KEYS and ARGV of the script. In a Redis Cluster the keys must be in
// the hash slot of the resource.
//
// The register is raised before the script runs, and stays raised when the script
// fails. An error that the script returns or raises is returned as the error of
// the client; its errors are otherwise as for Check. A reply of nil is not an error
// here: ask the message's IsNil.
func (f *Fence) Eval(ctx context.Context, script *Script, resource string, token int64, keys, args []string) (rueidis.RedisMessage, error) {
	if err := fence.Validate(resource, token); err != nil {
		return rueidis.RedisMessage{}, err
	}
	if script == nil {
		return rueidis.RedisMessage{}, &InvalidError{
			What: "script", Value: "nil", Bound: "a script of NewScript", Fix: "make it once, with NewScript",
		}
	}
	allKeys := append([]string{f.RegisterKey(resource)}, keys...)
	allArgs := append([]string{strconv.FormatInt(token, 10)}, args...)
	reply, err := script.lua.Exec(ctx, f.client, allKeys, allArgs).ToMessage()
	if err == nil || rueidis.IsRedisNil(err) {
		return reply, nil
	}
	return rueidis.RedisMessage{}, f.explain(err, resource, token)
}

// explain turns an error reply of the guard into a typed error.
func (f *Fence) explain(err error, resource string, token int64) error {
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		text := refusal.Error()
		if seen, ok := strings.CutPrefix(text, staleReply); ok {
			if n, err := strconv.ParseInt(seen, 10, 64); err == nil {
				return &StaleError{Resource: resource, Token: token, Seen: n}
			}
		}
		if strings.HasPrefix(text, registerReply) {
			return fmt.Errorf("%w: key %q of resource %q: delete it if no program needs it, or choose another prefix in WithPrefix",
				ErrRegister, f.RegisterKey(resource), resource)
		}
	}
	return fmt.Errorf("redisfence: write to %q: %w", resource, err)
}
