//go:build unix

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// underway starts a command that runs under the lock until a file appears.
type underway struct {
	*exec.Cmd
	stderr bytes.Buffer
	end    string
}

func startUnderLock(t *testing.T, addr string, flags ...string) *underway {
	t.Helper()
	dir := t.TempDir()
	u := &underway{end: filepath.Join(dir, "end")}
	args := append(append([]string{"run", "job", "--ttl", "4s"}, flags...), "--", "sh", "-c", `echo > "$0"; until [ -e "$1" ]; do sleep 0.1; done`)
	u.Cmd = commandLine(t, []string{addr}, append(args, filepath.Join(dir, "begun"), u.end)...)
	u.Stderr = &u.stderr
	require.NoError(t, u.Start())
	written(t, filepath.Join(dir, "begun"))
	return u
}

// keeps checks that the command keeps its lock for longer than a TTL, and ends well.
func (u *underway) keeps(t *testing.T, s *redistest.Server) {
	t.Helper()
	owner := s.MustDo("GETRANGE", "quorumlock:job", "0", "31")
	require.Len(t, owner, 32)
	for until := time.Now().Add(6 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		require.Equal(t, owner, s.MustDo("GETRANGE", "quorumlock:job", "0", "31"))
	}
	require.NoError(t, os.WriteFile(u.end, nil, 0o600))
	_ = u.Wait()
	assert.Equal(t, exitOK, u.ProcessState.ExitCode(), u.stderr.String())
	assert.NotContains(t, u.stderr.String(), "lost")
}

func TestRunKeepsItsLockWhenThePasswordChanges(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1, "--user", "u", "on", ">first", "~*", "&*", "+@all")[0]
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	u := startUnderLock(t, s.Addr(), "--username", "u", "--password-file", file)
	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	s.MustDo("ACL", "SETUSER", "u", "resetpass", ">second")
	s.MustDo("CLIENT", "KILL", "USER", "u")
	u.keeps(t, s)
}

func TestAWarningSaysThatThePasswordIsWrong(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1, "--user", "u", "on", ">first", "~*", "&*", "+@all")[0]
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	u := startUnderLock(t, s.Addr(), "--username", "u", "--password-file", file)
	s.MustDo("ACL", "SETUSER", "u", "resetpass", ">second")
	s.MustDo("CLIENT", "KILL", "USER", "u")
	_ = u.Wait()
	assert.Equal(t, exitLost, u.ProcessState.ExitCode())
	assert.Regexp(t, `(?m)^quorumlock: "job" is at risk: 0 of 1 nodes confirmed its renewal, .* left; node 0 .*WRONGPASS`, u.stderr.String())
	assert.Regexp(t, `(?m)^quorumlock: "job" is not renewed, .* left: the command is stopped; node 0 .*WRONGPASS`, u.stderr.String())
	assert.NotContains(t, u.stderr.String(), "first")
}

func TestAnEmptyPasswordFileIsNotAnotherUser(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	o := invoke(t, nil, "inspect", "job", "--password-file", file)
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "the first line of "+file+" is empty")
}

// writeCA writes the certificate of an authority.
func writeCA(t *testing.T, ca *redistest.CA, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, ca.PEM(), 0o600))
}

func TestRunKeepsItsLockWhenAllCertificatesChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	old, next := redistest.NewCA(t), redistest.NewCA(t)
	s := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: old, Clients: old}})[0]
	writeCA(t, old, file("ca"))
	require.NoError(t, redistest.WritePEM(old.Certificate("client"), file("cert"), file("key")))
	u := startUnderLock(t, s.TLSAddr(), "--tls-ca", file("ca"), "--tls-cert", file("cert"), "--tls-key", file("key"))

	writeCA(t, next, file("server-ca"))
	require.NoError(t, redistest.WritePEM(next.Certificate("127.0.0.1"), file("server-cert"), file("server-key")))
	s.MustDo("CONFIG", "SET", "tls-cert-file", file("server-cert"), "tls-key-file", file("server-key"), "tls-ca-cert-file", file("server-ca"))
	writeCA(t, next, file("ca"))
	require.NoError(t, redistest.WritePEM(next.Certificate("client"), file("cert"), file("key")))
	s.MustDo("CLIENT", "KILL", "USER", "default", "SKIPME", "yes")
	u.keeps(t, s)
}

func TestARefusedClientCertificateIsAnErrorAndNoWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ca := redistest.NewCA(t)
	s := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Clients: ca}})[0]
	writeCA(t, ca, file("ca"))
	require.NoError(t, redistest.WritePEM(redistest.NewCA(t).Certificate("client"), file("cert"), file("key")))
	for _, flags := range [][]string{nil, {"--tls-cert", file("cert"), "--tls-key", file("key")}} {
		begun := time.Now()
		o := invoke(t, []string{s.TLSAddr()}, append(append([]string{"run", "job", "--tls-ca", file("ca")}, flags...), "--", "true")...)
		assert.Less(t, time.Since(begun), patience/2)
		assert.Equal(t, exitNoQuorum, o.code)
		assert.Contains(t, o.stderr, "client certificate")
		assert.NotRegexp(t, "certificate.*; waiting", o.stderr, "a busy machine may wait for the connection before it is refused")
	}
}

// A Unix socket is a node like any other, in the flag and in a file of settings; TLS is for the other nodes.
func TestEveryCommandReachesUnixSockets(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	servers := redistest.StartWith(t, 3, redistest.Options{Socket: true, TLS: &redistest.TLS{CA: ca}})
	file := filepath.Join(t.TempDir(), "ca")
	require.NoError(t, os.WriteFile(file, ca.PEM(), 0o600))
	nodes := "unix://" + servers[0].SocketAddr() + "," + servers[1].SocketAddr() + "," + servers[2].TLSAddr()
	settings := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(settings, []byte("QUORUMLOCK_NODES="+nodes+"\nQUORUMLOCK_TLS_CA="+file+"\n"), 0o600))
	for _, args := range [][]string{
		{"run", "job", "--", "true"}, {"acquire", "job", "--ttl", "1m"}, {"inspect", "job"}, {"list"}, {"release", "job", "--dead", "of the lock"},
		{"bench", "--duration", "1s"}, {"doctor"},
	} {
		at := []string{"--nodes", nodes, "--tls-ca", file}
		if args[0] == "release" {
			args[3] = decoded[statusJSON](t, invoke(t, nil, append(at, "inspect", "job", "--json")...).stdout).Holder.Owner
		}
		o := invoke(t, nil, append(at, args...)...)
		assert.Contains(t, []int{exitOK, exitWarnings}, o.code, "%v: %s%s", args, o.stderr, o.stdout)
	}
	c := commandLine(t, nil)
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `set -a; . "$0"; exec "$1" inspect job`, settings, c.Path}
	o := finish(t, c)
	assert.Equal(t, exitOK, o.code, o.stderr)
	assert.Contains(t, o.stdout, servers[1].SocketAddr())

	o = invoke(t, nil, "--nodes", servers[0].SocketAddr()+","+servers[0].Addr()+","+servers[1].Addr(), "doctor")
	assert.Equal(t, exitBroken, o.code)
	assert.Contains(t, o.stdout, "same_server")
	o = invoke(t, nil, "--nodes", "/no/such.sock", "doctor")
	assert.Equal(t, exitBroken, o.code)
	assert.Contains(t, o.stdout, "unreachable")
	assert.Contains(t, invoke(t, nil, "--nodes", "::1:6379", "doctor").stderr, "brackets: [::1]:6379")
}
