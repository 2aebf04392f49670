package cli

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const module = "github.com/quorumlock/quorumlock"

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of the command, the library and Go",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			command, library := versions()
			if p.connection.json {
				return p.printJSON(map[string]string{"version": command, "library": library, "go": runtime.Version()})
			}
			t := &table{width: width}
			t.row("quorumlock", command)
			t.row("library", library)
			t.row("go", runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH)
			writeAll(p.stdout, t.String())
			return nil
		},
	}
}

// versions returns those of the command's module and of the library's.
func versions() (command, library string) {
	command, library = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return command, library
	}
	if info.Main.Version != "" {
		command = info.Main.Version
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			library = dependency.Version
		}
	}
	return command, library
}

// manCommand writes the man pages. It is for packagers, and hidden.
func (p *program) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the man pages into a directory",
		Hidden: true,
		Args:   exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return usagef("%v: name a directory that this user may write", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // a page is the same whenever it is made
			return doc.GenManTree(root, &doc.GenManHeader{Title: "QUORUMLOCK", Section: "1", Source: "quorumlock", Manual: "quorumlock"}, args[0])
		},
	}
}
