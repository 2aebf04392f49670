package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
)

const (
	loopback = "127.0.0.1"

	// Ports lie below the ephemeral range of the usual systems. So no outgoing connection can
	// take the port of a server or proxy that is down for a while. The upper bound also leaves
	// room for the cluster bus, port + 10000.
	lowestPort  = 10_000
	highestPort = 32_767

	// shares is how many test processes have ports of their own at a time.
	shares    = 8
	shareSize = (highestPort + 1 - lowestPort) / shares
)

// ports hands out the ports of this process one after the other, so that it takes long until the port of a server that
// is down gets another owner. Sentinels would take a new server at the port of a dead master for that master, and make
// it a replica of the next one.
var ports struct {
	mu    sync.Mutex
	share net.Listener // held until the process ends; nil if all shares are taken
	first int          // of the share; 0 before the first use
	next  int          // from first
}

// nextPort returns the next port of this process.
func nextPort() int {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.first == 0 {
		ports.next = rand.IntN(shareSize)
		for _, share := range rand.Perm(shares) {
			ports.first = lowestPort + share*shareSize
			var err error
			if ports.share, err = net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(lowestPort-1-share))); err == nil {
				break
			}
		}
	}
	ports.next = (ports.next + 1) % shareSize
	return ports.first + ports.next
}

// freePort returns a port that no process listens on at the moment.
func freePort() (int, error) {
	ln, err := listenLoopback()
	if err != nil {
		return 0, err
	}
	return ln.Addr().(*net.TCPAddr).Port, closeListener(ln)
}

// listenLoopback listens on a free port of 127.0.0.1.
func listenLoopback() (net.Listener, error) {
	var err error
	for range shareSize {
		var ln net.Listener
		if ln, err = net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(nextPort()))); err == nil {
			return ln, nil
		}
	}
	return nil, fmt.Errorf("no free port: %w", err)
}

// closeListener closes ln so that its port refuses connections and can be bound at once.
// A child between fork and exec has a copy of every open file, and would keep the port
// listening for that moment. The lock of ForkLock waits for it.
func closeListener(ln net.Listener) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return ln.Close()
}
