//go:build linux

package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// stubborn ignores TERM, as do its children: one prints, one sleeps, and one is a child of a child. It writes its
// process id, which is also its group's.
const stubborn = `trap '' TERM INT HUP
(while :; do echo child; sleep 0.5; done) &
(sleep 600; :) &
( (while :; do echo grandchild; sleep 0.5; done) & sleep 600; : ) &
echo $$ >"$1"
while :; do echo command; sleep 0.5; done`

// children returns how many commands are tried: few in a normal run, see make cli-children.
func children(tb testing.TB) int {
	tb.Helper()
	text, given := os.LookupEnv("QUORUMLOCK_CLI_CHILDREN")
	if !given {
		return 6
	}
	n, err := strconv.Atoi(text)
	require.NoError(tb, err)
	return n
}

// lostTTL is long enough for a busy machine to keep the leases until they are taken away. together is how many commands
// run at one time.
const (
	lostTTL  = 6 * time.Second
	together = 5
)

// Every process of a command is dead when another client is granted the lock, whatever silences the nodes. The other
// client proves it: at its grant it looks for the processes.
func TestEveryProcessOfALostCommandIsDeadBeforeAnotherIsGrantedTheLock(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		claim string
		// silence takes the nodes away from the commands. It returns when another client can get every lock as soon as
		// its keys expire.
		silence func(servers []*redistest.Server, proxies []*redistest.Proxy)
	}{
		{"the servers are stopped and continued", func(servers []*redistest.Server, _ []*redistest.Proxy) {
			for _, s := range servers {
				s.Stop()
			}
			time.Sleep(lostTTL + rand.N(lostTTL/20)) // the last renewal was before: all keys are about to expire, or have
			for _, s := range servers {
				s.Continue()
			}
		}},
		{"the network swallows everything", func(_ []*redistest.Server, proxies []*redistest.Proxy) {
			for _, p := range proxies {
				p.Swallow()
			}
		}},
	} {
		t.Run(fault.claim, func(t *testing.T) {
			t.Parallel()
			for left := (children(t) + 1) / 2; left > 0; left -= together {
				loseTogether(t, min(left, together), fault.silence)
			}
		})
	}
}

// loseTogether runs commands, takes the nodes away, and looks at every grant that follows.
func loseTogether(t *testing.T, n int, silence func([]*redistest.Server, []*redistest.Proxy)) {
	servers := redistest.Start(t, 3)
	var proxies []*redistest.Proxy
	var through []string
	for _, s := range servers {
		p := redistest.NewProxy(t, s.Addr())
		proxies, through = append(proxies, p), append(through, p.Addr())
	}
	commands := make([]*running, n)
	for i := range commands {
		commands[i] = runStubborn(t, through, name(i))
	}
	other := open(t, redistest.Addrs(servers), quorumlock.WithTTL(30*time.Second))
	for slices.ContainsFunc(commands, func(c *running) bool { return !c.atWork() }) {
		for _, c := range commands {
			c.begins()
		}
	}
	t.Logf("all %d commands are at work, the nodes go silent", n)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	alive := make([][]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := other.Acquire(ctx, name(i))
			alive[i] = members(commands[i].group) // before anything else
			assert.NoError(t, err)
		})
	}
	silence(servers, proxies)
	wg.Wait()
	for i, c := range commands {
		assert.Empty(t, alive[i], "processes of %s live at the grant of another client", name(i))
		if len(alive[i]) > 0 {
			_ = syscall.Kill(-c.group, syscall.SIGKILL) // or the command line waits for it
		}
		<-c.ended
		assert.Equal(t, exitLost, c.ProcessState.ExitCode(), "%s", c.said())
		assert.Contains(t, c.said(), "the command is stopped")
	}
}

// running is a command line whose command ignores TERM.
type running struct {
	*exec.Cmd
	t     *testing.T
	addrs []string
	name  string
	dir   string
	ended chan struct{}
	group int
}

func runStubborn(t *testing.T, addrs []string, name string) *running {
	r := &running{t: t, addrs: addrs, name: name}
	r.start()
	return r
}

func (r *running) start() {
	r.dir, r.ended = r.t.TempDir(), make(chan struct{})
	r.Cmd = commandLine(r.t, r.addrs, "run", r.name, "--ttl", lostTTL.String(), "--", "sh", "-c", stubborn, "sh", filepath.Join(r.dir, "pid"))
	output, err := os.Create(filepath.Join(r.dir, "output"))
	require.NoError(r.t, err)
	r.Stdout, r.Stderr = output, output
	require.NoError(r.t, r.Start())
	go func(c *exec.Cmd, ended chan struct{}) {
		_ = c.Wait()
		_ = output.Close()
		close(ended)
	}(r.Cmd, r.ended)
}

// begins waits until the command and all its children run. On a starved machine no
// quorum answers in time, or the lease is lost too early: then it starts again.
func (r *running) begins() {
	eventually(r.t, "the command and its children run", func() bool {
		select {
		case <-r.ended:
			r.t.Logf("%s starts again: %s", r.name, r.said())
			r.start()
		default:
		}
		text, err := os.ReadFile(filepath.Join(r.dir, "pid"))
		line, _, complete := strings.Cut(string(text), "\n")
		if err != nil || !complete {
			return false
		}
		r.group, err = strconv.Atoi(line)
		require.NoError(r.t, err)
		return r.atWork()
	})
	group := r.group
	r.t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
}

// atWork reports whether the command and its children run.
func (r *running) atWork() bool { return r.group > 0 && len(members(r.group)) >= 4 }

// said returns the end of what the command line and its command have printed.
func (r *running) said() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "output"))
	require.NoError(r.t, err)
	return string(text[max(0, len(text)-1000):])
}

func name(i int) string { return fmt.Sprintf("job-%d", i) }
