package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// OpenMark ends a marker under which clients without the guard vote as well, while the
// guard is rolled out.
const OpenMark = "open"

// Guard has the parameters of a run of the restart guard.
type Guard struct {
	Word    string // names the server, its data and the group's epoch
	Longest int64  // the longest lease, ms
	Trust   bool   // an empty database needs no quarantine
	Force   bool   // start a quarantine even if the marker names the same word
	Nonce   string // makes the marker new
	Open    string // OpenMark, or "" to end that
	// NotAfter is the instant on the steady clock after which the node does nothing.
	NotAfter clock.Steady
}

// NewGuard returns a request that runs the restart guard on its marker. Only a greeting sends
// it, as it does the requests of NewLook, NewRehearsal and NewList.
func NewGuard(marker string, g *Guard) *Request {
	return &Request{keys: []string{marker}, args: []string{"guard", g.Word, strconv.FormatInt(g.Longest, 10),
		flag(g.Trust), flag(g.Force), g.Nonce, g.Open, Micros(g.NotAfter)}}
}

// NewLook returns a request that reads the marker and writes nothing.
func NewLook(marker string, notAfter clock.Steady) *Request {
	return NewGuard(marker, &Guard{NotAfter: notAfter})
}

// NewRehearsal returns a request that changes nothing. So a user without the right to run
// scripts, or to use our keys, is found at the greeting and not by the first lease.
func NewRehearsal(marker string) *Request {
	return &Request{keys: []string{marker}, args: []string{"read", "", ""}}
}

// ReadMarker reads the answer to the operation guard.
func ReadMarker(reply []rueidis.RedisMessage) (stop, agreed int64, marker string, err error) {
	p := parts{rest: reply}
	stop, agreed, marker = p.integer(), p.integer(), p.text()
	return stop, agreed, marker, p.end()
}

// ReadLook reads the answer to a NewLook; binds is how long the marker binds clients without the guard.
func ReadLook(reply []rueidis.RedisMessage) (agreed time.Duration, marker string, binds time.Duration, err error) {
	p := parts{rest: reply}
	p.integer() // the end of the quarantine
	agreed, marker, binds = p.span(), p.text(), p.span()
	return agreed, marker, binds, p.end()
}

// Unguarded returns the error of a client without the guard about a node that others use with the guard. The last of
// them connected this long ago (used).
func Unguarded(agreed, used, binds time.Duration) *ConfigError {
	return &ConfigError{
		Problem: ErrUnguarded.Error(), Err: ErrUnguarded,
		Fix: "set WithRestartGuard to " + agreed.String() + " on this client as well, or WithGuardRollout on the others during a rollout. " +
			"To turn the guard off, stop every client that has it and wait",
		Moment: fmt.Sprintf(": the last of them connected about %v ago; if none connects again, the guard ends in %v", used.Round(time.Second), binds.Round(time.Second)),
	}
}

// SameData reports whether two markers stand for the same data. They may differ only in the OpenMark.
func SameData(a, b string) bool {
	return strings.TrimSuffix(a, OpenMark) == strings.TrimSuffix(b, OpenMark)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
