//go:build unix

package redistest

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Spin keeps n goroutines computing until the test ends: load on the processors
// and on the scheduler of the process under test.
func Spin(tb testing.TB, n int) {
	var stop atomic.Bool
	var spinning sync.WaitGroup
	for range n {
		spinning.Go(func() {
			for !stop.Load() {
			}
		})
	}
	tb.Cleanup(func() { stop.Store(true); spinning.Wait() })
}

const (
	junkPrefix = "redistest:junk:"
	junkSize   = 1 << 10
	junkRoom   = 2 << 20 // how far Fill sets maxmemory above the used memory
	junkBatch  = 256
)

// Fill puts the server under memory pressure. It sets this maxmemory-policy, and a
// maxmemory a little above the used memory unless the server has one already. Then it
// writes junk keys, every other one with a TTL of an hour. It stops when keys have been
// evicted and until, if not nil, reports true. It also stops when the server refuses a
// write because it is full.
//
// Fill reports whether keys were evicted. If neither happens within 30 s, the test fails.
// The junk, maxmemory and the policy stay.
func (s *Server) Fill(policy string, until func() bool) (evicted bool) {
	s.tb.Helper()
	s.MustDo("CONFIG", "SET", "maxmemory-policy", policy)
	s.MustDo("CONFIG", "SET", "maxmemory-samples", "64") // the default, five keys, rarely includes the oldest in the database
	if s.Info("memory", "maxmemory") == 0 {
		s.MustDo("CONFIG", "SET", "maxmemory", strconv.FormatInt(s.Info("memory", "used_memory")+junkRoom, 10))
	}
	junk := strings.Repeat("j", junkSize)
	before := s.Info("stats", "evicted_keys")
	key := s.Info("stats", "total_commands_processed") // a second call writes other keys
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		var batch [][]string
		for range junkBatch {
			key++
			set := []string{"SET", junkPrefix + strconv.FormatInt(key, 10), junk}
			if key%2 == 0 {
				set = append(set, "PX", "3600000")
			}
			batch = append(batch, set)
		}
		replies, err := roundTrip(s.Addr(), doTimeout, batch...)
		if err != nil {
			s.tb.Fatalf("redistest: fill %s: %v", s.Addr(), err)
		}
		evicted = s.Info("stats", "evicted_keys") > before
		for _, reply := range replies {
			var refused *ReplyError
			if err, ok := reply.(error); ok && errors.As(err, &refused) {
				if strings.HasPrefix(refused.Text, "OOM") {
					return evicted
				}
				s.tb.Fatalf("redistest: fill %s: %v", s.Addr(), refused)
			}
		}
		if evicted && (until == nil || until()) {
			return true
		}
	}
	s.tb.Fatalf("redistest: fill %s: neither full nor done after %v", s.Addr(), startTimeout)
	return false
}

// Info returns a number of a section of INFO, such as used_memory of memory.
func (s *Server) Info(section, field string) int64 {
	s.tb.Helper()
	text, _ := s.MustDo("INFO", section).(string)
	_, rest, _ := strings.Cut(text, "\r\n"+field+":")
	number, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		s.tb.Fatalf("redistest: INFO %s of %s: %s: %v", section, s.Addr(), field, err)
	}
	return n
}
