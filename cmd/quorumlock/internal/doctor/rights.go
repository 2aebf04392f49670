package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// right is one rule of docs/reference.md, and a command that needs it.
type right struct {
	rule    string
	command []string
}

// probeTTL ends the keys of a probe whose user may not delete them.
const probeTTL = 5 * time.Second

// rightsOf returns the rights of a user of locks, each with a command on two keys of the probe. The commands write like
// a grant, because a server may refuse only that, and delete the keys.
func rightsOf(key, channel string, end time.Time) []right {
	set, expiry := key+"/set", strconv.FormatInt(end.UnixMilli(), 10)
	return []right{
		{"+evalsha", []string{"EVALSHA", strings.Repeat("0", 40), "1", key}},
		{"+script|load", []string{"SCRIPT", "LOAD", grantScript}},
		{"+time", []string{"TIME"}},
		{"+info", []string{"INFO", "server"}},
		{"+ping", []string{"PING"}},
		{"+set", []string{"SET", key, "", "NX", "PX", strconv.FormatInt(probeTTL.Milliseconds(), 10)}},
		{"+getrange", []string{"GETRANGE", key, "0", "0"}},
		{"+mget", []string{"MGET", key}},
		{"+exists", []string{"EXISTS", key}},
		{"+pttl", []string{"PTTL", key}},
		{"+pexpireat", []string{"PEXPIREAT", key, expiry}},
		{"+del", []string{"DEL", key}},
		{"+zadd", []string{"ZADD", set, "1", "m"}},
		{"+pexpireat", []string{"PEXPIREAT", set, expiry}},
		{"+zcard", []string{"ZCARD", set}},
		{"+zrange", []string{"ZRANGE", set, "0", "0"}},
		{"+zrank", []string{"ZRANK", set, "m"}},
		{"+zscore", []string{"ZSCORE", set, "m"}},
		{"+zrem", []string{"ZREM", set, "m"}},
		{"+del", []string{"DEL", set}},
		{"+dbsize", []string{"DBSIZE"}},
		{"+publish", []string{"PUBLISH", channel, ""}},
		{"+pubsub|numsub", []string{"PUBSUB", "NUMSUB", channel}},
	}
}

// grantScript writes like a grant, by a script, and deletes it again.
const grantScript = `redis.call('SET', KEYS[1], '', 'NX', 'PX', '5000') return redis.call('DEL', KEYS[1])`

// rights tries every command that locks need, and then all of it in a script. Unlike ACL DRYRUN, that needs no further
// right, works on every version, and finds refusals for reasons other than rights. An error is an error of the
// connection: then a right that was not tried may be missing.
func (n *Node) rights(ctx context.Context, client rueidis.Client, prefix string) error {
	id := rand.Text()
	key, channel := prefix+"doctor/"+id, prefix+"\xffw"+id
	needed, listen := rightsOf(key, channel, time.Now().Add(n.Clock+probeTTL)), "SUBSCRIBE"
	if n.Mode == "cluster" { // a slot of the cluster as a node
		listen = "SSUBSCRIBE"
		needed = append(slices.DeleteFunc(needed, func(r right) bool { return strings.Contains(r.rule, "pub") }),
			right{"+spublish", []string{"SPUBLISH", channel, ""}}, right{"+pubsub|shardnumsub", []string{"PUBSUB", "SHARDNUMSUB", channel}},
			right{"+cluster|nodes", []string{"CLUSTER", "NODES"}})
	}
	commands := make(rueidis.Commands, len(needed))
	for i, r := range needed {
		commands[i] = client.B().Arbitrary(r.command...).Build()
	}
	digest := ""
	for i, result := range client.DoMulti(ctx, commands...) {
		err := result.Error()
		if err != nil && !answered(err) {
			return err
		}
		n.refuse(err, needed[i].command[0], needed[i].rule, prefix)
		if needed[i].command[0] == "SCRIPT" {
			digest, _ = result.ToString()
		}
	}
	err := subscribe(ctx, client, listen, channel)
	if err != nil && !answered(err) {
		return err
	}
	n.refuse(err, listen, "+"+strings.ToLower(listen), prefix)
	if len(n.Missing)+len(n.Refused) > 0 { // otherwise the script would report the same
		return nil
	}
	err = client.Do(ctx, client.B().Evalsha().Sha1(digest).Numkeys(1).Key(key).Build()).Error()
	if err != nil && !answered(err) {
		return err
	}
	n.refuse(err, "a script with SET", "+evalsha", prefix)
	return nil
}

// Refusal is a command that locks need and that a server refuses for a reason other than the user's rights.
type Refusal struct{ Command, Text string }

// refuse notes the error of a command.
func (n *Node) refuse(err error, command, rule, prefix string) {
	var redis *rueidis.RedisError
	if !errors.As(err, &redis) || redis.IsNil() || redis.IsNoScript() {
		return
	}
	if !strings.HasPrefix(redis.Error(), "NOPERM") {
		n.Refused = append(n.Refused, Refusal{command, redis.Error()})
		return
	}
	if missing := missingRule(redis.Error(), rule, prefix); !slices.Contains(n.Missing, missing) {
		n.Missing = append(n.Missing, missing)
	}
}

// answered reports whether an error is a server's answer, and not an error of the connection.
func answered(err error) bool {
	var redis *rueidis.RedisError
	return errors.As(err, &redis)
}

// subscribe returns why the user cannot subscribe to a channel, nil if it can.
func subscribe(ctx context.Context, client rueidis.Client, command, channel string) error {
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
	listen := client.B().Subscribe().Channel(channel).Build()
	if command == "SSUBSCRIBE" {
		listen = client.B().Ssubscribe().Channel(channel).Build()
	}
	err := client.Receive(hooked, listen, func(rueidis.PubSubMessage) {})
	if len(confirmed) > 0 {
		return nil
	}
	return err
}

// missingRule returns the rule that a NOPERM error asks for.
func missingRule(text, rule, prefix string) string {
	switch refused := refusedWhat.FindString(text); {
	case strings.HasSuffix(refused, "channel"):
		return "&" + pattern(prefix)
	case strings.HasSuffix(refused, "key"):
		return "~" + pattern(prefix)
	}
	return rule
}

// pattern returns the pattern of an ACL rule that fits the keys of a prefix. Rules are globs, and
// cannot contain a space: ? stands for it, and for any other byte.
func pattern(prefix string) string { return globs.Replace(prefix) + "*" }

var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, ` `, `?`)

// refusedWhat distinguishes keys and channels from commands, in the words of Redis 6 and 7.
var refusedWhat = regexp.MustCompile(`access (a|one of the) (key|channel)`)
