//go:build unix

package workload

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
)

const (
	keepers  = 512 // how many goroutines take the leases
	spinners = 2   // processes that compute alongside the client
	slotSize = 16  // bytes that the harness itself keeps for a lease
)

func watchdog(o Options) Workload {
	w := Workload{
		Name:  "watchdog",
		Title: "Held leases, renewed in the background",
		About: fmt.Sprintf("Leases with a TTL of %v are held for %v; for %v, %d other processes compute on the same cores. Bytes per lease are "+
			"heap and stacks after a garbage collection.", o.TTL, watched(o.TTL), o.TTL/2, spinners),
		Columns: []report.Column{
			{Key: "lost", Title: "lost"}, {Key: "bytes", Title: "bytes per lease"}, {Key: "goroutines", Title: "goroutines added"},
			{Key: "client", Title: "client, % of a core", Digits: 1}, {Key: "servers", Title: "servers, % of a core", Digits: 1},
			{Key: "scripts", Title: "scripts/s"}, {Key: "taking", Title: "s to take them", Digits: 1},
		},
		Chart: "client",
	}
	for _, leases := range o.Leases {
		for _, nodes := range []int{1, 5} {
			names := []string{contest.Rueidislock}
			if nodes > 1 {
				names = []string{contest.Fenced, contest.Unfenced, contest.RedsyncRueidis}
			}
			w.Cases = append(w.Cases, Case{
				Name: WatchdogCase(leases, nodes), Nodes: nodes, Contestants: names,
				Measure: func(b *Bench) (Values, error) { return b.watch(leases) },
			})
		}
	}
	return w
}

// WatchdogCase returns the name of a case of the watchdog workload.
func WatchdogCase(leases, nodes int) string { return fmt.Sprintf("%d leases, N=%d", leases, nodes) }

// watched returns how long leases are watched: longer than they live.
func watched(ttl time.Duration) time.Duration { return ttl + ttl/2 }

func (b *Bench) watch(leases int) (Values, error) {
	client, err := b.connect(0)
	if err != nil {
		return nil, err
	}
	// The first lease pays for connections and buffers, which are not a cost of a lease.
	if _, err := b.keepAll(client, 1); err != nil {
		return nil, err
	}
	memory, goroutines := inUse(), runtime.NumGoroutine()
	began := time.Now()
	kept, err := b.keepAll(client, leases)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	perLease := (inUse()-memory)/float64(leases) - slotSize
	goroutines = runtime.NumGoroutine() - goroutines

	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(watched(b.TTL))
	if err := b.sleep(b.TTL / 4); err != nil {
		return nil, err
	}
	if err := b.spin(b.TTL / 2); err != nil {
		return nil, err
	}
	if err := b.sleep(time.Until(end)); err != nil {
		return nil, err
	}
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	u := after.since(before)
	return Values{
		"lost": lost(kept), "bytes": perLease, "goroutines": float64(goroutines), "taking": took.Seconds(),
		"client": percentOfCore(u.client, u.elapsed), "servers": percentOfCore(u.servers, u.elapsed),
		"scripts": u.scripts / u.elapsed.Seconds(),
	}, nil
}

// lost returns how many leases another client may have by now.
func lost(kept []contest.Kept) (n float64) {
	for _, k := range kept {
		if k.Lost() {
			n++
		}
	}
	return n
}

// keepAll takes many leases.
func (b *Bench) keepAll(client contest.Client, leases int) ([]contest.Kept, error) {
	keeper, ok := client.(contest.Keeper)
	if !ok {
		return nil, errUnsupported
	}
	kept := make([]contest.Kept, leases)
	var next atomic.Int64
	errs := make([]error, min(keepers, leases))
	var done sync.WaitGroup
	for i := range errs {
		done.Go(func() {
			for {
				lease := next.Add(1) - 1
				if lease >= int64(leases) {
					return
				}
				k, err := keeper.Keep(b.Context, leaseName(leases, int(lease)))
				if err != nil {
					errs[i] = err
					return
				}
				kept[lease] = k
			}
		})
	}
	done.Wait()
	return kept, errors.Join(errs...)
}

func leaseName(leases, i int) string { return "lease-" + strconv.Itoa(leases) + "-" + strconv.Itoa(i) }

// inUse returns the bytes of heap and stacks that are in use.
func inUse() float64 {
	m := collected()
	return float64(m.HeapAlloc + m.StackInuse)
}

// collected returns the memory after a garbage collection.
func collected() (m runtime.MemStats) {
	for range 2 { // a second time for what finalizers release
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}

// SpinRole is the argument that makes this program compute until its standard
// input ends.
const SpinRole = "spin"

// spin runs processes that compute for d.
func (b *Bench) spin(d time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	for range spinners {
		cmd := exec.CommandContext(b.Context, self, SpinRole)
		life, err := cmd.StdinPipe() // ends with this process, whatever happens to it
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return err
		}
		ends = append(ends, func() {
			_ = life.Close()
			_ = cmd.Wait()
		})
	}
	return b.sleep(d)
}

// Spin computes until the standard input ends.
func Spin() {
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	for !over.Load() {
	}
}
