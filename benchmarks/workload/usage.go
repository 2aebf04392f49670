//go:build unix

package workload

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A usage is what the client and its servers have used up to an instant or, as the difference of two, in between.
type usage struct {
	at      time.Time
	elapsed time.Duration // of a difference
	client  time.Duration // CPU of this process, without its children
	servers time.Duration // CPU of all servers together
	allocs  float64       // allocations of this process
	bytes   float64       // and their size
	scripts float64       // scripts that all servers together have run
}

// usage reads all counters.
func (b *Bench) usage() (u usage, err error) {
	for _, s := range b.Servers {
		cpu, err := serverCPU(s)
		if err != nil {
			return u, err
		}
		scripts, err := serverScripts(s)
		if err != nil {
			return u, err
		}
		u.servers += cpu
		u.scripts += scripts
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	u.allocs, u.bytes = float64(memory.Mallocs), float64(memory.TotalAlloc)
	u.client, err = clientCPU()
	u.at = time.Now()
	return u, err
}

// since returns what was used since an earlier reading.
func (u usage) since(earlier usage) usage {
	return usage{
		elapsed: u.at.Sub(earlier.at),
		client:  u.client - earlier.client,
		servers: u.servers - earlier.servers,
		allocs:  u.allocs - earlier.allocs,
		bytes:   u.bytes - earlier.bytes,
		scripts: u.scripts - earlier.scripts,
	}
}

// clientCPU returns the CPU time of this process.
func clientCPU() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

func info(s *redistest.Server, section string) (string, error) {
	reply, err := s.Do("INFO", section)
	if err != nil {
		return "", err
	}
	text, ok := reply.(string)
	if !ok {
		return "", fmt.Errorf("INFO %s: %T", section, reply)
	}
	return text, nil
}

var errNoField = errors.New("INFO lacks the field")

// field returns the value of a field of INFO.
func field(text, name string) (string, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("%w %s", errNoField, name)
}

// serverCPU returns the CPU time of a server, its kernel time included.
func serverCPU(s *redistest.Server) (time.Duration, error) {
	text, err := info(s, "cpu")
	if err != nil {
		return 0, err
	}
	var seconds float64
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		value, err := field(text, name)
		if err != nil {
			return 0, err
		}
		part, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu: %w", err)
		}
		seconds += part
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// serverScripts returns how many scripts and functions a server has run.
func serverScripts(s *redistest.Server) (float64, error) {
	text, err := info(s, "commandstats")
	if err != nil {
		return 0, err
	}
	var calls float64
	for _, command := range []string{"eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"} {
		value, err := field(text, "cmdstat_"+command)
		if errors.Is(err, errNoField) {
			continue // never called
		}
		if err != nil {
			return 0, err
		}
		n, err := callsOf(value)
		if err != nil {
			return 0, err
		}
		calls += n
	}
	return calls, nil
}

// callsOf returns the calls of a line of commandstats: "calls=21,usec=175,…".
func callsOf(value string) (float64, error) {
	first, _, _ := strings.Cut(value, ",")
	digits, ok := strings.CutPrefix(first, "calls=")
	if !ok {
		return 0, fmt.Errorf("INFO commandstats: %q", value)
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, fmt.Errorf("INFO commandstats: %w", err)
	}
	return n, nil
}

// ServerVersion returns the version of a server.
func ServerVersion(s *redistest.Server) string {
	text, err := info(s, "server")
	if err != nil {
		return ""
	}
	version, _ := field(text, "redis_version")
	return version
}

// Small helpers for figures.

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// percentOfCore returns how much of one core d is in the elapsed time.
func percentOfCore(d, elapsed time.Duration) float64 { return 100 * float64(d) / float64(elapsed) }
