package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// counterScript puts a number before the numbers in the key, and returns those. It is a script, like every write of a
// lock, and needs no right that locks do not need. It keeps a list and not only the last number: a number that was
// written without an answer would otherwise hide earlier losses.
const counterScript = `local before = redis.call('GETRANGE', KEYS[1], 0, 799)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. before, 'PX', ARGV[2])
return before`

// dial makes a connection and loads the script.
func (p *failoverProbe) dial() (*connection, error) {
	client, err := rueidis.NewClient(p.option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, err
	}
	p.mu.Lock()
	p.conns++
	c := &connection{client: client, number: p.conns}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	c.script, err = client.Do(ctx, client.B().Arbitrary("SCRIPT", "LOAD", counterScript).Build()).ToString()
	if err != nil {
		p.close(c)
		return nil, err
	}
	return c, nil
}

// close closes a connection without delaying the caller, since rueidis waits for a server that hangs.
func (p *failoverProbe) close(c *connection) { p.closer.Go(c.client.Close) }

// write writes the next number and reads INFO. It reports whether a master accepted the
// number, and whether the connection is still up.
func (p *failoverProbe) write(c *connection, held bool) (accepted, alive bool, err error) {
	p.mu.Lock()
	p.number++
	s := Sample{Conn: c.number, Held: held, Number: p.number, Sent: time.Since(p.begun)}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	results := c.client.DoMulti(ctx,
		c.client.B().Arbitrary("EVALSHA", c.script, "1", p.key, strconv.Itoa(s.Number), p.ttl).Build(),
		c.client.B().Info().Section("server").Build(), c.client.B().Info().Section("replication").Build())
	before, err := results[0].ToString()
	s.Server = serverOf(results[1:], c.server)
	if err == nil {
		if numbers := numbersOf(before); len(numbers) == 0 || numbers[0] != c.last {
			s.Before = numbers
		}
		c.last = s.Number
	}
	accepted = err == nil && s.Server.Role != "slave"
	p.record(s, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.server, c.wrote = s.Server, c.wrote || err == nil
	if !held {
		if p.writesTo = nil; accepted {
			p.writesTo = &s.Server
		}
	}
	return accepted, err == nil || answered(err), err
}

// ask reads INFO.
func (p *failoverProbe) ask(c *connection) (Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	results := c.client.DoMulti(ctx, c.client.B().Info().Section("server").Build(), c.client.B().Info().Section("replication").Build())
	return serverOf(results, Server{}), results[0].Error()
}

// serverOf reads INFO server and INFO replication. Unchanged values share their memory with before: thousands of
// samples are kept.
func serverOf(results []rueidis.RedisResult, before Server) Server {
	var n Node
	for _, r := range results {
		if text, err := r.ToString(); err == nil {
			n.readInfo(text)
		}
	}
	if s := (Server{RunID: n.RunID, ReplID: n.ReplID, Role: n.Role}); s != before {
		return Server{RunID: strings.Clone(s.RunID), ReplID: strings.Clone(s.ReplID), Role: strings.Clone(s.Role)}
	}
	return before
}

// numbersOf reads the numbers that a server knew, the newest first.
func numbersOf(text string) []int {
	numbers := []int{}
	for field := range strings.FieldsSeq(text) {
		if len(numbers) == historyLen {
			break // the last number of the text may be cut
		}
		numbers = append(numbers, number(field))
	}
	return numbers
}

// outcome converts the error of a write.
func outcome(err error) (Write, string) {
	var network net.Error
	switch {
	case err == nil:
		return WriteAccepted, ""
	case answered(err):
		return WriteRefused, refusal(err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return WriteSilent, ""
	}
	return WriteBroken, ""
}

// refusal returns the word for a server's error. Before Redis 7 an error inside a script does not begin with that word.
func refusal(text string) string {
	for _, word := range []string{"READONLY", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "MISCONF", "OOM"} {
		if strings.Contains(text, word) {
			return word
		}
	}
	word, _, _ := strings.Cut(text, " ")
	return word
}
