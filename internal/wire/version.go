package wire

import "fmt"

// OldestServer is the oldest version of Redis that may vote. Forks report, as redis_version, the version that
// they are compatible with.
const OldestServer = "7.0"

// TooOld returns why a server of a version cannot vote, nil if it can. A server that names no version may.
func TooOld(version string) error {
	var have, oldest [2]int
	_, _ = fmt.Sscanf(OldestServer, "%d.%d", &oldest[0], &oldest[1])
	if n, _ := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); n < 2 || have[0] > oldest[0] || have[0] == oldest[0] && have[1] >= oldest[1] {
		return nil
	}
	return &ConfigError{
		Problem: fmt.Sprintf("server is Redis %.32q, and locks need %s or later", version, OldestServer),
		Fix:     "upgrade it to Redis " + OldestServer + " or later, or to Valkey",
	}
}
