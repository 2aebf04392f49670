package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

const (
	loopback = "127.0.0.1"

	// Ports lie below the ephemeral range of the usual systems. So no outgoing
	// connection can take the port of a server or proxy that is down for a while. The
	// upper bound also leaves room for the cluster bus, port + 10000.
	lowestPort  = 10_000
	highestPort = 32_767
)

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
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		var ln net.Listener
		if ln, err = net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
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
