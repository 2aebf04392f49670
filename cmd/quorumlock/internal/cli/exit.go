package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/quorumlock/quorumlock"
)

// Exit codes, as README.md lists them. Those above 63 are from sysexits.h, those from 126 on are from env(1) and the
// shell.
const (
	exitOK         = 0
	exitWarnings   = 1 // doctor: the nodes work and need attention, or no failover was seen
	exitBroken     = 2 // doctor: a node cannot vote, the nodes are not independent, or an endpoint must not be the only node
	exitUsage      = 64
	exitNoQuorum   = 69
	exitInternal   = 70
	exitConflict   = 75
	exitLost       = 76
	exitCannotRun  = 126
	exitNotFound   = 127
	exitSignalBase = 128
)

// exitError is an end with an exit code. An empty text prints nothing: the command has already printed everything.
type exitError struct {
	code int
	text string
	err  error
}

func (e *exitError) Error() string {
	if e.err != nil {
		return oneLine(e.err)
	}
	return e.text
}

func (e *exitError) Unwrap() error { return e.err }

// usagef returns an error of the caller: value, bound and fix.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// exitCode returns the exit code for an error that a command has returned.
func exitCode(err error) int {
	var exit *exitError
	var node *quorumlock.NodeError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, quorumlock.ErrLost):
		return exitLost // even if another client has the lock now
	case errors.Is(err, context.Canceled):
		return exitSignalBase + int(syscall.SIGINT) // only a signal ends the context of a command
	case errors.Is(err, quorumlock.ErrHeld):
		return exitConflict
	case errors.Is(err, quorumlock.ErrNoQuorum), errors.As(err, &node):
		return exitNoQuorum // a node that needs a fix is not a fault of the command line
	case errors.Is(err, quorumlock.ErrInvalid):
		return exitUsage
	}
	return exitInternal
}

// flagNames maps the library's options in errors to the flags that set them.
var flagNames = strings.NewReplacer("WithTTL", "--ttl", "WithMinHold", "--min-hold", "WithHolder", "--holder", "WithStartupWait", "--wait", "WithWait", "--wait",
	"WithObserveEvery", "--every", "WithPrefix", "--prefix", "WithNodeTimeout", "--node-timeout", "WithRestartGuard", "--restart-guard", "WithGuardRollout", "--guard-rollout", "WithFailover", "--failover-window",
	"TLSConfig.Certificates", "--tls-cert and --tls-key", "TLSConfig.RootCAs", "--tls-ca", "TLSConfig.ServerName", "--tls-server-name", "TLSConfig", "--tls", "Username and Password of", "--username and --password-file for")

// oneLine returns the text of an error on one line, in the words of the command line. It has flags for options, and
// omits the name of the library before each part, because the name of the program is already there.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(line), "quorumlock: ")
	}
	return flagNames.Replace(strings.Join(lines, "; "))
}
