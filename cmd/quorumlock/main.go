// Quorumlock runs commands under a distributed lock, and shows and checks the
// Redis masters that the locks live on. See README.md.
package main

import (
	"os"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
