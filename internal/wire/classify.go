package wire

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// moved lists the prefixes of errors from a server that is not the master now, or does not
// own the slot. Another server does, so the node is dialled again.
var moved = []string{"READONLY", "MOVED"}

// transient lists the beginnings of Redis errors that pass by themselves; rueidis has removed a leading ERR. An error
// in neither transient nor fixes comes from our own script, or from an ACL inside it (Redis 7.0 has no NOPERM there,
// only ERR), and an operator must act.
var transient = []string{
	"LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "MISCONF", "CLUSTERDOWN",
	"UNKILLABLE", "OOM", "Script killed by user",
}

// halfMoved lists the beginnings of the errors of a server that finds the keys of a slot in two places. TRYAGAIN: some
// of the keys are here, and others have been moved or do not exist. ASK: none is here. The last two come from a script
// whose keys are here but that uses another key: from Redis, and from Valkey since 9.0. All our keys are in one slot,
// so the errors have no other meaning.
var halfMoved = []string{"TRYAGAIN", "ASK", "Script attempted to access a non local key", "Attempted to access a non local key"}

// fixes lists the remedies for errors, by how their texts begin.
var fixes = []struct{ prefix, fix string }{
	{"CROSSSLOT", "list standalone masters: this node is part of a cluster"},
	{"WRONGPASS", "set Username and Password of the node"},
	{"NOPERM", "give the user the rights in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights"},
	{"ACL failure in script", "give the user the rights in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights"}, // the text of NOPERM since 7.2
	{"WRONGTYPE", "another program uses this key: choose another prefix or name"},
	{"DB index is out of range", "set SelectDB to a database that the server has: 0 always exists"},
	{"unknown command", unknownCommand},
	{"Unknown Redis command called from script", unknownCommand},
	{"Unknown command called from script", unknownCommand}, // of Valkey
	{"unsupported command", unknownCommand},                // of proxies
	{"invalid request", unknownCommand},
	{"NOPROTO", "set AlwaysRESP2: the server or proxy does not speak RESP3"},
	{"The user executing the script can't access at least one of the keys", "give the user the keys in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights"},
	{"quorumlock:", "another program wrote to the keys of this prefix: choose another prefix"},
}

// lacksScripts matches the answers of servers that run no scripts. The second is Garnet's.
var lacksScripts = regexp.MustCompile("(?i)^unknown command ['`\"]?(script|evalsha)|Lua scripting support disabled")

const unknownCommand = "do not rename commands that locks need (https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights); if a proxy answers, name the server itself, " +
	"or set AlwaysRESP2 where the proxy lacks only HELLO"

const defaultFix = "no supported server gives this answer: see https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#an-unknown-answer"

// Classify returns what an error of the server means for the request that it answers; 0 for an
// error that is not the server's. NotApplied needs certainty: a failed attempt sends no release to
// such a node, so a mistake leaves a lock behind.
func Classify(err error) (Status, error) {
	var operation OperationError
	if errors.As(err, &operation) {
		return classifyText(operation.Error(), err)
	}
	if redis, ok := rueidis.IsRedisErr(err); ok {
		if redis.IsNoScript() {
			return NotApplied, err
		}
		return classifyText(redis.Error(), err)
	}
	return 0, err
}

// classifyText is Classify for the text of an error.
func classifyText(text string, err error) (Status, error) {
	switch {
	case strings.HasPrefix(text, "max number of clients"):
		return NotApplied, err
	case strings.Contains(text, "OOM command not allowed"), strings.Contains(text, "BUSY Redis is busy"):
		return Failed, err // inside a script the code is not always the first word
	case begins(text, moved):
		return Failed, &AwayError{err}
	case begins(text, halfMoved):
		return Failed, fmt.Errorf("%w: %w", ErrMoving, err)
	case begins(text, transient):
		return Failed, err
	case strings.HasPrefix(text, "NOAUTH"):
		return Misconfigured, PasswordError("server", "Username and Password of the node")
	}
	problem := strings.TrimSuffix(text, ".") // the fix follows
	switch {
	case lacksScripts.MatchString(text):
		return Misconfigured, &ConfigError{Problem: problem, Fix: "use a server that runs Lua scripts, as Redis and Valkey do: every lock needs them"}
	case strings.Contains(text, "undeclared key"):
		return Misconfigured, &ConfigError{Problem: problem, Fix: "report this with the server's name and version: the scripts declare each key in KEYS"}
	}
	if command := forbidden.FindStringSubmatch(text); command != nil {
		return Misconfigured, &ConfigError{Problem: problem, Fix: giveRights(command[1])}
	}
	for _, f := range fixes {
		if strings.HasPrefix(text, f.prefix) {
			return Misconfigured, &ConfigError{Problem: problem, Fix: f.fix, List: f.prefix == "CROSSSLOT"}
		}
	}
	return Misconfigured, &ConfigError{Problem: problem, Fix: defaultFix}
}

// forbidden is how Redis names a command that a user may not run, and from 7.2 on also in a script.
var forbidden = regexp.MustCompile(`^(?:NOPERM|ACL failure in script).* no permissions to run the '([^']+)' command`)

// giveRights is the fix for missing rights.
func giveRights(rights string) string {
	return "give the user +" + rights + ", and the other rights in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights"
}

// begins reports whether a text begins with one of these words.
func begins(text string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(text, word) })
}

// missingScan names the right that only a Scan needs.
func missingScan(err error) error {
	var config *ConfigError
	if !errors.As(err, &config) {
		return err
	}
	for _, refusal := range []string{"can't run this command", "ACL failure in script", "NOPERM"} {
		if strings.Contains(config.Problem, refusal) {
			return &ConfigError{Problem: config.Problem, Fix: "give the user +scan, which only List needs"}
		}
	}
	return err
}

// MissingRight names the right that the script lacks. Redis 7.0 reports only that the
// user may not run a command, and the line of the script; Classify reads what 7.2 and later report.
// If a single operation fails, the script names the rights. Only two commands end it as a whole.
func MissingRight(err error) error {
	var config *ConfigError
	if !errors.As(err, &config) || !strings.Contains(config.Problem, "can't run this command") {
		return err
	}
	_, rights, named := strings.Cut(config.Problem, "subcommand +")
	switch {
	case named:
	case strings.Contains(config.Problem, "@user_script:"):
		rights = "time +mget"
	default:
		return err
	}
	return &ConfigError{Problem: config.Problem, Fix: giveRights(rights)}
}
