package quorumlock_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What is compiled into a user's binary is a promise: rueidis, backoff, the OpenTelemetry
// API, and what these need. A package that is new here needs a reason in the commit.
func TestAUsersBinaryHasNoOtherPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	var others []string
	for _, pkg := range strings.Fields(string(out)) {
		if !strings.HasPrefix(pkg, "github.com/quorumlock/quorumlock") {
			others = append(others, pkg)
		}
	}
	slices.Sort(others)
	assert.Equal(t, []string{}, others)
}
