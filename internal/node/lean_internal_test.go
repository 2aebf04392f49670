package node

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// collector keeps the last reply.
type collector struct{ last wire.Reply }

func (c *collector) Receive(_ int, _ *wire.Request, r *wire.Reply) { c.last = *r }

// A server that answers '?' to everything would otherwise be asked without end.
func TestACallWithTheCompanionsOfItsLocksIsNotDeclined(t *testing.T) {
	server, client := newParrot(t)
	server.Set("EVALSHA x", array(number(1_700_000_000_000_000), bulk("?")).encode(nil))
	n := New(Config{
		Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}},
		Clock: func() (validity clock.Validity, steady clock.Steady) {
			return clock.Validity(time.Hour), clock.Steady(time.Hour)
		},
	})
	defer n.cancel()
	for may, status := range map[bool]wire.Status{true: 0, false: wire.Misconfigured} {
		result := client.Do(t.Context(), client.B().Evalsha().Sha1("0").Numkeys(0).Arg("", "", "", "", "", "", "x").Build())
		n.courier.resend = nil
		var to collector
		e := entry{req: requestOf(wire.Acquire, 1), to: &to}
		n.courier.deliver(&transfer{steady: clock.Steady(time.Hour), received: clock.Steady(time.Hour + time.Millisecond)}, []entry{e}, call{last: 1, locks: 1, whole: !may}, []rueidis.RedisResult{result})
		assert.Equal(t, status, to.last.Status)
		assert.Equal(t, may, len(n.courier.resend) == 1)
	}
}
