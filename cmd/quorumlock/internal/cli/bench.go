package cli

import "github.com/spf13/cobra"

func (p *program) benchCommand() *cobra.Command { return &cobra.Command{Use: "bench"} }
