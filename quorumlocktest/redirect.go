package quorumlocktest

import (
	"slices"
	"strconv"
)

// elsewhere refuses a command with keys of another server of the cluster. The caller holds node.exec.
func (p *process) elsewhere(s *session, cmd string, args []string) []byte {
	if s.multi {
		p.dispatch(s, "GET") // an error, so that miniredis refuses EXEC
	}
	return errorReply(p.redirect(cmd, args))
}

// redirect returns the text of that error, "" for a command that the node may run.
func (p *process) redirect(cmd string, args []string) string {
	if p.node.slots == nil {
		return ""
	}
	return p.node.slots.redirect(p.node.index, keysOf(cmd, args))
}

// keysOf returns the keys of a command, and its shard channels. Of a command that is not listed here, the first
// argument is the only key that counts.
func keysOf(cmd string, args []string) []string {
	switch {
	case slices.Contains(scripts, cmd):
		if len(args) < 2 {
			return nil
		}
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 0 || n > len(args)-2 {
			return nil
		}
		return args[2 : 2+n]
	case slices.Contains(keyless, cmd), len(args) == 0:
		return nil
	case slices.Contains(allKeys, cmd):
		return args
	}
	return args[:1]
}

var (
	scripts = []string{"EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO"}
	allKeys = []string{"DEL", "EXISTS", "MGET", "SSUBSCRIBE", "SUNSUBSCRIBE", "TOUCH", "UNLINK", "WATCH"}
	// keyless lists commands whose first argument is not a key.
	keyless = []string{
		"AUTH", "BITOP", "BLMPOP", "BZMPOP", "CLIENT", "CLUSTER", "COMMAND", "DBSIZE", "DISCARD", "ECHO", "EXEC", "FLUSHALL", "FLUSHDB", "HELLO", "INFO", "KEYS", "LMPOP", "MEMORY", "MULTI",
		"OBJECT", "PING", "PSUBSCRIBE", "PUBLISH", "PUBSUB", "PUNSUBSCRIBE", "QUIT", "RANDOMKEY", "RESET", "SCAN", "SCRIPT", "SELECT", "SINTERCARD", "SUBSCRIBE",
		"SWAPDB", "TIME", "UNSUBSCRIBE", "UNWATCH", "WAIT", "XGROUP", "XINFO", "XREAD", "XREADGROUP", "ZMPOP", "ZUNION",
	}
)
