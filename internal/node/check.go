package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// question is an operation of the script that only a greeting asks for. Questions with equal keys are the same: they
// differ only in their nonces and ends.
type question struct {
	key string
	req *wire.Request
}

// early holds the answers to questions that were sent together with INFO, by key.
type early struct {
	sent    clock.Steady
	answers map[string][]rueidis.RedisMessage
}

// exchange is the first call of a greeting, and its answers.
type exchange struct {
	commands   rueidis.Commands
	loads      bool   // the commands load the scripts
	trunk      *trunk // whose server has answered INFO; nil if the commands include INFO
	infos      []rueidis.RedisResult
	script     []question // what the last command asks, if it is a call of the script
	entries    []entry
	results    []rueidis.RedisResult
	connection uint64         // over which the answers came
	asked      clock.Validity // when it was sent
	sent       clock.Steady   // the same instant
	received   clock.Steady
}

// prepare makes the exchange of a greeting. Over a sound connection, the exchange also asks what the check of the same
// server, data and lists will ask. If the answers show a change of these, run asks again.
func (g *greeter) prepare(sound bool) *exchange {
	x := &exchange{loads: !g.conns.up(g.script.loadedOn)}
	if x.trunk, _ = g.trunk(); x.trunk != nil {
		_, now := g.cfg.Clock()
		x.infos = x.trunk.facts.info(now, checkEvery, func() []rueidis.RedisResult {
			return g.client.DoMulti(context.Background(), infos(g.client.B())...)
		})
	}
	x.commands = g.questions(x.loads, x.trunk == nil)
	x.asked, x.sent = g.cfg.Clock()
	g.now = x.sent
	if !sound || g.group.Watches() { // a slot that moves refuses the script
		return x
	}
	all := []question{g.rehearsal(), g.looking()}
	if g.cfg.Guard > 0 {
		all = []question{g.guarding(false, false), g.rehearsal()}
	}
	if g.cfg.Lists != nil && g.cfg.Guard > 0 {
		list, _ := g.listing(true)
		all = append(all, list)
	}
	if announcement, own := g.announcing(); own != nil {
		all = append(all, announcement)
	}
	x.script, x.entries = all, g.entries(all)
	x.commands = append(x.commands, g.askCommand(x.sent, x.entries))
	return x
}

// answered takes the answers to an exchange. It returns all answers but the one of the script.
func (g *greeter) answered(x *exchange) []rueidis.RedisResult {
	if x.trunk != nil {
		x.results = slices.Concat(x.results[:1], x.infos, x.results[1:])
	}
	if x.script == nil {
		return x.results
	}
	last := len(x.results) - 1
	if message, err := x.results[last].ToMessage(); err == nil {
		if replies, err := g.read("", x.script, x.entries, &message); err == nil {
			g.early = early{x.sent, map[string][]rueidis.RedisMessage{}}
			for i := range x.script {
				g.early.answers[x.script[i].key] = replies[i]
			}
		}
	}
	return x.results[:last]
}

// take returns the answers to all questions, nil unless all were asked early. No answer counts twice.
func (e *early) take(all []question) (replies [][]rueidis.RedisMessage) {
	for _, q := range all {
		reply, found := e.answers[q.key]
		if !found {
			return nil
		}
		replies = append(replies, reply)
	}
	for _, q := range all {
		delete(e.answers, q.key)
	}
	return replies
}

// run asks questions. It returns the parts of each answer (nil for one that the server has refused), when it asked, and
// the first refusal.
func (g *greeter) run(what string, all ...question) (replies [][]rueidis.RedisMessage, sent clock.Steady, err error) {
	if replies := g.early.take(all); replies != nil {
		return replies, g.early.sent, nil
	}
	g.look()
	sent = g.now
	entries := g.entries(all)
	message, err := g.client.Do(context.Background(), g.askCommand(g.now, entries)).ToMessage()
	for flushed := 0; noScript(err) && flushed < flushedMax; flushed++ {
		g.script.flushed()
		both := g.client.DoMulti(context.Background(), g.script.load(g.client), g.askCommand(g.now, entries))
		message, err = both[1].ToMessage()
	}
	if err != nil {
		_, now := g.cfg.Clock()
		return nil, sent, wire.MissingRight(refusal(what, timed(err, now.Sub(sent))))
	}
	replies, err = g.read(what, all, entries, &message)
	return replies, sent, err
}

// entries returns the operations of questions. The same call first drops old registers.
func (g *greeter) entries(all []question) (entries []entry) {
	if g.cfg.Cap > 0 {
		entries = append(entries, entry{req: newForget(g.script.registersKey, g.now)})
	}
	for _, q := range all {
		entries = append(entries, entry{req: q.req})
	}
	return entries
}

