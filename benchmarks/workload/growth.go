//go:build unix

package workload

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

const (
	growthCallers = 64
	distantFrom   = 2048 // callers of distant nodes: fewer would wait for the distance and for nothing else
)

// growth is what an operation costs as one number grows and the others do not.
func growth() Workload {
	w := Workload{
		Name:  "growth",
		Title: "Growth",
		About: fmt.Sprintf("Nodes, registers: a pair, %d callers; the registers belong to other names, on one node. Round trip: %d callers, "+
			"3 nodes, behind a proxy inside the client. Leases: one extension, 5 nodes. Clients: one hand-off of a lock held "+
			"for %v, 3 nodes. The CPU of a server is per operation and node.", growthCallers, distantFrom, managerHold),
		Columns: []report.Column{
			{Key: "ops", Title: "ops/s"}, {Key: "client", Title: "client CPU, µs per op", Digits: 1},
			{Key: "server", Title: "CPU of a server, µs", Digits: 1},
		},
		Lines: []string{"client", "server"},
	}
	add := func(nodes int, measure func(*Bench) (span, error), what string, args ...any) {
		w.Cases = append(w.Cases, Case{
			Name: fmt.Sprintf(what, args...), Nodes: nodes, Contestants: []string{contest.Fenced},
			Measure: func(b *Bench) (Values, error) {
				s, err := measure(b)
				if err != nil {
					return nil, err
				}
				v := Values{"ops": s.turns / s.elapsed.Seconds(), "server": micros(s.servers) / s.turns / float64(nodes)}
				if b.via == nil {
					v["client"] = micros(s.client) / s.turns
				}
				return v, nil
			},
		})
	}
	for _, nodes := range []int{1, 3, 5, 7} {
		add(nodes, func(b *Bench) (span, error) { return b.saturate(growthCallers) }, "%d nodes", nodes)
	}
	for _, trip := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond} {
		add(3, func(b *Bench) (span, error) { return b.distant(trip) }, "round trip %v", trip)
	}
	for _, names := range []int{0, 100_000, 1_000_000} {
		add(1, func(b *Bench) (span, error) { return b.amongRegisters(names) }, "%d registers", names)
	}
	for _, leases := range []int{1000, 10_000, 100_000} {
		add(5, func(b *Bench) (span, error) { return b.extending(leases) }, "%d leases", leases)
	}
	for _, clients := range []int{2, 16, 64, 256} {
		add(3, func(b *Bench) (span, error) { return b.handingOff(clients) }, "%d clients", clients)
	}
	return w
}

// distant is saturate over lines with that round trip.
func (b *Bench) distant(trip time.Duration) (span, error) {
	ctx, stop := context.WithCancel(b.Context)
	defer stop()
	if err := b.stretch(ctx, trip); err != nil {
		return span{}, err
	}
	return b.saturate(distantFrom)
}

// stretch leads later connections over lines that add trip to each round trip, until ctx ends.
func (b *Bench) stretch(ctx context.Context, trip time.Duration) error {
	for _, addr := range redistest.Addrs(b.Servers) {
		line, err := delayed(ctx, addr, trip/2)
		if err != nil {
			return err
		}
		b.via = append(b.via, line)
	}
	return nil
}

// amongRegisters is saturate on a node that has the registers of many other names.
func (b *Bench) amongRegisters(names int) (span, error) {
	const each = 1000
	now := strconv.FormatInt(time.Now().UnixMicro(), 10)
	for first := 0; first < names; first += each {
		command := []string{"ZADD", contest.Registers}
		for i := range each {
			command = append(command, now, "name-"+strconv.Itoa(first+i))
		}
		if _, err := b.Servers[0].Do(command...); err != nil {
			return span{}, err
		}
	}
	return b.saturate(growthCallers)
}

// extending measures the renewals of many leases; an operation is the renewal of one.
func (b *Bench) extending(leases int) (span, error) {
	client, err := b.connect(0)
	if err != nil {
		return span{}, err
	}
	renewals, ok := client.(contest.Renewals)
	if !ok {
		return span{}, errUnsupported
	}
	if _, err := b.keepAll(client, leases); err != nil {
		return span{}, err
	}
	var confirmed atomic.Int64
	renewals.CountRenewals(func() { confirmed.Add(1) })
	if err := b.sleep(b.TTL / 2); err != nil { // a round of each: the acquisitions have ended
		return span{}, err
	}
	before, err := b.usage()
	first := confirmed.Load()
	if err == nil {
		err = b.sleep(b.TTL)
	}
	if err != nil {
		return span{}, err
	}
	after, err := b.usage()
	return span{usage: after.since(before), turns: float64(confirmed.Load() - first)}, err
}

// handingOff measures a lock that many clients want.
func (b *Bench) handingOff(clients int) (span, error) {
	c, err := b.startContest(clients, 1, managerHold)
	if err != nil {
		return span{}, err
	}
	defer c.end()
	return b.measureCrowd(c.crowd, contendedTimes*b.Duration)
}

// delayed returns the address of a line to a server that delays either direction by d,
// whatever the traffic, until ctx ends.
func delayed(ctx context.Context, server string, d time.Duration) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = client.Close(), far.Close() })
			go carry(far, client, d)
			go carry(client, far, d)
		}
	}()
	return listener.Addr().String(), nil
}

// carry copies what it reads to the other end, each piece after the delay.
func carry(to io.WriteCloser, from io.Reader, d time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1<<12) // closed at the end of what is read; nothing is dropped
	go func() {
		defer func() { _ = to.Close() }()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range pieces { // the reader must not wait forever
		}
	}()
	defer close(pieces)
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if n > 0 {
			pieces <- piece{due: time.Now().Add(d), data: data[:n]}
		}
		if err != nil {
			return
		}
	}
}
