//go:build unix

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

const docs = "../../../../docs/"

func TestTheFileOfUsersHasTheRightsOfTheReference(t *testing.T) {
	page, err := os.ReadFile(docs + "reference.md")
	require.NoError(t, err)
	users, err := os.ReadFile(docs + "users.acl")
	require.NoError(t, err)
	command := regexp.MustCompile("(?s)redis-cli ACL SETUSER quorumlock (.*?)\n```").FindStringSubmatch(string(page))
	line := regexp.MustCompile(`(?m)^user quorumlock (.*)$`).FindStringSubmatch(string(users))
	require.Len(t, command, 2)
	require.Len(t, line, 2)
	given := strings.Fields(strings.NewReplacer("'", "", "\\\n", "").Replace(command[1]))
	assert.ElementsMatch(t, append(given[1:], "+scan"), strings.Fields(line[1]), "and +scan, for quorumlock list") // without reset
}

// The server is started with docs/redis.conf, its certificates and docs/users.acl unchanged, except for paths, address
// and port.
func TestANodeThatIsSetUpAsTheDocumentsSayIsSound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "redis.conf")
	require.NoError(t, err)
	users, err := os.ReadFile(docs + "users.acl")
	require.NoError(t, err)
	dir := t.TempDir()
	authority := certificates(t, string(text), dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users.acl"), users, 0o600))
	config := strings.NewReplacer("/etc/redis", dir, "/var/lib/redis", dir, "bind * -::*", "bind 127.0.0.1").Replace(string(text))
	addr := startWith(t, config, filepath.Join(dir, "redis.conf"))

	option := rueidis.ClientOption{InitAddress: []string{addr}, Username: "quorumlock", Password: "CHANGE-ME", TLSConfig: &tls.Config{RootCAs: authority}}
	n := Probe(t.Context(), option, prefix)
	require.True(t, n.Answers(), "%+v", n.Fault)
	assert.Empty(t, found(Judge([]Node{n}, guarded)))

	option.Username, option.Password = "admin", "CHANGE-ME-ADMIN"
	admin, err := rueidis.NewClient(option)
	require.NoError(t, err)
	defer admin.Close()
	require.NoError(t, admin.Do(t.Context(), admin.B().AclSave().Build()).Error(), "an administrator's change outlives a restart")

	option.Username, option.Password, option.DisableCache = "monitor", "CHANGE-ME-MONITOR", true
	monitor, err := rueidis.NewClient(option)
	require.NoError(t, err)
	defer monitor.Close()
	require.NoError(t, monitor.Do(t.Context(), monitor.B().Info().Build()).Error())
	require.ErrorContains(t, monitor.Do(t.Context(), monitor.B().Get().Key(prefix+"job").Build()).Error(), "NOPERM")

	option.Username, option.Password = "", ""
	n = Probe(t.Context(), option, prefix)
	require.NotNil(t, n.Fault)
	assert.Equal(t, CodePassword, n.Fault.Code, "the user default is off")
}

// certificates runs the commands in the comments of docs/redis.conf, for 127.0.0.1, and returns the authority. Without
// OpenSSL 3 it makes the same files itself.
func certificates(t *testing.T, text, dir string) *x509.CertPool {
	t.Helper()
	version, err := exec.CommandContext(t.Context(), "openssl", "version").Output()
	if err != nil || !bytes.HasPrefix(version, []byte("OpenSSL ")) || bytes.HasPrefix(version, []byte("OpenSSL 1")) {
		t.Logf("the commands are not tried: they need OpenSSL 3 or newer: %s %v", version, err)
		ca := redistest.NewCA(t)
		require.NoError(t, redistest.WritePEM(ca.Certificate("127.0.0.1"), filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key")))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), ca.PEM(), 0o600))
		return ca.ClientConfig().RootCAs
	}
	commands := regexp.MustCompile(`(?m)^#   openssl (.*)$`).FindAllStringSubmatch(text, -1)
	require.Len(t, commands, 2)
	for _, command := range commands {
		words := strings.Fields(strings.Replace(command[1], "DNS:redis-a,IP:10.0.0.1", "IP:127.0.0.1", 1))
		openssl := exec.CommandContext(t.Context(), "openssl", words...)
		openssl.Dir = dir
		said, err := openssl.CombinedOutput()
		require.NoError(t, err, "%s: %s", command[0], said)
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	authority := x509.NewCertPool()
	require.True(t, authority.AppendCertsFromPEM(pem))
	return authority
}

// startWith starts a server with a configuration, on a free port instead of the usual one, and returns its address. It
// takes another port if another process was faster.
func startWith(t *testing.T, config, file string) (addr string) {
	t.Helper()
	bin := cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")
	for range 5 {
		free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing to cancel
		require.NoError(t, err)
		addr = free.Addr().String()
		_, port, _ := net.SplitHostPort(addr)
		require.NoError(t, free.Close())
		require.Equal(t, 1, strings.Count(config, "\ntls-port 6379\n"))
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(config, "tls-port 6379", "tls-port "+port, 1)), 0o600))
		log, err := os.Create(file + ".log")
		require.NoError(t, err)
		server := exec.CommandContext(context.Background(), bin, file)
		server.Stdout, server.Stderr = log, log
		require.NoError(t, server.Start())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = server.Wait()
		}()
		t.Cleanup(func() {
			_ = server.Process.Kill()
			<-ended
			_ = log.Close()
		})
		var said []byte
		require.Eventually(t, func() bool {
			said, err = os.ReadFile(log.Name())
			return err == nil && (bytes.Contains(said, []byte("Ready to accept connections")) || isClosed(ended))
		}, 20*time.Second, 20*time.Millisecond)
		if !isClosed(ended) {
			return addr
		}
		require.Contains(t, string(said), "Address already in use")
	}
	require.Fail(t, "no free port")
	return addr
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
