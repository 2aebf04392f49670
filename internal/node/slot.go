package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// slotOwner asks nodes of a cluster for the master that owns a hash slot. The epoch is that
// master's config epoch: it gets a new one by the votes of a majority of the masters, or when
// a slot is moved to it.
//
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
type slotOwner struct {
	slot    int
	withTLS bool
	nodes   atomic.Int64 // of the cluster, by the latest answer
}

func newSlotOwner(n *Node) *group {
	o := n.cfg.Option
	return &group{kind: "slot", resolver: &slotOwner{slot: slotOf(SlotTag(&o)), withTLS: o.TLSConfig != nil}, voters: newVoters("cluster nodes", o.InitAddress[1:],
		func(addr string) rueidis.ClientOption {
			return n.asideOption(rueidis.ClientOption{
				InitAddress: []string{addr}, Dialer: o.Dialer, TLSConfig: o.TLSConfig,
				Username: o.Username, Password: o.Password, AuthCredentialsFn: o.AuthCredentialsFn, ClientName: o.ClientName,
			})
		})}
}

// ask returns the slot's owner as one node of the cluster knows it.
func (s *slotOwner) ask(ctx context.Context, client rueidis.Client) (Term, error) {
	text, err := client.Do(ctx, client.B().Arbitrary("CLUSTER", "NODES").Build()).ToString()
	if err != nil {
		return Term{}, err
	}
	text = strings.TrimPrefix(text, "txt:")
	s.nodes.Store(nodesIn(text))
	return ownerOf(text, s.slot, s.withTLS)
}

func (s *slotOwner) size() int { return int(s.nodes.Load()) }

// nodesIn returns how many nodes of the reply to CLUSTER NODES belong to the cluster, masters
// and replicas, those that are down as well.
func nodesIn(text string) (n int64) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 2 && !strings.Contains(fields[2], "noaddr") && !strings.Contains(fields[2], "handshake") {
			n++
		}
	}
	return n
}

// ownerOf reads the reply to CLUSTER NODES. A line is
//
//	id ip:port@bus[,hostname] flags master ping pong epoch link slot slot …
//
// With TLS the hostname counts, if there is one, because the certificate names it.
func ownerOf(text string, slot int, withTLS bool) (Term, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !slices.Contains(strings.Split(fields[2], ","), "master") || !owns(fields[8:], slot) {
			continue
		}
		epoch, err := strconv.ParseInt(fields[6], 10, 64)
		addr, rest, _ := strings.Cut(fields[1], "@")
		colon := strings.LastIndexByte(addr, ':')
		if err != nil || epoch < 0 || colon < 0 {
			return Term{}, errors.New("CLUSTER NODES: reply not understood")
		}
		host, port := addr[:colon], addr[colon+1:]
		if _, names, _ := strings.Cut(rest, ","); withTLS && names != "" {
			if name, _, _ := strings.Cut(names, ","); name != "" && !strings.Contains(name, "=") {
				host = name
			}
		}
		return Term{Addr: net.JoinHostPort(host, port), Epoch: epoch}, nil
	}
	return Term{}, fmt.Errorf("nobody owns hash slot %d: assign it, if no failover is going on", slot)
}

// owns reports whether one of these ranges has the slot. A range in brackets is a slot that
// is being moved. owns skips it: the owner lists the slot without brackets as well.
func owns(ranges []string, slot int) bool {
	for _, r := range ranges {
		first, last, found := strings.Cut(r, "-")
		if !found {
			last = first
		}
		low, errLow := strconv.Atoi(first)
		high, errHigh := strconv.Atoi(last)
		if errLow == nil && errHigh == nil && low <= slot && slot <= high {
			return true
		}
	}
	return false
}

// explain adds to an error of a cluster node which one it is, and how to mend it.
func (s *slotOwner) explain(addr string, err error) error {
	redis, ok := rueidis.IsRedisErr(err)
	if !ok {
		return fmt.Errorf("%s: %w", addr, opaque(err))
	}
	switch text := redis.Error(); {
	case strings.Contains(text, "cluster support disabled"), strings.Contains(text, "unknown command"):
		return &ConfigError{
			Problem: "the server at " + addr + " is not part of a cluster",
			Fix:     "name nodes of the cluster; a server without a cluster belongs into Addrs",
		}
	case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOPERM"):
		return &ConfigError{
			Problem: "the node at " + addr + " says " + text,
			Fix:     "set Username and Password of the option, and give the user +cluster|nodes",
		}
	default:
		return fmt.Errorf("%s: %w", addr, err)
	}
}

// slotOf returns the hash slot of a hash tag with its braces: CRC16 (XMODEM) of what is
// within, as the cluster specification has it.
func slotOf(tag string) int {
	var crc uint16
	for _, b := range []byte(strings.Trim(tag, "{}")) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc & (slots - 1))
}

// slots is how many hash slots a cluster has.
const slots = math.MaxUint16/4 + 1
