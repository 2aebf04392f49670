//go:build unix

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// TestMain makes this test binary the program, when a test starts it so.
func TestMain(m *testing.M) {
	if os.Getenv("DEPLOY_MAIN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const patience = 2 * time.Minute // decides only when a hopeless test is given up

// pod is the program with the arguments of worker.yaml, except for those that a test must choose.
type pod struct {
	cmd    *exec.Cmd
	probes string        // its address
	leads  chan struct{} // closed when it leads
	ended  sync.WaitGroup
	err    error // of Wait; read it after ended
}

// start starts a pod. The TTL and the guard are 10 s: that is the TTL of the manifest, and the least
// guard that it allows.
func start(t *testing.T, servers []*redistest.Server, holder string) *pod {
	t.Helper()
	return startAt(t, redistest.Addrs(servers), holder)
}

func startAt(t *testing.T, addrs []string, holder string, more ...string) *pod {
	t.Helper()
	m := load(t)
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte(m.secret.StringData["password"]+"\n"), 0o600))
	own := map[string]string{
		"nodes": strings.Join(addrs, ","), "password-file": password, "holder": holder, "listen": "127.0.0.1:0", "guard": "10s",
	}
	args := more
	for name, value := range m.flags() {
		if other, ok := own[name]; ok {
			value = other
		}
		args = append(args, "-"+name+"="+value)
	}
	p := &pod{cmd: exec.Command(os.Args[0], args...), leads: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "DEPLOY_MAIN=1", "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	listens := make(chan string, 1) // one address is read, and never closed
	p.ended.Go(func() { p.follow(out, listens) })
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		p.ended.Wait()
	})
	select {
	case p.probes = <-listens:
	case <-time.After(patience):
		t.Fatal("the program does not listen")
	}
	return p
}

// follow reads the program's output until it ends.
func (p *pod) follow(out io.Reader, listens chan<- string) {
	address, led := regexp.MustCompile(`msg=probes addr=(\S+)`), false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if found := address.FindStringSubmatch(lines.Text()); found != nil {
			listens <- found[1]
		}
		if strings.Contains(lines.Text(), "msg=leading ") && !led {
			led = true
			close(p.leads)
		}
	}
	p.err = p.cmd.Wait()
}

// probe returns the status of a probe.
func (p *pod) probe(t *testing.T, path string) int {
	t.Helper()
	status, _ := p.get(t, path)
	return status
}

func (p *pod) get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.probes+path, nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, string(text)
}

func (p *pod) await(t *testing.T, path string, status int) {
	t.Helper()
	require.Eventually(t, func() bool { return p.probe(t, path) == status }, patience, 100*time.Millisecond, "%s is never %d", path, status)
}

// leading waits until it leads, and returns how long that took.
func (p *pod) leading(t *testing.T) time.Duration {
	t.Helper()
	begun := time.Now()
	select {
	case <-p.leads:
	case <-time.After(patience):
		t.Fatal("the pod does not lead")
	}
	return time.Since(begun)
}

// nodes returns servers with the arguments and the users of redis.yaml.
func nodes(t *testing.T) []*redistest.Server { return nodesWith(t, redistest.Options{}) }

func nodesWith(t *testing.T, options redistest.Options) []*redistest.Server {
	t.Helper()
	m := load(t)
	users := filepath.Join(t.TempDir(), "users.acl")
	acl := strings.Replace(m.secret.StringData["users.acl"], "user default off", "user default on nopass ~* &* +@all", 1) // for the tests
	require.NoError(t, os.WriteFile(users, []byte(acl), 0o644))
	args := append([]string{}, m.nodes.Spec.Template.Spec.Containers[0].Args...)
	require.Equal(t, "--aclfile", args[len(args)-2])
	args[len(args)-1] = users
	options.Args = args
	servers := redistest.StartWith(t, int(*m.nodes.Spec.Replicas), options)
	for _, s := range servers {
		require.NotNil(t, s.MustDo("ACL", "GETUSER", "quorumlock"))
	}
	return servers
}

