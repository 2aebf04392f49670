package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/shown"
)

// lastNotes is how long the end of a command waits for a stderr that stands still.
const lastNotes = 200 * time.Millisecond

// program is one run of the command line.
type program struct {
	stdin, stdout, stderr *os.File
	connection            connection
}

// Main runs the command line and returns the exit code.
func Main(args []string, stdin, stdout, stderr *os.File) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr}
	root := p.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	code := exitCode(err)
	if err != nil && err.Error() != "" {
		hint := ""
		if code == exitNoQuorum {
			hint = ": quorumlock doctor says more"
		}
		p.note("%s%s", strings.TrimSuffix(oneLine(err), "."), hint)
	}
	return code
}

// note prints one line for a person to stderr.
func (p *program) note(format string, args ...any) {
	writeAll(p.stderr, shown.Text(fmt.Sprintf("quorumlock: "+format, args...))+"\n")
}

// aside returns a note that never waits for stderr: a terminal or a pipe that stands still must not keep the caller from
// its work. flush waits for the last notes, for a moment.
func (p *program) aside() (note func(format string, args ...any), flush func()) {
	lines := make(chan string, 64) // further ones are dropped; flush closes it
	done := make(chan struct{})
	go func() {
		defer close(done)
		for line := range lines {
			p.note("%s", line)
		}
	}()
	note = func(format string, args ...any) {
		select {
		case lines <- fmt.Sprintf(format, args...):
		default:
		}
	}
	return note, func() {
		close(lines)
		select {
		case <-done:
		case <-time.After(lastNotes):
		}
	}
}

// surviveClosedPipes makes a write to a closed pipe fail. Otherwise SIGPIPE would end this process, which has a lock to
// release and a command to end. The command does not inherit it.
func surviveClosedPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// line prints one line to stdout. A closed pipe ends the program by SIGPIPE.
func (p *program) line(format string, args ...any) {
	writeAll(p.stdout, shown.Text(fmt.Sprintf(format, args...))+"\n")
}

// These annotations mark the commands that use the flags of the connection: needsNodes through a Manager, needsServers
// also directly to each server.
var (
	needsNodes   = map[string]string{"nodes": "all"}
	needsServers = map[string]string{"nodes": "servers"}
)

func (p *program) root() *cobra.Command {
	version, _ := versions()
	root := &cobra.Command{
		Use:   "quorumlock",
		Short: "Run commands under a distributed lock on independent Redis masters",
		Long: `Quorumlock takes locks on a majority of independent Redis masters, runs
commands under them, and shows and checks the masters.

The flags below say how to reach the nodes, and every command has them. Each has
a variable, too: --node-timeout is QUORUMLOCK_NODE_TIMEOUT. A flag on the
command line wins over its variable.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			needs := cmd.Annotations["nodes"]
			if needs == "" {
				return nil
			}
			if err := p.connection.complete(cmd.Flags()); err != nil || needs == needsNodes["nodes"] {
				return err
			}
			return p.connection.onlyServers()
		},
		RunE: unknownCommand,
		Args: cobra.ArbitraryArgs,
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd.Name() == "run" && cmd.Flags().NArg() > 1 && cmd.ArgsLenAtDash() < 0 { // it reads the command's own flags
			return usagef(noDash)
		}
		return usagef("%s: see %s --help", oneLine(err), cmd.CommandPath())
	})
	p.connection.register(root.PersistentFlags())
	root.AddCommand(p.runCommand(), p.inspectCommand(), p.doctorCommand(), p.listCommand(), p.watchCommand(), p.webCommand(), p.askReleaseCommand(), p.revokeCommand(),
		p.acquireCommand(), p.renewCommand(), p.releaseCommand(), p.benchCommand(),
		p.versionCommand(), p.manCommand(), p.installDocsCommand())
	root.SetUsageTemplate(ownFlags(root.UsageTemplate()))
	return root
}

// ownFlags has a command's help show its own flags, and one line for the flags of the connection.
func ownFlags(template string) string {
	template = strings.Replace(template, "{{if .HasAvailableInheritedFlags}}", `{{if index .Annotations "nodes"}}`, 1)
	return strings.Replace(template, "Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}",
		`Flags for the connection, such as --nodes, and for --json: quorumlock --help`, 1)
}

// unknownCommand handles all other arguments of the root command: it shows help, or an error that names the commands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		return usagef("%q is not a command: did you mean %s?", args[0], strings.Join(meant, " or "))
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usagef("%q is not a command: use one of %s", args[0], strings.Join(names, ", "))
}

// exactly is cobra.ExactArgs with an error that names the missing arguments.
func exactly(what ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(what) {
			return nil
		}
		if len(what) == 0 {
			return usagef("%q is too much: %s takes no arguments", args[0], cmd.CommandPath())
		}
		return usagef("%d arguments given: %s takes %s", len(args), cmd.CommandPath(), strings.Join(what, " "))
	}
}

// writeAll writes a complete text, in which package shown has already escaped foreign text.
func writeAll(w io.Writer, text string) { _, _ = io.WriteString(w, text) }
