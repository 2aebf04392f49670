package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// installDocsCommand writes what man and the shells read.
func (p *program) installDocsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install-docs [DIR]",
		Short: "Install the man pages and the completions of bash, zsh and fish",
		Long: `Install-docs writes the man pages and the completions for bash, zsh and fish
under DIR: ~/.local by default, or /usr/local for all users. Man, bash
and fish find them there; zsh needs the directory in its fpath.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				home, err := os.UserHomeDir()
				if err != nil {
					return usagef("%v: name the directory", err)
				}
				args = []string{filepath.Join(home, ".local")}
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it has the day; the header has a month, and SOURCE_DATE_EPOCH sets that
			forMan(root)
			for _, file := range []struct {
				path  string
				write func(path string) error
			}{
				{"man/man1/quorumlock.1", func(path string) error {
					return doc.GenManTree(root, &doc.GenManHeader{Title: "QUORUMLOCK", Section: "1", Source: "quorumlock", Manual: "quorumlock"}, filepath.Dir(path))
				}},
				{"bash-completion/completions/quorumlock", func(path string) error { return root.GenBashCompletionFileV2(path, true) }},
				{"zsh/site-functions/_quorumlock", root.GenZshCompletionFile},
				{"fish/vendor_completions.d/quorumlock.fish", func(path string) error { return root.GenFishCompletionFile(path, true) }},
			} {
				path := filepath.Join(args[0], "share", file.path)
				err := os.MkdirAll(filepath.Dir(path), 0o755)
				if err == nil {
					err = file.write(path)
				}
				if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) {
					return usagef("%v: name a directory that this user may write", err)
				} else if err != nil {
					return err // it has the path
				}
				p.printf("%s\n", path)
			}
			return nil
		},
	}
}

// forMan escapes what is an emphasis in Markdown, from which the man pages are made.
func forMan(c *cobra.Command) {
	escape := func(text *string) { *text = strings.ReplaceAll(*text, "_", `\_`) }
	escape(&c.Long)
	escape(&c.Short)
	c.Flags().VisitAll(func(f *pflag.Flag) { escape(&f.Usage) })
	c.PersistentFlags().VisitAll(func(f *pflag.Flag) { escape(&f.Usage) })
	for _, sub := range c.Commands() {
		forMan(sub)
	}
}
