//go:build unix

package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// AOFSize returns the size of the append-only file that a server started with
// "--appendonly", "yes" writes to, in bytes. With "--appendfsync", "always" the file
// has every write that the server has answered. With the default the server postpones a
// write while the disk is busy with the one before.
func (s *Server) AOFSize() int64 {
	s.tb.Helper()
	path, err := s.aof()
	if err != nil {
		s.tb.Fatalf("redistest: append-only file of %s: %v", s.Addr(), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		s.tb.Fatalf("redistest: append-only file of %s: %v", s.Addr(), err)
	}
	return info.Size()
}

// TruncateAOF cuts the append-only file to size bytes, so that the server restarts
// without the data after them. A loss of power does that to the part that was not
// synced. Kill does not: the kernel keeps the data that a killed process has written. A
// size inside a command cuts that command, and then the server starts only with
// aof-load-truncated, which is its default.
//
// The server must be down, and the test fails if it is not.
func (s *Server) TruncateAOF(size int64) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.downLocked() {
		s.tb.Fatalf("redistest: truncate the append-only file of %s: the server is not down", s.Addr())
	}
	path, err := s.aof()
	if err != nil {
		s.tb.Fatalf("redistest: truncate the append-only file of %s: %v", s.Addr(), err)
	}
	info, err := os.Stat(path)
	if err == nil && (size < 0 || size > info.Size()) {
		err = fmt.Errorf("it has %d bytes, not %d", info.Size(), size)
	}
	if err == nil {
		err = os.Truncate(path, size)
	}
	if err != nil {
		s.tb.Fatalf("redistest: truncate the append-only file of %s: %v", s.Addr(), err)
	}
}

// aof returns the path of the newest incremental file: the last one that the
// manifest names.
func (s *Server) aof() (string, error) {
	manifests, err := filepath.Glob(filepath.Join(s.dir, "*", "*.manifest"))
	if err != nil {
		return "", err
	}
	if len(manifests) != 1 {
		return "", errors.New("there is none: was the server started with --appendonly yes?")
	}
	text, err := os.ReadFile(manifests[0])
	if err != nil {
		return "", err
	}
	var newest string // of lines such as "file appendonly.aof.1.incr.aof seq 1 type i"
	for line := range bytes.Lines(text) {
		if words := bytes.Fields(line); len(words) == 6 && string(words[5]) == "i" {
			newest = string(words[1])
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%s names no incremental file", manifests[0])
	}
	return filepath.Join(filepath.Dir(manifests[0]), newest), nil
}
