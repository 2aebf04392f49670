package cli

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
)

// typist is a command line that runs on its own terminal.
type typist struct {
	*exec.Cmd
	t      *testing.T
	master *os.File
	mu     sync.Mutex
	screen strings.Builder
	read   sync.WaitGroup
}

// atTerminal starts a command line as the leader of a session on a new terminal.
func atTerminal(t *testing.T, c *exec.Cmd) *typist {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 60}))
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, c.Start())
	require.NoError(t, slave.Close())
	y := &typist{Cmd: c, t: t, master: master}
	y.read.Go(func() {
		text := make([]byte, 4096)
		for {
			n, err := master.Read(text)
			if err != nil {
				return // no process has the terminal open any more
			}
			y.mu.Lock()
			y.screen.Write(text[:n])
			y.mu.Unlock()
		}
	})
	return y
}

func (y *typist) types(text string) {
	_, err := y.master.WriteString(text)
	require.NoError(y.t, err)
}

func (y *typist) shown() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.screen.String()
}

func (y *typist) sees(text string) {
	y.t.Helper()
	eventually(y.t, text, func() bool { return strings.Contains(y.shown(), text) })
}

// ends waits for the command line and returns its exit code.
func (y *typist) ends() int {
	_ = y.Wait()
	y.read.Wait()
	_ = y.master.Close()
	return y.ProcessState.ExitCode()
}

func TestACommandAtATerminalReadsItAndIsNotSuspended(t *testing.T) {
	t.Parallel()
	y := atTerminal(t, commandLine(t, three(t), "run", "job", "--", "sh", "-c", "read x; echo first=$x; read y; echo second=$y"))
	y.types("hello\n")
	y.sees("first=hello")
	y.types("\x1a") // Ctrl-Z
	y.sees("it continues")
	y.types("world\n")
	y.sees("second=world")
	assert.Equal(t, 0, y.ends())
}

func TestCtrlCReachesTheCommandBeforeAndAfterItHasTheTerminal(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	y := atTerminal(t, commandLine(t, addrs, "run", "job", "--", "sh", "-c", "echo begun; exec sleep 600"))
	y.sees("begun")
	y.types("\x03")
	assert.Equal(t, exitSignalBase+2, y.ends())

	y = atTerminal(t, commandLine(t, addrs, "run", "job", "--", "sh", "-c", "read x; echo got=$x; exec sleep 600"))
	y.types("it\n")
	y.sees("got=it")
	y.types("\x03")
	assert.Equal(t, exitSignalBase+2, y.ends())
}

// A shell that runs the command line has its terminal back afterwards.
func TestTheTerminalIsGivenBack(t *testing.T) {
	t.Parallel()
	c := commandLine(t, three(t))
	self := c.Path
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `"$0" run job -- sh -c 'read x; echo got=$x'; read y; echo then=$y`, self}
	c.Env = append(c.Env, "QUORUMLOCK_CLI_MAIN=1")
	y := atTerminal(t, c)
	y.types("one\n")
	y.sees("got=one")
	y.types("two\n")
	y.sees("then=two")
	assert.Equal(t, 0, y.ends())
}

func TestListRedrawsInPlaceWithinTheTerminal(t *testing.T) {
	t.Parallel()
	y := atTerminal(t, commandLine(t, three(t), "list", "--follow", "--interval", "100ms"))
	eventually(t, "several looks", func() bool { return strings.Count(y.shown(), "\x1b[H") > 2 })
	assert.Equal(t, 1, strings.Count(y.shown(), "\x1b[2J"), "the screen is emptied once")
	assert.Contains(t, y.shown(), "\x1b[1m", "in colour")
	y.types("\x03")
	assert.Equal(t, 0, y.ends())
	assert.Contains(t, y.shown(), "\x1b[?25h", "the cursor is back")
}

// A person at a terminal gets lines that fit. A program gets the unchanged names.
func TestListCutsNamesAtATerminalOnly(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	name, holder := strings.Repeat("n", config.MaxNameLen), strings.Repeat("h", config.MaxLabelLen)
	l, err := open(t, addrs, quorumlock.WithHolder(holder)).Acquire(t.Context(), name)
	require.NoError(t, err)
	for _, args := range [][]string{{"list"}, {"list", "n"}, {"inspect", name}} {
		o := invoke(t, addrs, args...)
		assert.Contains(t, o.stdout, name)
		assert.Contains(t, o.stdout, holder)
		assert.NotContains(t, o.stdout, "…")
		y := atTerminal(t, commandLine(t, addrs, args...))
		require.Equal(t, 0, y.ends())
		text := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(strings.ReplaceAll(y.shown(), "\r", ""), "")
		longest := 0
		for line := range strings.Lines(text) {
			longest = max(longest, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
		}
		assert.Equal(t, 60, longest, "the width of the terminal: %s", text)
	}
	require.NoError(t, l.Release(t.Context()))
}

func TestManShowsAPage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/man", []byte("#!/bin/sh\necho \"viewer $@\"; grep -c TH\n"), 0o700))
	c := commandLine(t, nil, "man", "run")
	c.Env = append(c.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	y := atTerminal(t, c)
	assert.Equal(t, 0, y.ends())
	assert.Equal(t, "viewer -l -\r\n1\r\n", y.shown())
}
