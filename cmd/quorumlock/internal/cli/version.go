package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
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
			t := &table{width: p.columns()}
			t.row("quorumlock", command)
			t.row("library", library)
			t.row("go", runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH)
			writeAll(p.stdout, t.String())
			return nil
		},
	}
}

// versions returns the versions of the command's module and of the library.
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
