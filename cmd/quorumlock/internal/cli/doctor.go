package cli

import "github.com/spf13/cobra"

func (p *program) doctorCommand() *cobra.Command { return &cobra.Command{Use: "doctor"} }
