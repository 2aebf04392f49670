package web_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/web"
)

// The page is next to pprof, on a port that only operators reach.
func ExampleHandler() {
	ctx := context.Background()
	m, err := quorumlock.New(ctx, quorumlock.Addrs("redis-a:6379", "redis-b:6379", "redis-c:6379"))
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close(ctx) //nolint:errcheck // an example

	mux := http.NewServeMux()
	mux.Handle("/debug/locks/", http.StripPrefix("/debug/locks", web.Handler(m)))
	go func() { log.Println(http.ListenAndServe("127.0.0.1:6060", mux)) }() //nolint:gosec // an example
	// ...
}

// A link is checked when the program starts.
func ExampleTraceLink() {
	_, err := web.TraceLink("https://jaeger.example/trace/")
	fmt.Println(err)
	// Output: quorumlock: TraceLink https://jaeger.example/trace/: has no {trace}; write a URL such as https://jaeger.example/trace/{trace}
}
