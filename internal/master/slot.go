package master

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// slotOwner asks nodes of a cluster for the master that owns a hash slot. The epoch is that
// master's config epoch: it gets a new one by the votes of a majority of the masters, or when
// a slot is moved to it.
//
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
type slotOwner struct{ withTLS bool }

func newSlotOwner(life context.Context, o *rueidis.ClientOption, aside func(rueidis.ClientOption) rueidis.ClientOption) *voters {
	return newVoters(life, "cluster nodes", &slotOwner{withTLS: o.TLSConfig != nil}, Addresses(o), func(addr string) rueidis.ClientOption {
		return aside(rueidis.ClientOption{
			InitAddress: []string{addr}, Dialer: o.Dialer, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password, AuthCredentialsFn: o.AuthCredentialsFn, ClientName: o.ClientName,
		})
	})
}

// ask returns what one node of the cluster knows.
func (s *slotOwner) ask(ctx context.Context, client rueidis.Client) (know view, err error) {
	text, err := client.Do(ctx, client.B().Arbitrary("CLUSTER", "NODES").Build()).ToString()
	if err != nil {
		return view{}, err
	}
	text = strings.TrimPrefix(text, "txt:")
	know.id, know.peers = membersIn(text)
	know.size, know.owners = len(know.peers), ownersIn(text, s.withTLS)
	return know, nil
}

// term returns the present term of a slot.
func (s *slotOwner) term(know view, slot int) (Term, error) { return ownerOf(know.owners, slot) }

// membersIn returns the ids in the reply to CLUSTER NODES: the id of the node which answers, and
// the ids of all nodes of the cluster, masters and replicas, those that are down as well.
func membersIn(text string) (self string, all []string) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		flags := strings.Split(fields[2], ",")
		if slices.Contains(flags, "noaddr") || slices.Contains(flags, "handshake") {
			continue
		}
		if all = append(all, fields[0]); slices.Contains(flags, "myself") {
			self = fields[0]
		}
	}
	return self, all
}

// Members returns the addresses of the nodes of a cluster, as one of them knows them: masters first.
func Members(ctx context.Context, client rueidis.Client, withTLS bool) (masters []string, err error) {
	text, err := client.Do(ctx, client.B().Arbitrary("CLUSTER", "NODES").Build()).ToString()
	if err != nil {
		return nil, err
	}
	var replicas []string
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		flags := strings.Split(fields[2], ",")
		addr, ok := addrIn(fields[1], withTLS)
		switch {
		case !ok || slices.Contains(flags, "noaddr") || slices.Contains(flags, "handshake") || slices.Contains(flags, "fail"):
		case slices.Contains(flags, "master"):
			masters = append(masters, addr)
		default:
			replicas = append(replicas, addr)
		}
	}
	return append(masters, replicas...), nil
}

// addrIn reads ip:port@bus[,hostname]. With TLS the hostname counts, if there is one, because the certificate names it.
func addrIn(field string, withTLS bool) (addr string, ok bool) {
	addr, rest, _ := strings.Cut(field, "@")
	colon := strings.LastIndexByte(addr, ':')
	if colon < 0 {
		return "", false
	}
	host, port := addr[:colon], addr[colon+1:]
	if _, names, _ := strings.Cut(rest, ","); withTLS && names != "" {
		if name, _, _ := strings.Cut(names, ","); name != "" && !strings.Contains(name, "=") {
			host = name
		}
	}
	return net.JoinHostPort(host, port), true
}

// ownersIn reads the reply to CLUSTER NODES. A line is
//
//	id ip:port@bus[,hostname] flags master ping pong epoch link slot slot …
//
// A range in brackets is a slot that is being moved. It is skipped: the owner lists the slot without brackets as well.
func ownersIn(text string, withTLS bool) (all []owned) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !slices.Contains(strings.Split(fields[2], ","), "master") {
			continue
		}
		var of owned
		epoch, err := strconv.ParseInt(fields[6], 10, 64)
		addr, ok := addrIn(fields[1], withTLS)
		if of.term = (Term{Addr: addr, Epoch: epoch}); err != nil || epoch < 0 || !ok {
			of.err = errors.New("CLUSTER NODES: reply not understood")
		}
		for _, r := range fields[8:] {
			first, last, found := strings.Cut(r, "-")
			if !found {
				last = first
			}
			var low, high error
			of.first, low = strconv.Atoi(first)
			of.last, high = strconv.Atoi(last)
			if low == nil && high == nil {
				all = append(all, of)
			}
		}
	}
	return all
}

// ownerOf returns the term of the master that owns a slot.
func ownerOf(all []owned, slot int) (Term, error) {
	for _, of := range all {
		switch {
		case slot < of.first || of.last < slot:
		case of.err != nil:
			return Term{}, of.err
		default:
			return of.term, nil
		}
	}
	return Term{}, fmt.Errorf("hash slot %d has no owner: assign it to a server, unless a failover is in progress", slot)
}

// movesAway reports whether the node that gave this reply to CLUSTER NODES is about to move the slot to another one.
// Only its own line shows that: [slot->-id].
func movesAway(text string, slot int) bool {
	move := fmt.Sprintf("[%d->-", slot)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 8 && slices.Contains(strings.Split(fields[2], ","), "myself") {
			return slices.ContainsFunc(fields[8:], func(s string) bool { return strings.HasPrefix(s, move) })
		}
	}
	return false
}

// explain adds to an error of a cluster node its address and the fix.
func (s *slotOwner) explain(addr string, err error) error {
	redis, ok := rueidis.IsRedisErr(err)
	if !ok {
		return noAnswer(addr, err)
	}
	switch text := redis.Error(); {
	case strings.Contains(text, "cluster support disabled"), strings.Contains(text, "unknown command"):
		return &wire.ConfigError{
			Problem: "the server at " + addr + " is not part of a cluster",
			Fix:     "name nodes of the cluster; pass a server without a cluster to Addrs", List: true,
		}
	case strings.HasPrefix(text, "NOAUTH"):
		return wire.PasswordError("the node at "+addr, "Username and Password of the option")
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOPERM"):
		return &wire.ConfigError{
			Problem: "the node at " + addr + " says " + text,
			Fix:     "set Username and Password of the option, and give the user +cluster|nodes",
		}
	default:
		return fmt.Errorf("%s: %w", addr, err)
	}
}

// HashSlots is how many hash slots a cluster has.
const HashSlots = math.MaxUint16/4 + 1
