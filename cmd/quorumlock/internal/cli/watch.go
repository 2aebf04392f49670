package cli

import "github.com/spf13/cobra"

func (p *program) watchCommand() *cobra.Command { return &cobra.Command{Use: "watch"} }
