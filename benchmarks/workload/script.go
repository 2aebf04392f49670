//go:build unix

package workload

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// pairsPerCall and extensionsPerCall are how many operations of a kind are in one call of the script. A node puts
	// at most MaxLocks there.
	pairsPerCall      = 32
	extensionsPerCall = wire.MaxLocks
	// callsAtOnce is how many calls are on the wire together, so that the server never
	// waits for the client and wakes up once for several.
	callsAtOnce = 16
)

// The names of the cases of the workload "server" that run the script alone.
var (
	ScriptPairs      = fmt.Sprintf("script alone: acquire and release, %d in a call", pairsPerCall)
	ScriptExtensions = fmt.Sprintf("script alone: extension, %d in a call", extensionsPerCall)
)

// scriptCases are the node's own work: the library's script, pipelined by a client that
// does nothing else.
func scriptCases() []Case {
	own := []string{contest.Fenced, contest.Unfenced}
	return []Case{
		{Name: ScriptPairs, Nodes: 1, Contestants: own, Measure: func(b *Bench) (Values, error) { return b.scripts(pairsPerCall, true) }},
		{Name: ScriptExtensions, Nodes: 1, Contestants: own, Measure: func(b *Bench) (Values, error) { return b.scripts(extensionsPerCall, false) }},
	}
}

// A scriptCaller composes calls of the script as internal/node does; internal/wire/lua/head.lua
// lists its keys and arguments.
type scriptCaller struct {
	client rueidis.Client
	digest string
	fenced bool
	size   int   // operations in a call
	clock  int64 // µs; the next token
}

// scripts measures calls of several operations: pairs, or extensions of locks that are
// held.
func (b *Bench) scripts(size int, pairs bool) (Values, error) {
	c, err := b.newScriptCaller(size)
	if err != nil {
		return nil, err
	}
	defer c.client.Close()
	tokens := make([]string, callsAtOnce)
	if !pairs {
		for i := range tokens {
			var acquire rueidis.Completed
			acquire, tokens[i] = c.acquire(i)
			if err := c.run(b.Context, acquire); err != nil {
				return nil, err
			}
		}
	}
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	operations := 0
	for end := time.Now().Add(b.Duration); time.Now().Before(end); operations += callsAtOnce * size {
		var batch []rueidis.Completed
		for i := range callsAtOnce {
			if !pairs {
				batch = append(batch, c.extend(i, tokens[i]))
				continue
			}
			acquire, _ := c.acquire(i)
			batch = append(batch, acquire, c.release(i))
		}
		if err := c.run(b.Context, batch...); err != nil {
			return nil, err
		}
	}
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	return serverValues(after.since(before), float64(operations)), nil
}

func (b *Bench) newScriptCaller(size int) (*scriptCaller, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.Servers[0].Addr()}, ForceSingleClient: true, DisableCache: true,
	})
	if err != nil {
		return nil, err
	}
	digest, err := client.Do(b.Context, client.B().ScriptLoad().Script(wire.Apply).Build()).ToString()
	if err != nil {
		client.Close()
		return nil, err
	}
	return &scriptCaller{
		client: client, digest: digest, size: size,
		fenced: b.contestant.Name == contest.Fenced, clock: time.Now().UnixMicro(),
	}, nil
}

// run makes calls. Every operation in them must succeed.
func (c *scriptCaller) run(ctx context.Context, batch ...rueidis.Completed) error {
	for _, result := range c.client.DoMulti(ctx, batch...) {
		reply, err := result.ToArray()
		if err != nil {
			return err
		}
		codes, err := reply[1].ToString()
		if err != nil {
			return err
		}
		if codes != strings.Repeat("1", c.size) {
			return fmt.Errorf("the script answers %q", codes)
		}
	}
	return nil
}

func (c *scriptCaller) acquire(call int) (cmd rueidis.Completed, token string) {
	c.clock++
	token = "0"
	if c.fenced {
		token = strconv.FormatInt(c.clock, 10)
	}
	ttl := strconv.FormatInt(time.Hour.Milliseconds(), 10)
	notAfter := strconv.FormatInt(c.clock+time.Hour.Microseconds(), 10)
	return c.call(call, func(owner string) []string {
		return []string{"acquire", owner + token + " 1795344466720373 - host-17:4711", ttl, notAfter, token}
	}), token
}

func (c *scriptCaller) release(call int) rueidis.Completed {
	return c.call(call, func(owner string) []string { return []string{"release", owner} })
}

func (c *scriptCaller) extend(call int, token string) rueidis.Completed {
	return c.call(call, func(owner string) []string { return []string{"extend", owner + token + " ", "10000"} })
}

// call composes one run of the script with the same operation on as many locks as a call
// has.
func (c *scriptCaller) call(call int, operation func(owner string) []string) rueidis.Completed {
	const prefix = "quorumlock:"
	words := c.client.B().Arbitrary("EVALSHA", c.digest, strconv.Itoa(5+c.size),
		wire.RegistersKey(prefix), wire.BaseKey(prefix), wire.HintKey(prefix), wire.GuardKey(prefix), wire.ListsKey(prefix))
	for lock := range c.size {
		words = words.Args(wire.LockKey(prefix, "job/"+strconv.Itoa(call*c.size+lock)))
	}
	ahead := ""
	if c.fenced {
		ahead = strconv.FormatInt(time.Minute.Microseconds(), 10)
	}
	words = words.Args("0", strconv.FormatInt(c.clock, 10), "", wire.WakeChannel(prefix, ""), ahead, "")
	for lock := range c.size {
		words = words.Args(operation(fmt.Sprintf("%032x ", call*c.size+lock))...)
	}
	return words.Build()
}
