// Http serves payments, each once: requests with one Idempotency-Key are served one after
// the other, on all hosts together, and a repeated request gets the first one's answer.
//
// It needs no Redis: the nodes run in this process. With -nodes it uses real servers.
//
//	go run ./http
//	go run ./http -nodes host-a:6379,host-b:6379,host-c:6379 -listen :8080
//	curl -i -X POST -H 'Idempotency-Key: 4711' localhost:8080/payments
//
// Each key is a name of its own, and with fencing a node remembers a name for a day, in
// some 140 bytes: see docs/reference.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func main() {
	nodes := flag.String("nodes", "", "comma-separated host:port of real Redis masters; without it, nodes run in this process")
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	listener, err := net.Listen("tcp", *listen)
	if err == nil {
		fmt.Println("serving", listener.Addr())
		err = run(ctx, *nodes, listener)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes string, listener net.Listener) error {
	options := quorumlock.Addrs(strings.Split(nodes, ",")...)
	if nodes == "" {
		cluster := quorumlocktest.NewCluster(3)
		defer cluster.Close()
		options = cluster.Options()
	}
	m, err := quorumlock.New(ctx, options)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(context.WithoutCancel(ctx)) }()
	server := &http.Server{Handler: service(m, &payments{}), ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(closing) // before the Manager closes, which would end the leases of requests
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// service has one route with the lock around it.
func service(m *quorumlock.Manager, p *payments) http.Handler {
	one := onePerKey{manager: m, wait: 2 * time.Second, conflict: http.StatusConflict, key: func(r *http.Request) string {
		key := r.Header.Get("Idempotency-Key")
		if key == "" {
			return ""
		}
		return "payments/" + key // and the tenant, where there are several
	}}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", one.wrap(p))
	return mux
}

// payments is the resource, in a real program a database. It keeps the answer to each key, and the
// highest token of a key that it has seen.
type payments struct {
	mu      sync.Mutex
	answers map[string]string
	tokens  map[string]int64
	pay     func(context.Context) error // nil waits half a second
}

// ServeHTTP pays, unless a request with this key has paid before.
func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, key := r.Context(), r.Header.Get("Idempotency-Key")
	if answer, paid := p.answer(key); paid {
		_, _ = fmt.Fprintln(w, answer)
		return
	}
	pay := p.pay
	if pay == nil {
		pay = half
	}
	err := pay(ctx)
	if err == nil {
		err = p.store(key, "paid", token(ctx))
	}
	if err != nil { // such as quorumlock.ErrLost: the next request decides what has happened
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "paid")
}

func half(ctx context.Context) error {
	select {
	case <-time.After(500 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *payments) answer(key string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, ok := p.answers[key]
	return answer, ok
}

// store refuses a token below the highest: a later request with the key has been here.
func (p *payments) store(key, answer string, token int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if token < p.tokens[key] {
		return errors.New("a later request has been here")
	}
	if p.answers == nil {
		p.answers, p.tokens = map[string]string{}, map[string]int64{}
	}
	p.answers[key], p.tokens[key] = answer, token
	return nil
}
