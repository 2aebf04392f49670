package quorumlock_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The packages in a user's binary are a promise: rueidis, backoff, the OpenTelemetry API, and their dependencies. A new
// package needs a reason in the commit.
func TestAUsersBinaryHasNoOtherPackages(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64") // other platforms need other packages of x/sys
	out, err := list.Output()
	require.NoError(t, err)
	var others []string
	for _, pkg := range strings.Fields(string(out)) {
		if !strings.HasPrefix(pkg, "github.com/quorumlock/quorumlock") {
			others = append(others, pkg)
		}
	}
	slices.Sort(others)
	assert.Equal(t, []string{
		"github.com/cenkalti/backoff/v4",
		"github.com/cespare/xxhash/v2",
		"github.com/redis/rueidis",
		"github.com/redis/rueidis/internal/cmds",
		"github.com/redis/rueidis/internal/util",
		"go.opentelemetry.io/otel/attribute",
		"go.opentelemetry.io/otel/attribute/internal",
		"go.opentelemetry.io/otel/attribute/internal/xxhash",
		"go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/metric",
		"go.opentelemetry.io/otel/metric/embedded",
		"go.opentelemetry.io/otel/semconv/v1.43.0",
		"go.opentelemetry.io/otel/trace",
		"go.opentelemetry.io/otel/trace/embedded",
		"go.opentelemetry.io/otel/trace/internal/telemetry",
		"golang.org/x/sys/cpu",
	}, others)
}
