//go:build !unix

package cli

import (
	"os"
	"syscall"
)

func ending() []os.Signal     { return []os.Signal{os.Interrupt} }
func passedOn() []os.Signal   { return nil }
func jobControl() []os.Signal { return nil }

// Signals that this system does not have.
const (
	signalStop     = syscall.Signal(-1)
	signalContinue = syscall.Signal(-2)
)