// A Deployment replaces the leader: SIGTERM, and the next replica leads. After a leader is killed,
// the next replica waits until its lease has ended.
func TestAfterSIGTERMTheNextReplicaLeadsAtOnceAndNotAfterTheTTL(t *testing.T) {
	t.Parallel()
	servers := nodes(t)
	first := start(t, servers, "worker-1")
	first.leading(t)
	next := start(t, servers, "worker-2")
	next.await(t, "/ready", http.StatusOK)
	time.Sleep(time.Second) // it waits for its turn
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGTERM))
	took := next.leading(t)
	first.ended.Wait()
	require.NoError(t, first.err, "the program ends as it should")
	t.Logf("handed over in %v", took)
	assert.Less(t, took, 5*time.Second, "half of the TTL")

	last := start(t, servers, "worker-3")
	last.await(t, "/ready", http.StatusOK)
	time.Sleep(time.Second)
	require.NoError(t, next.cmd.Process.Kill())
	assert.Greater(t, last.leading(t), 5*time.Second, "a killed leader's lease has more than half of its TTL left")
	require.Eventually(t, func() bool { // two of three grant it, and a renewal puts it on the third one
		key, _ := servers[0].MustDo("GETRANGE", "quorumlock:leader/worker", "0", "-1").(string)
		return strings.Contains(key, "worker-3")
	}, patience, 50*time.Millisecond, "the pod's name is in the key")
}

func TestNodesThatAreDownMakeAReplicaUnreadyAndRestartNothing(t *testing.T) {
	t.Parallel()
	servers := nodes(t)
	for _, s := range servers {
		s.Kill()
	}
	p := start(t, servers, "worker-1")
	require.Equal(t, http.StatusServiceUnavailable, p.probe(t, "/startup"))
	require.Equal(t, http.StatusServiceUnavailable, p.probe(t, "/ready"))
	require.Equal(t, http.StatusOK, p.probe(t, "/live"))
	for _, s := range servers {
		s.Restart()
	}
	p.await(t, "/startup", http.StatusOK)
	p.await(t, "/ready", http.StatusOK) // the quarantine of new nodes has ended
	p.leading(t)
	_, metrics := p.get(t, "/metrics")
	require.Regexp(t, `(?m)^quorumlock_lease_active{.*quorumlock_name="leader/worker".*} 1$`, metrics, "the alerts see the leader")

	servers[0].Kill()
	time.Sleep(2 * time.Second)
	require.Equal(t, http.StatusOK, p.probe(t, "/ready"), "a majority votes")
	servers[1].Kill()
	p.await(t, "/ready", http.StatusServiceUnavailable)
	require.Equal(t, http.StatusOK, p.probe(t, "/startup"))
	require.Equal(t, http.StatusOK, p.probe(t, "/live"))
	servers[1].Restart()
	p.await(t, "/ready", http.StatusOK)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.ended.Wait()
	require.NoError(t, p.err)
}

func TestAPodWithTheAuthorityLeadsOnNodesWithTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewCA(t)
	var addrs []string
	for _, s := range nodesWith(t, redistest.Options{TLS: &redistest.TLS{CA: authority}}) {
		addrs = append(addrs, s.TLSAddr())
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, authority.PEM(), 0o600))
	startAt(t, addrs, "worker-1", "-ca="+ca).leading(t)

	other := filepath.Join(t.TempDir(), "other.crt")
	require.NoError(t, os.WriteFile(other, redistest.NewCA(t).PEM(), 0o600))
	stranger := startAt(t, addrs, "worker-2", "-ca="+other)
	time.Sleep(2 * time.Second)
	assert.Equal(t, http.StatusServiceUnavailable, stranger.probe(t, "/startup"), "it does not trust the nodes")
}
