package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// installDocsCommand installs the files that man and the shells read.
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
			root := manRoot(cmd)
			for _, file := range []struct {
				path  string
				write func(path string) error
			}{
				{"man/man1/quorumlock.1", func(path string) error {
					return doc.GenManTree(root, manHeader(), filepath.Dir(path))
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
				p.line("%s", path)
			}
			return nil
		},
	}
}

// manCommand shows a man page that is not installed.
func (p *program) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man [COMMAND]",
		Aliases: []string{"docs", "manual"},
		Short:   "Show the man page of quorumlock, or of a command",
		Long: `Man shows the man page of quorumlock or of COMMAND, by man(1). If its output is
piped, or there is no man(1), it prints the source of the page. Install-docs
installs all pages.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			of := manRoot(cmd)
			if len(args) > 0 {
				found, _, err := of.Find(args)
				if err != nil || found == of {
					return unknownCommand(of, args)
				}
				of = found
			}
			var page bytes.Buffer
			if err := doc.GenMan(of, manHeader(), &page); err != nil {
				return err
			}
			viewer, err := exec.LookPath("man")
			if _, _, terminal := size(p.stdout); err != nil || !terminal {
				writeAll(p.stdout, page.String())
				return nil
			}
			show := exec.CommandContext(cmd.Context(), viewer, "-l", "-")
			show.Stdin, show.Stdout, show.Stderr = &page, p.stdout, p.stderr
			return show.Run()
		},
	}
}

// manRoot returns the root command in a form for man pages.
func manRoot(cmd *cobra.Command) *cobra.Command {
	root := cmd.Root()
	root.DisableAutoGenTag = true // it has the day; the header has a month, which SOURCE_DATE_EPOCH sets
	forMan(root)
	return root
}

func manHeader() *doc.GenManHeader {
	return &doc.GenManHeader{Section: "1", Source: "quorumlock", Manual: "quorumlock"}
}

// forMan escapes the characters of emphasis in Markdown, from which the man pages are made.
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
