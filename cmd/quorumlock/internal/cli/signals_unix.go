//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// ending returns the signals that end a wait for a lock, and that go to the command once it runs. A signal that was
// ignored when this process began, as nohup ignores HUP, stays ignored.
func ending() (signals []os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// passedOn returns the other signals that the command gets from us.
func passedOn() []os.Signal { return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2} }

// jobControl returns the signals of a terminal that concern this process: a stopped process does not renew its lease.
func jobControl() []os.Signal { return []os.Signal{syscall.SIGTSTP, syscall.SIGCONT} }

const (
	signalStop     = syscall.SIGTSTP
	signalContinue = syscall.SIGCONT
)
