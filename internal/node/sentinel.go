package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

// sentinels asks Sentinels for the master of a master set. The epoch is the config-epoch, for
// which a majority of the Sentinels votes at each failover.
//
// https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
type sentinels struct {
	set string

	mu    sync.Mutex
	known map[rueidis.Client]int // the number of Sentinels in the group, by the latest answer of each
}

func newSentinels(n *Node) *group {
	o := n.cfg.Option.Sentinel
	return &group{kind: "sentinel", resolver: &sentinels{set: o.MasterSet, known: map[rueidis.Client]int{}}, voters: newVoters("Sentinels", n.cfg.Option.InitAddress, func(addr string) rueidis.ClientOption {
		return n.asideOption(rueidis.ClientOption{
			InitAddress: []string{addr}, Dialer: o.Dialer, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password, ClientName: o.ClientName,
		})
	})}
}

// ask returns the term as one Sentinel knows it.
func (s *sentinels) ask(ctx context.Context, client rueidis.Client) (Term, error) {
	fields, err := client.Do(ctx, client.B().Arbitrary("SENTINEL", "MASTER", s.set).Build()).AsStrMap()
	if err != nil {
		return Term{}, err
	}
	epoch, err := strconv.ParseInt(fields["config-epoch"], 10, 64)
	if err != nil || fields["ip"] == "" || fields["port"] == "" {
		return Term{}, errors.New("SENTINEL MASTER: reply not understood")
	}
	if others, err := strconv.Atoi(fields["num-other-sentinels"]); err == nil {
		s.mu.Lock()
		s.known[client] = others + 1
		s.mu.Unlock()
	}
	return Term{Addr: net.JoinHostPort(fields["ip"], fields["port"]), Epoch: epoch}, nil
}

func (s *sentinels) size() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, others := range s.known {
		most = max(most, others)
	}
	return most
}

// explain adds to an error of a Sentinel which one it is, and how to mend it.
func (s *sentinels) explain(addr string, err error) error {
	redis, ok := rueidis.IsRedisErr(err)
	if !ok {
		return fmt.Errorf("%s: %w", addr, opaque(err))
	}
	switch text := redis.Error(); {
	case strings.Contains(text, "No such master"):
		return &ConfigError{
			Problem: fmt.Sprintf("the Sentinel at %s knows no master set %q", addr, s.set),
			Fix:     "name the master set as `sentinel monitor` does",
		}
	case strings.Contains(text, "unknown command"):
		return &ConfigError{
			Problem: "the server at " + addr + " is no Sentinel",
			Fix:     "name the Sentinels, at port 26379 as a rule; a server without Sentinels belongs into Addrs",
		}
	case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOPERM"):
		return &ConfigError{
			Problem: "the Sentinel at " + addr + " says " + text,
			Fix:     "set Sentinel.Username and Sentinel.Password of the option, and give the user +sentinel|master; Username and Password are the master's",
		}
	default:
		return fmt.Errorf("%s: %w", addr, err)
	}
}
