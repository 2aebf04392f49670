package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/node"
)

type benchOptions struct {
	duration       time.Duration
	callers, names int
	yes            bool
}

// Bounds of bench: it is for a quick look, not for a load test of a day.
const (
	maxBenchDuration = 10 * time.Minute
	maxCallers       = 4096
	maxNames         = 100000
)

func (p *program) benchCommand() *cobra.Command {
	o := benchOptions{duration: 5 * time.Second, callers: 16}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast the nodes grant and release locks",
		Long: `Bench acquires and releases locks from --callers at once for --duration. It
prints the pairs per second, their latency, and each server's CPU time per pair,
from INFO cpu. That includes the server's work for other clients. Of a failover
group it is the present master.

Callers that share a name pass the lock on inside this process, mostly without
the nodes: with fewer --names than --callers it measures that.

It loads the nodes, so nodes on other machines need --yes. It leaves one fencing
register for each name, which expires after a day.`,
		Annotations: needsNodes,
		Args:        exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("names") {
				o.names = o.callers
			}
			if err := o.check(&p.connection); err != nil {
				return err
			}
			return p.bench(cmd.Context(), o)
		},
	}
	c.Flags().Var(durationFlag{&o.duration}, "duration", "how long to measure, 100ms to 10m")
	c.Flags().IntVar(&o.callers, "callers", o.callers, "how many callers at one time, 1 to 4096")
	c.Flags().IntVar(&o.names, "names", 0, "how many names they share, 1 to 100000\n(default: one for each caller, so none waits)")
	c.Flags().BoolVar(&o.yes, "yes", false, "load nodes on other machines")
	return c
}

func (o benchOptions) check(c *connection) error {
	switch {
	case o.duration < 100*time.Millisecond || o.duration > maxBenchDuration:
		return usagef("--duration %v: must be 100ms to %v", o.duration, maxBenchDuration)
	case o.callers < 1 || o.callers > maxCallers:
		return usagef("--callers %d: must be 1 to %d", o.callers, maxCallers)
	case o.names < 1 || o.names > maxNames:
		return usagef("--names %d: must be 1 to %d, because each name leaves a register for a day", o.names, maxNames)
	}
	for i := range c.options {
		for _, addr := range master.Addresses(&c.options[i]) {
			if !o.yes && !loopback(addr) {
				return usagef("--nodes: %s is on another machine, and bench loads it: give --yes if you may load it", addr)
			}
		}
	}
	return nil
}

// checkMasters is check for the masters of failover groups.
func (o benchOptions) checkMasters(servers []server) error {
	for _, s := range servers {
		if s.group != "" && !o.yes && !loopback(s.addr) {
			return usagef("--nodes: the master of %v may be on another machine, and bench loads it: give --yes if you may load it", s)
		}
	}
	return nil
}

