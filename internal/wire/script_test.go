package wire

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Redis, and what speaks its protocol, learns from KEYS which keys a script uses. So each key that a script passes to a
// command is an element of KEYS, or a variable that is set to one and to nothing else.
func TestEveryKeyOfTheScriptsStandsInKEYS(t *testing.T) {
	keyless := strings.Fields("DBSIZE PUBLISH PUBSUB SCAN SPUBLISH TIME")
	const variables = `lock|queue|watch|set|lists|key|registers|made`
	isKey := regexp.MustCompile(`^(KEYS\[\d\]|` + variables + `)$`)
	isValue := regexp.MustCompile(`^(KEYS\[[\w +]+\]|lock|nil)$`)
	for name, script := range map[string]string{"Apply": Apply, "Lean": Lean} {
		calls := regexp.MustCompile(`\bp?call\('([A-Z]+)'((?:, [^,()]+)*)`).FindAllStringSubmatch(script, -1)
		assert.Greater(t, len(calls), 5, name)
		for _, call := range calls {
			args := strings.Split(call[2], ", ")[1:]
			switch {
			case slices.Contains(keyless, call[1]):
				args = nil
			case call[1] != "DEL" && call[1] != "MGET":
				args = args[:1]
			}
			for _, key := range args {
				assert.Regexp(t, isKey, key, "%s: %s", name, call[0])
			}
		}
		for _, set := range regexp.MustCompile(`(?m)^\s*(?:local )?((?:\w+, )*(?:`+variables+`)(?:, \w+)*) = (.*)$`).FindAllStringSubmatch(script, -1) {
			values := strings.Split(set[2], ", ")
			for i, variable := range strings.Split(set[1], ", ") {
				if isKey.MatchString(variable) && set[0] != "local key, arg = 6, 7 -- of the next operation" && !strings.HasSuffix(set[0], "key = i + step") { // the number of a key
					assert.Regexp(t, isValue, strings.Split(values[min(i, len(values)-1)], " --")[0], "%s: %s", name, set[0])
				}
			}
		}
		assert.NotRegexp(t, `\.\. '\\255[a-z]'|'\\255[a-z]' \.\.`, script, name)
	}
}
