package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// right is one rule of docs/reference.md, and a command that needs it and
// changes nothing.
type right struct {
	rule    string
	command []string
}

// rightsOf returns the rights that a user of locks needs. KEY stands for a key that
// does not exist.
func rightsOf(key, channel string) []right {
	return []right{
		{"+evalsha", []string{"EVALSHA", strings.Repeat("0", 40), "1", key}},
		{"+script|load", []string{"SCRIPT", "LOAD", "return 1"}},
		{"+time", []string{"TIME"}},
		{"+info", []string{"INFO", "server"}},
		{"+ping", []string{"PING"}},
		{"+getrange", []string{"GETRANGE", key, "0", "0"}},
		{"+mget", []string{"MGET", key}},
		{"+set", []string{"SET", key, "", "XX"}},
		{"+del", []string{"DEL", key}},
		{"+exists", []string{"EXISTS", key}},
		{"+pexpireat", []string{"PEXPIREAT", key, "1"}},
		{"+pttl", []string{"PTTL", key}},
		{"+dbsize", []string{"DBSIZE"}},
		{"+zadd", []string{"ZADD", key, "XX", "1", "m"}},
		{"+zcard", []string{"ZCARD", key}},
		{"+zrange", []string{"ZRANGE", key, "0", "0"}},
		{"+zrank", []string{"ZRANK", key, "m"}},
		{"+zrem", []string{"ZREM", key, "m"}},
		{"+zscore", []string{"ZSCORE", key, "m"}},
		{"+publish", []string{"PUBLISH", channel, ""}},
	}
}

// rights tries every command that locks need. Unlike ACL DRYRUN, that needs no
// right of its own, and works on every version. An error is one of the connection:
// a right that was not tried is not there for all that is known.
func (n *Node) rights(ctx context.Context, client rueidis.Client, prefix string) error {
	id := rand.Text()
	key, channel := prefix+"doctor/"+id, prefix+"\xffw"+id
	needed := rightsOf(key, channel)
	commands := make(rueidis.Commands, len(needed))
	for i, r := range needed {
		commands[i] = client.B().Arbitrary(r.command...).Build()
	}
	for i, result := range client.DoMulti(ctx, commands...) {
		if err := result.Error(); err != nil && !answered(err) {
			return err
		}
		n.miss(refusedRight(result.Error(), needed[i].rule, prefix))
	}
	err := subscribe(ctx, client, channel)
	if err != nil && !answered(err) {
		return err
	}
	n.miss(refusedRight(err, "+subscribe", prefix))
	return nil
}

// answered reports whether an error is a server's answer, and not the connection's.
func answered(err error) bool {
	var redis *rueidis.RedisError
	return errors.As(err, &redis)
}

// subscribe returns why the user cannot subscribe to a channel, nil if it can.
func subscribe(ctx context.Context, client rueidis.Client, channel string) error {
	confirmed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) {
		select {
		case confirmed <- struct{}{}:
		default:
		}
		cancel()
	})
	err := client.Receive(hooked, client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
	if len(confirmed) > 0 {
		return nil
	}
	return err
}

// miss notes a right once.
func (n *Node) miss(rule string) {
	if rule != "" && !slices.Contains(n.Missing, rule) {
		n.Missing = append(n.Missing, rule)
	}
}

// refusedRight returns the rule that an error asks for, empty for none.
func refusedRight(err error, rule, prefix string) string {
	var redis *rueidis.RedisError
	if !errors.As(err, &redis) || !strings.HasPrefix(redis.Error(), "NOPERM") {
		return ""
	}
	switch refused := refusedWhat.FindString(redis.Error()); {
	case strings.HasSuffix(refused, "channel"):
		return "&" + prefix + "*"
	case strings.HasSuffix(refused, "key"):
		return "~" + prefix + "*"
	}
	return rule
}

// refusedWhat tells keys and channels from commands, in the words of Redis 6 and 7.
var refusedWhat = regexp.MustCompile(`access (a|one of the) (key|channel)`)
