//go:build unix

package redistest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARestartAfterATruncationLosesWhatWasBehindIt(t *testing.T) {
	t.Parallel()
	for _, fsync := range []string{"everysec", "always"} {
		s := Start(t, 1, "--appendonly", "yes", "--appendfsync", fsync)[0]
		s.MustDo("SET", "kept", "v", "PX", "3600000")
		written := func(since int64) {
			if fsync == "always" {
				assert.Greater(t, s.AOFSize(), since, "what was answered is in the file")
			} else {
				eventually(t, func() bool { return s.AOFSize() > since })
			}
		}
		written(0)
		size := s.AOFSize()
		s.MustDo("SET", "lost", "v", "PX", "3600000")
		written(size)
		s.Kill()
		s.TruncateAOF(size)
		s.Restart()
		assert.Equal(t, "v", s.MustDo("GET", "kept"))
		assert.Nil(t, s.MustDo("GET", "lost"))

		s.MustDo("SET", "again", "v") // and the server continues from there
		s.Restart()
		assert.Equal(t, int64(2), s.MustDo("EXISTS", "kept", "again"))
	}
}

func TestATornTailIsCutOffByRestartOrRefused(t *testing.T) {
	t.Parallel()
	for _, load := range []string{"yes", "no"} {
		s := Start(t, 1, "--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", load)[0]
		s.MustDo("SET", "kept", "v")
		s.MustDo("SET", "torn", "v")
		s.Kill()
		s.TruncateAOF(s.AOFSize() - 3)
		if load == "no" {
			assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.Restart() }), "aof-load-truncated")
			continue
		}
		s.Restart()
		assert.Equal(t, "v", s.MustDo("GET", "kept"))
		assert.Nil(t, s.MustDo("GET", "torn"))
	}
}

func TestTruncationFindsTheFileThatTheServerWritesTo(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--appendonly", "yes", "--appendfsync", "always", "--appendfilename", "other.aof", "--appenddirname", "elsewhere")[0]
	s.MustDo("SET", "base", "v")
	s.MustDo("BGREWRITEAOF")
	eventually(t, func() bool { return s.Info("persistence", "aof_rewrite_in_progress") == 0 && s.AOFSize() == 0 })
	s.MustDo("SET", "lost", "v")
	_, err := s.Do("SHUTDOWN")
	assert.Error(t, err) // the end of the connection
	<-s.proc.exited
	s.TruncateAOF(0)
	s.Restart()
	assert.Equal(t, "v", s.MustDo("GET", "base"))
	assert.Nil(t, s.MustDo("GET", "lost"))
}

func TestTheFileThatIsTruncatedIsTheLastOneOfTheManifest(t *testing.T) {
	t.Parallel()
	s := &Server{tb: t, dir: t.TempDir()}
	dir := filepath.Join(s.dir, "appendonlydir")
	require.NoError(t, os.Mkdir(dir, 0o700))
	// As after a failed rewrite, whose first step created a new file.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "appendonly.aof.manifest"), []byte(
		"file appendonly.aof.1.base.rdb seq 1 type b\n"+
			"file appendonly.aof.1.incr.aof seq 1 type i\n"+
			"file appendonly.aof.2.incr.aof seq 2 type i\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "appendonly.aof.2.incr.aof"), make([]byte, 10), 0o600))
	s.TruncateAOF(s.AOFSize() - 3)
	assert.Equal(t, int64(7), s.AOFSize())
}

func TestTruncationIsRefusedWhereItWouldProveNothing(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--appendonly", "yes")[0]
	plain := Start(t, 1)[0]
	fails := func(s *Server, f func()) string {
		t.Helper()
		return failure(t, func(tb testing.TB) { s.tb = tb; f() })
	}
	assert.Contains(t, fails(s, func() { s.TruncateAOF(0) }), "not down")
	s.Kill()
	assert.Contains(t, fails(s, func() { s.TruncateAOF(1 << 20) }), "bytes")
	assert.Contains(t, fails(plain, func() { plain.AOFSize() }), "--appendonly")
}
