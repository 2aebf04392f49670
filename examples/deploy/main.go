// Deploy is the program of docs/kubernetes.md: a worker whose replicas elect one leader. It has the
// probes of a Deployment and metrics for Prometheus, and on SIGTERM it ends its work and closes, so
// that the next replica leads at once.
//
// redis.yaml and worker.yaml are its manifests, and compose.yaml has three nodes for a try:
//
//	docker compose -f examples/deploy/compose.yaml up -d
//	cd examples/deploy && go run . -nodes 127.0.0.1:17001,127.0.0.1:17002,127.0.0.1:17003
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/quorumlock/quorumlock"
)

// name names the lease. The alerts of docs/grafana look at names leader/….
const name = "leader/worker"

// closeWithin is how long Close may take after the work has ended.
// terminationGracePeriodSeconds allows for both.
const closeWithin = 20 * time.Second

// worker has the settings of the flags.
type worker struct {
	nodes, user, passwordFile, ca, holder, listen string
	ttl, guard                                    time.Duration
	log                                           *slog.Logger
	metrics                                       *prometheus.Registry

	manager atomic.Pointer[quorumlock.Manager] // nil until New has returned
}

func main() {
	w := worker{log: slog.New(slog.NewTextHandler(os.Stdout, nil)), metrics: prometheus.NewRegistry()}
	host, _ := os.Hostname() // in a pod, its name
	flag.StringVar(&w.nodes, "nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	flag.StringVar(&w.user, "user", "", "user of the nodes")
	flag.StringVar(&w.passwordFile, "password-file", "", "file with the user's password, read for each connection")
	flag.StringVar(&w.ca, "ca", "", "file of the authority whose certificates the nodes have; without one, no TLS")
	flag.StringVar(&w.holder, "holder", host, "label of this process for people, such as the pod's name")
	flag.StringVar(&w.listen, "listen", "127.0.0.1:8080", "address of the probes and of /metrics")
	flag.DurationVar(&w.ttl, "ttl", 10*time.Second, "how long a leader that died is waited for")
	flag.DurationVar(&w.guard, "guard", 30*time.Second, "time of the restart guard, the same in all clients")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := w.run(ctx)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		w.log.Error("ended", "error", err)
		os.Exit(1)
	}
}

// run works until ctx ends. It serves the probes from the beginning.
func (w *worker) run(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", w.listen)
	if err != nil {
		return err
	}
	w.log.Info("probes", "addr", listener.Addr())
	server := &http.Server{Handler: w.probes(), ReadHeaderTimeout: time.Second}
	served := make(chan struct{}) // closed when the server has ended
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	defer func() {
		_ = server.Close()
		<-served
	}()
	nodes, err := w.options()
	if err != nil {
		return err
	}
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(w.metrics))
	if err != nil {
		return err
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	defer func() { _ = meters.Shutdown(context.Background()) }() // after Close
	m, err := quorumlock.New(ctx, nodes,
		quorumlock.WithTTL(w.ttl),
		quorumlock.WithRestartGuard(w.guard),
		quorumlock.WithStartupWait(2*time.Minute), // the startup probe allows more
		quorumlock.WithHolder(w.holder),
		quorumlock.WithMeterProvider(meters),
		quorumlock.WithNameAttribute(func(name string) string { return name }), // it is the only one
		quorumlock.WithLogger(w.log))
	if err != nil {
		return err
	}
	w.manager.Store(m)
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), closeWithin) // ctx has ended by now
		defer cancel()
		if err := m.Close(closing); err != nil {
			w.log.Warn("not everything was released", "error", err)
		}
	}()
	return m.Lead(ctx, name, w.lead)
}

// options reads the password for each connection, so that a changed Secret needs no restart.
func (w *worker) options() ([]rueidis.ClientOption, error) {
	nodes := quorumlock.Addrs(strings.Split(w.nodes, ",")...)
	secure, err := w.tlsConfig()
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		nodes[i].TLSConfig = secure
		if w.user != "" {
			nodes[i].AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				password, err := os.ReadFile(w.passwordFile)
				return rueidis.AuthCredentials{Username: w.user, Password: strings.TrimSpace(string(password))}, err
			}
		}
	}
	return nodes, nil
}

// tlsConfig returns nil without an authority: the nodes then need no TLS.
func (w *worker) tlsConfig() (*tls.Config, error) {
	if w.ca == "" {
		return nil, nil
	}
	text, err := os.ReadFile(w.ca)
	if err != nil {
		return nil, err
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("-ca: %s holds no certificate: give a file in PEM form", w.ca)
	}
	return &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12}, nil
}

// lead does one step a second until the term ends. Put your work in its place: it must return when
// ctx ends.
func (w *worker) lead(ctx context.Context, lease *quorumlock.Lease) error {
	w.log.Info("leading", "token", lease.Token(), "holder", w.holder)
	defer func() { w.log.Info("no longer leading", "token", lease.Token()) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.log.Info("step", "token", lease.Token())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// probes returns a handler that reports whether the program has started, whether it can lead,
// whether it runs, and its metrics.
func (w *worker) probes() http.Handler {
	mux := http.NewServeMux()
	answer := func(out http.ResponseWriter, check func(*quorumlock.Manager) error) {
		err := errors.New("waiting for a majority of the nodes to start")
		if m := w.manager.Load(); m != nil {
			err = check(m)
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusServiceUnavailable)
		}
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(w.metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /startup", func(out http.ResponseWriter, _ *http.Request) {
		answer(out, func(*quorumlock.Manager) error { return nil })
	})
	mux.HandleFunc("GET /ready", func(out http.ResponseWriter, _ *http.Request) {
		answer(out, (*quorumlock.Manager).Ready)
	})
	mux.HandleFunc("GET /live", func(out http.ResponseWriter, _ *http.Request) {
		// Never Ready: a restart because nodes are down would end the leases that still hold.
		_, _ = fmt.Fprintln(out, "alive")
	})
	return mux
}
