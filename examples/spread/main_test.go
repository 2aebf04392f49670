//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// TestMain makes this test binary the example, when a test starts it so.
func TestMain(m *testing.M) {
	if os.Getenv("SPREAD_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const shards = 12

// group has the processes of the example, and their reports about the shards.
type group struct {
	t     *testing.T
	nodes string

	mu     sync.Mutex
	tokens map[string]int64        // the last of a shard; guarded by mu
	shares map[int]map[string]bool // the shards of each process; guarded by mu
}

type process struct {
	*exec.Cmd
	g     *group
	ended sync.WaitGroup
}

var said = regexp.MustCompile(`msg=(consuming|stopped) .*shard=(\S+) token=(\d+)`)

func (g *group) start() *process {
	g.t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], "-nodes", g.nodes, "-shards", strconv.Itoa(shards), "-ttl", "5s"), g: g}
	p.Env = append(os.Environ(), "SPREAD_MAIN=1", "GORACE=atexit_sleep_ms=0")
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.shares[p.Process.Pid] = map[string]bool{}
	g.mu.Unlock()
	p.ended.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if found := said.FindStringSubmatch(lines.Text()); found != nil {
				token, _ := strconv.ParseInt(found[3], 10, 64)
				g.note(p.Process.Pid, found[1] == "consuming", found[2], token)
			}
		}
		_ = p.Wait()
		g.mu.Lock()
		delete(g.shares, p.Process.Pid)
		g.mu.Unlock()
	})
	g.t.Cleanup(func() { _ = p.Process.Kill(); p.ended.Wait() })
	return p
}

// note checks that the tokens of a shard grow.
func (g *group) note(pid int, begins bool, shard string, token int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !begins {
		delete(g.shares[pid], shard)
		return
	}
	if token <= g.tokens[shard] {
		g.t.Errorf("%s: token %d follows %d", shard, token, g.tokens[shard])
	}
	g.tokens[shard] = token
	g.shares[pid][shard] = true
}

// even waits until the processes given have equal shares of all shards.
func (g *group) even(what string, all ...*process) {
	g.t.Helper()
	began := time.Now()
	for {
		g.mu.Lock()
		even, state := true, []string{}
		for _, p := range all {
			n := len(g.shares[p.Process.Pid])
			even = even && n == shards/len(all)
			state = append(state, fmt.Sprint(n))
		}
		g.mu.Unlock()
		if even {
			g.t.Logf("%s: even after %.1f s", what, time.Since(began).Seconds())
			return
		}
		if time.Since(began) > time.Minute {
			g.t.Fatalf("%s: uneven: %s", what, strings.Join(state, " "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Processes on three real servers join, leave, are killed and stopped; a server dies.
func TestTheShardsAreSpreadOverTheProcessesThatLive(t *testing.T) {
	servers := redistest.Start(t, 3)
	g := &group{t: t, nodes: strings.Join(redistest.Addrs(servers), ","), tokens: map[string]int64{}, shares: map[int]map[string]bool{}}
	a, b := g.start(), g.start()
	g.even("two processes", a, b)
	c := g.start()
	g.even("a third", a, b, c)
	_ = a.Process.Signal(syscall.SIGTERM)
	a.ended.Wait()
	g.even("SIGTERM", b, c)
	d := g.start()
	g.even("another", b, c, d)
	_ = b.Process.Kill()
	g.even("SIGKILL", c, d)
	_ = c.Process.Signal(syscall.SIGSTOP)
	g.even("SIGSTOP", d)
	_ = c.Process.Signal(syscall.SIGCONT)
	g.even("SIGCONT", c, d)
	servers[0].Kill()
	e := g.start()
	g.even("a third without a server", c, d, e)
}
