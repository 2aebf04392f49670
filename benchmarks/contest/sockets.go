package contest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

// unlockScript is the compare-and-delete of the Redlock paper.
const unlockScript = `if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("DEL",KEYS[1]) end return 0`

const (
	ownerBytes     = 16
	socketBuffer   = 64 << 10
	socketDeadline = time.Minute
	// crowdParts is the number of parts of a crowd in Saturate: while the servers work for one part, the client works
	// for another.
	crowdParts = 2
)

// socketsClient is the limit: it writes to all nodes, reads from all nodes, and
// does nothing else. It waits for no lock and serves one caller.
type socketsClient struct {
	addrs    []string
	settings Settings
	line     *socketLine
}

func connectSockets(ctx context.Context, addrs []string, s Settings) (Client, error) {
	line, err := dialLine(ctx, addrs, s)
	if err != nil {
		return nil, err
	}
	return &socketsClient{addrs: addrs, settings: s, line: line}, nil
}

var errSocketsHeld = errors.New("raw sockets: no quorum has granted the lock")

// Lock implements Client for one caller at a time.
func (c *socketsClient) Lock(_ context.Context, name string) (Held, error) {
	won, err := c.line.lock([]string{name})
	if err == nil && won != 1 {
		err = errSocketsHeld
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Release implements Held: it releases what Lock has acquired last.
func (c *socketsClient) Release(context.Context) error { return c.line.unlock() }

// Saturate implements Saturator. Each part of the crowd acts in step over
// connections of its own: one write for all its callers to each node.
func (c *socketsClient) Saturate(ctx context.Context, names []string, add func(pairs int64)) error {
	errs := make([]error, crowdParts)
	var parts sync.WaitGroup
	for part := range crowdParts {
		begin, end := part*len(names)/crowdParts, (part+1)*len(names)/crowdParts
		if begin == end {
			continue
		}
		parts.Go(func() {
			line, err := dialLine(ctx, c.addrs, c.settings)
			for err == nil && ctx.Err() == nil {
				var won int
				if won, err = line.lock(names[begin:end]); err == nil {
					err = line.unlock()
				}
				add(int64(won))
			}
			if ctx.Err() == nil { // the end of ctx isn't an error, even while it dials
				errs[part] = err
			}
		})
	}
	parts.Wait()
	return errors.Join(errs...)
}

// A socketLine is a connection to each node, used by one goroutine.
type socketLine struct {
	conns   []net.Conn
	readers []*bufio.Reader
	ttl     string // in milliseconds
	digest  string // of unlockScript

	request []byte
	names   []string // the last argument of lock
	owners  []byte   // the owner value of each name in hexadecimal, one after another
	votes   []int    // for each name
}

func dialLine(ctx context.Context, addrs []string, s Settings) (*socketLine, error) {
	l := &socketLine{ttl: strconv.FormatInt(s.TTL.Milliseconds(), 10)}
	for _, addr := range addrs {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Now().Add(socketDeadline)); err != nil {
			return nil, err
		}
		l.conns = append(l.conns, conn)
		l.readers = append(l.readers, bufio.NewReaderSize(conn, socketBuffer))
	}
	l.request = appendCommand(nil, "SCRIPT", "LOAD", unlockScript)
	if err := l.write(); err != nil {
		return nil, err
	}
	for _, r := range l.readers {
		if _, err := r.ReadSlice('\n'); err != nil { // the length of the digest
			return nil, err
		}
		digest, err := r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		l.digest = string(bytes.TrimRight(digest, "\r\n"))
	}
	return l, nil
}

// lock asks all nodes for all names and returns how many names a quorum granted.
func (l *socketLine) lock(names []string) (won int, err error) {
	l.names = names
	var owner [ownerBytes]byte
	l.owners, l.request = l.owners[:0], l.request[:0]
	for i, name := range names {
		_, _ = rand.Read(owner[:]) // never fails, says its documentation
		l.owners = hex.AppendEncode(l.owners, owner[:])
		l.request = appendCommand(l.request, "SET", name, l.owner(i), "NX", "PX", l.ttl)
	}
	l.votes = append(l.votes[:0], make([]int, len(names))...)
	if err := l.write(); err != nil {
		return 0, err
	}
	err = l.read(func(i int, reply []byte) error {
		switch {
		case bytes.HasPrefix(reply, []byte("+OK")):
			l.votes[i]++
		case !bytes.HasPrefix(reply, []byte("$-1")) && !bytes.HasPrefix(reply, []byte("_")):
			return fmt.Errorf("raw sockets: SET: %q", reply)
		}
		return nil
	})
	for _, votes := range l.votes {
		if votes > len(l.conns)/2 {
			won++
		}
	}
	return won, err
}

// unlock releases what lock has asked for last.
func (l *socketLine) unlock() error {
	l.request = l.request[:0]
	for i, name := range l.names {
		l.request = appendCommand(l.request, "EVALSHA", l.digest, "1", name, l.owner(i))
	}
	if err := l.write(); err != nil {
		return err
	}
	return l.read(func(_ int, reply []byte) error {
		if reply[0] != ':' {
			return fmt.Errorf("raw sockets: EVALSHA: %q", reply)
		}
		return nil
	})
}

// owner returns the owner value of a name.
func (l *socketLine) owner(i int) string {
	const size = 2 * ownerBytes
	return string(l.owners[i*size : (i+1)*size])
}

// write sends the request to all nodes.
func (l *socketLine) write() error {
	for _, conn := range l.conns {
		if _, err := conn.Write(l.request); err != nil {
			return err
		}
	}
	return nil
}

// read passes the reply of each node for each name to take.
func (l *socketLine) read(take func(i int, reply []byte) error) error {
	for _, r := range l.readers {
		for i := range l.names {
			reply, err := r.ReadSlice('\n')
			if err == nil {
				err = take(i, reply)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// appendCommand appends a command in the form in which clients send it.
func appendCommand(b []byte, args ...string) []byte {
	b = strconv.AppendInt(append(b, '*'), int64(len(args)), 10)
	b = append(b, "\r\n"...)
	for _, arg := range args {
		b = strconv.AppendInt(append(b, '$'), int64(len(arg)), 10)
		b = append(append(append(b, "\r\n"...), arg...), "\r\n"...)
	}
	return b
}