// loopback reports whether an address is certainly on this machine.
func loopback(addr string) bool {
	if node.IsSocket(addr) {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// benchResult has the measurements of a run. Its JSON keys are stable.
type benchResult struct {
	Seconds  float64   `json:"seconds"`
	Callers  int       `json:"callers"`
	Names    int       `json:"names"`
	Pairs    int       `json:"pairs"`
	Failures int       `json:"failures"`
	PerSec   float64   `json:"pairs_per_second"`
	P50ms    float64   `json:"p50_ms"`
	P99ms    float64   `json:"p99_ms"`
	MaxMs    float64   `json:"max_ms"`
	CPUus    []float64 `json:"server_cpu_us_per_pair"` // by node, of a cluster by master; -1 when INFO cpu does not show it, or after a failover
	firstErr error     // of the failures
	cut      error     // of a call that the end of the time cut off, which does not count as a failure
}

func (p *program) bench(ctx context.Context, o benchOptions) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	servers := p.connection.servers(m)
	if err := o.checkMasters(servers); err != nil {
		return err
	}
	servers = p.connection.distinct(servers)
	before := serverCPU(ctx, servers)
	result := measure(ctx, m, o)
	after := serverCPU(context.WithoutCancel(ctx), servers)
	result.addCPU(servers, p.connection.servers(m), before, after)
	if p.connection.json {
		err = p.printJSON(result)
	} else {
		writeAll(p.stdout, p.measured(result, servers))
	}
	return cmp.Or(result.failed(o), err)
}

// addCPU adds the CPU time of each server for a pair. A server that is no longer the master of its group did a part only.
func (r *benchResult) addCPU(servers, now []server, before, after []time.Duration) {
	for i, s := range servers {
		cpu := -1.0
		if before[i] >= 0 && after[i] >= 0 && r.Pairs > 0 && reaches(now, s.addr) {
			cpu = float64((after[i] - before[i]).Nanoseconds()) / 1000 / float64(r.Pairs)
		}
		r.CPUus = append(r.CPUus, cpu)
	}
}

// failed returns why there is no pair, nil if there is one or a signal came first.
func (r *benchResult) failed(o benchOptions) error {
	switch {
	case r.Pairs > 0:
		return nil
	case r.firstErr == nil && r.cut != nil: // zeros measure nothing
		return &exitError{code: exitNoQuorum, err: fmt.Errorf("%w; nothing was granted in %v: give a longer --duration", r.cut, o.duration)}
	}
	return r.firstErr
}

// measure has the callers take and release locks until the time has passed.
func measure(ctx context.Context, m *quorumlock.Manager, o benchOptions) *benchResult {
	run := rand.Text()[:8]
	begun := time.Now()
	until := begun.Add(o.duration)
	bounded, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	r := &benchResult{Callers: o.callers, Names: o.names}
	var all []time.Duration
	var mu sync.Mutex
	var wg sync.WaitGroup
	for caller := range o.callers {
		wg.Go(func() {
			took, failures, first, cut := pairs(bounded, m, "bench/"+run+"/", caller, o)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			r.Failures += failures
			r.firstErr, r.cut = cmp.Or(r.firstErr, first), cmp.Or(r.cut, cut)
		})
	}
	wg.Wait()
	elapsed := time.Since(begun)
	slices.Sort(all)
	r.Seconds, r.Pairs = elapsed.Seconds(), len(all)
	r.PerSec = float64(len(all)) / elapsed.Seconds()
	if len(all) > 0 {
		r.P50ms, r.P99ms, r.MaxMs = ms(all[len(all)/2]), ms(all[len(all)*99/100]), ms(all[len(all)-1])
	}
	return r
}

// pairs is one caller: it walks through the names, so that callers that share names meet.
func pairs(ctx context.Context, m *quorumlock.Manager, prefix string, caller int, o benchOptions) (took []time.Duration, failures int, first, cut error) {
	for i := caller; ctx.Err() == nil; i += o.callers {
		begun := time.Now()
		lease, err := m.Acquire(ctx, prefix+strconv.Itoa(i%o.names))
		if err == nil {
			err = lease.Release(context.WithoutCancel(ctx))
		}
		switch {
		case err == nil:
			took = append(took, time.Since(begun))
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)): // the time has passed, or a signal came
			if errors.Is(err, context.DeadlineExceeded) {
				cut = err
			}
		default:
			if failures++; first == nil {
				first = err
			}
		}
	}
	return took, failures, first, cut
}

// serverCPU returns the CPU time that each server has used, negative if the server does not report it.
func serverCPU(ctx context.Context, servers []server) []time.Duration {
	used := make([]time.Duration, len(servers))
	for i, s := range servers {
		used[i] = -1
		if s.addr == "" {
			continue
		}
		option := s.option
		option.ForceSingleClient, option.DisableCache, option.DisableRetry = true, true, true
		option.ClientSetInfo = rueidis.DisableClientSetInfo
		option.Dialer.Timeout, option.ConnWriteTimeout = time.Second, time.Second
		client, err := rueidis.NewClient(option)
		if err != nil {
			continue
		}
		if text, err := client.Do(ctx, client.B().Info().Section("cpu").Build()).ToString(); err == nil {
			used[i] = cpuOf(text)
		}
		client.Close()
	}
	return used
}

// cpuOf adds up the CPU times of the server's own threads in INFO cpu.
func cpuOf(info string) time.Duration {
	sum, found := time.Duration(0), false
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if key != "used_cpu_sys" && key != "used_cpu_user" {
			continue
		}
		if seconds, err := strconv.ParseFloat(value, 64); err == nil {
			sum, found = sum+time.Duration(seconds*float64(time.Second)), true
		}
	}
	if !found {
		return -1
	}
	return sum
}

// measured formats the result for people.
func (p *program) measured(r *benchResult, servers []server) string {
	var b strings.Builder
	fact := func(key, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s "+format+"\n", append([]any{key}, args...)...)
	}
	fact("callers", "%d on %d names, %.1f s", r.Callers, r.Names, r.Seconds)
	fact("pairs", "%.0f acquire and release a second, %d in all", r.PerSec, r.Pairs)
	fact("latency", "p50 %.2f ms, p99 %.2f ms, max %.2f ms", r.P50ms, r.P99ms, r.MaxMs)
	if r.Failures > 0 {
		fact("failures", "%d", r.Failures)
		b.WriteString(wrap(strings.Repeat(" ", 10), "the first: "+oneLine(r.firstErr)))
	}
	t := &table{width: p.columns()}
	t.row("", "NODE", "CPU PER PAIR")
	for i, cpu := range r.CPUus {
		text := fmt.Sprintf("%.1f µs", cpu)
		if cpu < 0 {
			text = "-"
		}
		t.row(strconv.Itoa(i), servers[i].String(), text)
	}
	return b.String() + "\n" + t.String()
}