// read reads the answer to a call.
func (g *greeter) read(what string, asked []question, entries []entry, message *rueidis.RedisMessage) ([][]rueidis.RedisMessage, error) {
	_, all, err := wire.Unpack(message, len(entries))
	if err != nil {
		return nil, refusal(what, nil)
	}
	if len(entries) > len(asked) {
		var r wire.Reply
		var reader wire.Reader
		reader.Read(entries[0].req, all.Next(1), &r)
		g.collect(&r) // an error concerns the registers: acquisitions report it
	}
	replies, first := make([][]rueidis.RedisMessage, len(asked)), error(nil)
	for i := range asked {
		one := all.Next(1)
		replies[i], err = one.Detail()
		var failed wire.OperationError
		switch {
		case errors.As(err, &failed):
			replies[i] = nil
			if first == nil {
				first = errRefused{wire.MissingRight(refusal(what, failed))}
			}
		case err != nil:
			return nil, refusal(what, nil)
		}
	}
	return replies, first
}

// guarding asks the restart guard.
func (g *greeter) guarding(trust, force bool) question {
	guard := wire.Guard{Word: g.markerWord(), Longest: g.cfg.Guard.Milliseconds(), Trust: trust, Force: force}
	if g.cfg.Rollout {
		guard.Open = wire.OpenMark
	}
	key := fmt.Sprint("guard", guard)
	guard.Nonce, guard.NotAfter = rand.Text(), g.notAfter()
	return question{key, wire.NewGuard(g.script.markerKey, &guard)}
}

// looking asks for what the guards of other clients have left.
func (g *greeter) looking() question {
	return question{"look", wire.NewLook(g.script.markerKey, g.notAfter())}
}

// rehearsal asks for nothing.
func (g *greeter) rehearsal() question {
	return question{"rehearsal", wire.NewRehearsal(g.script.markerKey)}
}

const (
	// looksPerList is how many greetings an entry outlives; votes rely on it for one fewer.
	looksPerList = 3
	// ListAge is the age of a registration after which votes do not rely on it.
	ListAge = (looksPerList - 1) * checkEvery
)

// listLife returns how long an entry stands: for the longest lease after the last vote that may rely on it. The node's
// clock may run faster than ours, up to the bound.
func listLife(guard time.Duration, drift float64) time.Duration {
	life := guard + looksPerList*checkEvery
	return life + time.Duration(float64(life)*max(drift, vote.MinDrift))
}

// listing asks to register the list, with the entry that it returns. The entry adds nothing if the client's votes are
// withheld.
func (g *greeter) listing(votes bool) (question, wire.ListEntry) {
	e := g.cfg.Lists.Entry(g.cfg.Index)
	e.Adds = e.Adds && votes
	return question{fmt.Sprint("list", e), wire.NewList(g.script.listsKey, &e, rand.Text(), listLife(g.cfg.Guard, g.cfg.Drift), g.notAfter())}, e
}

// announcing announces this client's list, and asks for the lists that other clients announce. It returns the
// announcement, nil if there is none.
func (g *greeter) announcing() (question, *wire.Announcement) {
	if g.cfg.Lists == nil {
		return question{}, nil
	}
	own := g.cfg.Lists.Announcement(g.cfg.Index, g.identity.RunID)
	if own == nil {
		return question{}, nil
	}
	return question{"announce " + own.String(), wire.NewAnnounce(g.script.inUseKey, own, g.notAfter())}, own
}

// announce warns of other clients' lists that exclude the list of this one. A refusal by the node changes nothing.
func (g *greeter) announce() {
	q, own := g.announcing()
	if own == nil {
		return
	}
	replies, sent, err := g.run("announcement", q)
	if err != nil {
		return
	}
	ends := map[string]clock.Steady{}
	for text, left := range wire.ReadAnnounced(replies[0]) {
		ends[text] = sent.Add(left)
	}
	if warning := g.cfg.Lists.Announced(g.cfg.Index, own, ends); warning != nil {
		g.warn(warning)
	}
}

// enlist registers the Manager's list, together with the rehearsal. If votes are withheld, it only prolongs the
// registration: renewals continue, and rely on it. While no majority confirms the term of a group, renewals rely on the
// earlier registration.
func (g *greeter) enlist(votes bool) error {
	if g.cfg.Lists == nil || g.vote.Unguarded {
		g.unlist()
		_, _, err := g.run("script", g.rehearsal())
		return err
	}
	op, e := g.listing(votes)
	replies, sent, err := g.run("script", g.rehearsal(), op)
	if replies == nil || replies[1] == nil {
		g.unlist()
		return err
	}
	a, wrong := wire.ReadListed(replies[1])
	if wrong != nil {
		return wrong
	}
	g.vote.Remembers = 0
	if g.named = a.ID != ""; g.named {
		g.vote.Remembers = sent.Add(g.cfg.Guard + looksPerList*checkEvery)
	}
	if votes || a.Refused > 0 {
		_ = g.cfg.Lists.Listed(g.cfg.Index, e, sent, a) // the error only withholds votes: see unlisted
	}
	if !votes {
		g.unlist()
	}
	return err
}

// unlist records that the node takes no part in the comparison of lists.
func (g *greeter) unlist() {
	if g.cfg.Lists != nil {
		g.cfg.Lists.Gone(g.cfg.Index)
	}
}

// unlisted returns why the lists of nodes keep votes from counting, nil if votes count.
func (g *greeter) unlisted() error {
	if g.cfg.Lists == nil {
		return nil
	}
	return g.cfg.Lists.Votes(g.cfg.Index)
}
