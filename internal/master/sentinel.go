package master

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// sentinels asks Sentinels for the master of a master set. The epoch is the config-epoch, for
// which a majority of the Sentinels votes at each failover.
//
// https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
type sentinels struct{ set string }

func newSentinels(life context.Context, option *rueidis.ClientOption, aside func(rueidis.ClientOption) rueidis.ClientOption) *voters {
	o := option.Sentinel
	return newVoters(life, "Sentinels", &sentinels{set: o.MasterSet}, option.InitAddress, func(addr string) rueidis.ClientOption {
		return aside(rueidis.ClientOption{
			InitAddress: []string{addr}, Dialer: o.Dialer, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password, ClientName: o.ClientName,
		})
	})
}

// ask returns what one Sentinel knows. It asks for the ids each time, because rueidis redials by
// itself, and the next server at the address may be another.
func (s *sentinels) ask(ctx context.Context, client rueidis.Client) (view, error) {
	b := client.B()
	// A Sentinel executes one packet without anything between the commands. If it reads them in two parts, the address is
	// older than the epoch, no term has this pair, and the next question corrects it.
	replies := client.DoMulti(ctx,
		b.Arbitrary("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.set).Build(),
		b.Arbitrary("SENTINEL", "MASTER", s.set).Build(),
		b.Arbitrary("SENTINEL", "MYID").Build(),
		b.Arbitrary("SENTINEL", "SENTINELS", s.set).Build())
	fields, err := replies[1].AsStrMap()
	if err != nil {
		return view{}, err
	}
	epoch, err := strconv.ParseInt(fields["config-epoch"], 10, 64)
	if err != nil || fields["ip"] == "" || fields["port"] == "" {
		return view{}, errors.New("SENTINEL MASTER: reply not understood")
	}
	know := view{named: Term{Addr: net.JoinHostPort(fields["ip"], fields["port"]), Epoch: epoch}}
	if others, err := strconv.Atoi(fields["num-other-sentinels"]); err == nil {
		know.size = others + 1
	}
	if err := know.locate(replies[0]); err != nil {
		return view{}, err
	}
	return know, know.identify(replies[2], replies[3])
}

// term returns the term that the Sentinel names.
func (s *sentinels) term(know view, _ int) (Term, error) { return know.named, nil }

// locate reads the address that clients get. The Sentinel that leads a failover raises its config-epoch at the
// promotion, but shows the old address in SENTINEL MASTER until the replicas follow the new master.
func (a *view) locate(current rueidis.RedisResult) error {
	addr, err := current.AsStrSlice()
	if redis, ok := rueidis.IsRedisErr(err); ok {
		a.late = &wire.ConfigError{
			Problem: "a Sentinel does not give clients the master's address (" + redis.Error() + "), so a failover may be noticed late",
			Fix:     "give the Sentinels' user " + sentinelRights,
		}
		return nil
	} else if err != nil {
		return err
	}
	if len(addr) != 2 || slices.Contains(addr, "") {
		return errors.New("SENTINEL GET-MASTER-ADDR-BY-NAME: reply not understood")
	}
	a.named.Addr = net.JoinHostPort(addr[0], addr[1])
	return nil
}

// identify reads which Sentinel answers, and which others it knows.
func (a *view) identify(myself, others rueidis.RedisResult) error {
	id, err := myself.ToString()
	var list []rueidis.RedisMessage
	if err == nil {
		a.id = id
		list, err = others.ToArray()
	}
	if redis, ok := rueidis.IsRedisErr(err); ok {
		a.unidentified = &wire.ConfigError{
			Problem: "a Sentinel does not identify itself or the others (" + redis.Error() + "), so a wrong list of Sentinels may not be noticed",
			Fix:     "give the Sentinels' user " + sentinelRights,
		}
		return nil
	} else if err != nil {
		return err
	}
	for i := range list {
		fields, err := list[i].AsStrMap()
		if err != nil {
			return err
		}
		a.peers = append(a.peers, fields["runid"]) // the id, whatever its name
	}
	return nil
}

const sentinelRights = "+sentinel|master, +sentinel|get-master-addr-by-name, +sentinel|myid and +sentinel|sentinels"

// explain adds to an error of a Sentinel its address and the fix.
func (s *sentinels) explain(addr string, err error) error {
	if _, ok := rueidis.IsRedisErr(err); !ok && !rueidis.IsRedisNil(err) {
		return noAnswer(addr, err)
	}
	switch text := err.Error(); {
	case rueidis.IsRedisNil(err), strings.Contains(text, "No such master"): // nil instead of an address
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the Sentinel at %s knows no master set %q", addr, s.set),
			Fix:     "name the master set as `sentinel monitor` does, and the Sentinels of one group", List: true,
		}
	case strings.Contains(text, "unknown command"):
		return &wire.ConfigError{
			Problem: "the server at " + addr + " is not a Sentinel",
			Fix:     "name the Sentinels, usually at port 26379; pass a server without Sentinels to Addrs", List: true,
		}
	case strings.HasPrefix(text, "NOAUTH"):
		return wire.PasswordError("the Sentinel at "+addr, "Sentinel.Username and Sentinel.Password of the option; Username and Password are the master's")
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOPERM"):
		return &wire.ConfigError{
			Problem: "the Sentinel at " + addr + " says " + text,
			Fix:     "set Sentinel.Username and Sentinel.Password of the option, and give the user " + sentinelRights + "; Username and Password are the master's",
		}
	default:
		return fmt.Errorf("%s: %w", addr, err)
	}
}
