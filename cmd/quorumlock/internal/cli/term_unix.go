//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// size returns how large the terminal behind a file is, and whether it is one.
func size(f *os.File) (columns, rows int, terminal bool) {
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	if s.Col == 0 || s.Row == 0 { // a terminal that does not report its size
		return width, 24, true
	}
	return int(s.Col), int(s.Row), true
}
