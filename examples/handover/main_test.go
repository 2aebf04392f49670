//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
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
	if os.Getenv("HANDOVER_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is the example in a process of its own.
type process struct {
	cmd   *exec.Cmd
	leads chan int64 // tokens of the terms that it begins
	ended sync.WaitGroup
}

var leading = regexp.MustCompile(`msg=leading .*token=(\d+)`)

func start(t *testing.T, nodes, handle string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-nodes", nodes, "-handle", handle), leads: make(chan int64, 1000)}
	p.cmd.Env = append(os.Environ(), "HANDOVER_MAIN=1", "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.ended.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if found := leading.FindStringSubmatch(lines.Text()); found != nil {
				token, _ := strconv.ParseInt(found[1], 10, 64)
				p.leads <- token
			}
		}
		_ = p.cmd.Wait()
	})
	t.Cleanup(p.stop)
	return p
}

// stop ends the process as a deployment does.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.ended.Wait()
}

// term waits for the process to lead.
func (p *process) term(t *testing.T) int64 {
	t.Helper()
	select {
	case token := <-p.leads:
		return token
	case <-time.After(time.Minute):
		t.Fatal("the process does not lead")
		return 0
	}
}

// A leader is restarted fifty times while another process waits for the name, which never gets it.
func TestARestartShowsNoOtherLeader(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	nodes := strings.Join(redistest.Addrs(redistest.Start(t, 3)), ",")
	handle := filepath.Join(t.TempDir(), "handle")
	leader := start(t, nodes, handle)
	last := leader.term(t)
	other := start(t, nodes, filepath.Join(t.TempDir(), "other"))
	for range rounds {
		leader.stop()
		leader = start(t, nodes, handle)
		token := leader.term(t)
		if token <= last {
			t.Errorf("token %d follows %d", token, last)
		}
		last = token
	}
	if len(other.leads) > 0 {
		t.Errorf("another process has led in between, with token %d", <-other.leads)
	}
	_ = leader.cmd.Process.Kill() // it hands nothing over
	if token := other.term(t); token <= last {
		t.Errorf("token %d follows %d", token, last)
	}
}
