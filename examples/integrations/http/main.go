// Http serves payments. While leases last, requests with one Idempotency-Key run one at a time,
// on all hosts together. A repeated request gets the stored answer.
//
// A handler that stalls may outlive its lease, and the next request begins. Then the store
// refuses the answer of the late handler, because its fencing token is lower. The lock cannot
// stop its payment: the handler passes the key to the payment provider, which pays once for it.
//
// It needs no Redis: the nodes run in this process. With -nodes it uses real servers.
//
//	go run ./http
//	go run ./http -nodes host-a:6379,host-b:6379,host-c:6379 -listen :8080
//	curl -i -X POST -H 'Idempotency-Key: 4711' localhost:8080/payments
//
// Each key is a name of its own, and with fencing a node remembers a name for a day: see
// docs/reference.md.
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
	psp := &provider{takes: 500 * time.Millisecond}
	server := &http.Server{Handler: service(m, &payments{pay: psp.pay}), ReadHeaderTimeout: 5 * time.Second}
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
	one := onePerKey{
		manager: m, prefix: "payments/", wait: 2 * time.Second, conflict: http.StatusConflict,
		key: func(r *http.Request) string { return r.Header.Get("Idempotency-Key") }, // and the tenant, where there are several
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", one.wrap(p))
	return mux
}

// payments is the resource. In a real program it is a database, and begin and store are a
// transaction each. It does not compare the payloads of requests with one key: a real service
// keeps a hash of the first one, and answers 422 to another.
type payments struct {
	pay func(ctx context.Context, key string) error // pays once for each key

	mu   sync.Mutex
	keys map[string]record
}

// record is what payments remembers about a key.
type record struct {
	token  int64  // the highest that a request has shown
	answer string // "" before a request has paid
}

// errStale means that a later request with the key has begun.
var errStale = errors.New("a later request with this key has begun")

// ServeHTTP pays, unless a request with this key has paid before.
func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, key := r.Context(), r.Header.Get("Idempotency-Key")
	answer, err := p.begin(key, token(ctx))
	if err == nil && answer == "" {
		answer = "paid"
		if err = p.pay(ctx, key); err == nil {
			err = p.store(key, answer, token(ctx))
		}
	}
	if err != nil { // such as quorumlock.ErrLost or errStale: the next request finds out what has happened
		retryAfter(w, 2*time.Second)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, answer)
}

// begin raises the remembered token before the request does anything: from then on, store refuses
// the requests before it. It returns the stored answer, "" if there is none.
func (p *payments) begin(key string, token int64) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.keys[key]
	return known.answer, p.put(key, record{token: token, answer: known.answer})
}

// store keeps the answer to a key.
func (p *payments) store(key, answer string, token int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.put(key, record{token: token, answer: answer})
}

// put refuses a token below the remembered one, and 0, which is not a token.
func (p *payments) put(key string, r record) error {
	if r.token <= 0 || r.token < p.keys[key].token {
		return errStale
	}
	if p.keys == nil {
		p.keys = map[string]record{}
	}
	p.keys[key] = r
	return nil
}

// provider stands for the payment provider. It cannot check fencing tokens. It pays once for each
// idempotency key: see docs/fencing.md, "When the resource cannot check".
type provider struct {
	takes time.Duration // each call

	mu   sync.Mutex
	paid map[string]bool
	made int // payments
}

func (p *provider) pay(ctx context.Context, key string) error {
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paid[key] {
		return nil
	}
	if p.paid == nil {
		p.paid = map[string]bool{}
	}
	p.paid[key] = true
	p.made++
	return nil
}
