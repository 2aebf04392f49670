package main

import (
	_ "github.com/quorumlock/quorumlock"
	_ "github.com/redis/rueidis"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/cobra/doc"
	_ "golang.org/x/sys/unix"
)

func main() {}
