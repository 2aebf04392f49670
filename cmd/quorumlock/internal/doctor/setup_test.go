//go:build unix

package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
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

// The server is started with docs/redis.conf and docs/users.acl as they are, but for paths and the port.
func TestANodeThatIsSetUpAsTheDocumentsSayIsSound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(docs + "redis.conf")
	require.NoError(t, err)
	users, err := os.ReadFile(docs + "users.acl")
	require.NoError(t, err)
	dir, ca := t.TempDir(), redistest.NewCA(t)
	certificate := ca.Certificate("127.0.0.1")
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"node.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		"node.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca.crt":   ca.PEM(), "users.acl": users,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing to cancel
	require.NoError(t, err)
	addr := free.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	require.NoError(t, free.Close())
	config := strings.NewReplacer("/etc/redis", dir, "/var/lib/redis", dir, "bind * -::*", "bind 127.0.0.1", "tls-port 6379", "tls-port "+port).Replace(string(text))
	require.NotContains(t, config, "6379")
	file := filepath.Join(dir, "redis.conf")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))

	ctx, cancel := context.WithCancel(context.Background())
	bin := os.Getenv("REDIS_SERVER")
	if bin == "" {
		bin = "redis-server"
	}
	server := exec.CommandContext(ctx, bin, file)
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	defer func() {
		cancel()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	option := rueidis.ClientOption{InitAddress: []string{addr}, Username: "quorumlock", Password: "CHANGE-ME", TLSConfig: ca.ClientConfig()}
	var n Node
	require.Eventually(t, func() bool {
		n = Probe(ctx, option, prefix)
		return n.Answers()
	}, 20*time.Second, 100*time.Millisecond, "%+v", n.Fault)
	assert.Empty(t, found(Judge([]Node{n}, guarded)))

	option.Username, option.Password = "admin", "CHANGE-ME-ADMIN"
	admin, err := rueidis.NewClient(option)
	require.NoError(t, err)
	defer admin.Close()
	require.NoError(t, admin.Do(ctx, admin.B().AclSave().Build()).Error(), "an administrator's change outlives a restart")
	option.Username, option.Password = "", ""
	n = Probe(ctx, option, prefix)
	require.NotNil(t, n.Fault)
	assert.Equal(t, CodePassword, n.Fault.Code, "the user default is off")
}
