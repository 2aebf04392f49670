package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/web"
)

type webOptions struct {
	listen, traces string
	remote         bool
}

func (p *program) webCommand() *cobra.Command {
	o := webOptions{listen: "127.0.0.1:7787"}
	c := &cobra.Command{
		Use:   "web",
		Short: "Serve a live page about nodes and locks",
		Long: `Web serves a page about the nodes and their locks, prints its URL, and ends with
Ctrl-C. The page shows which nodes vote, who holds a name and who waits for it,
and the names of a prefix. It takes nothing and changes nothing.

The page has no login, so web listens on loopback only, and answers only
requests for a loopback host: another site's name may lead here, too. With
--allow-remote it listens where --listen says, and answers everybody.

A name that is looked at costs each node one read a second, however many look.`,
		Annotations: needsNodes,
		Args:        exactly(),
		RunE:        func(cmd *cobra.Command, _ []string) error { return p.web(cmd.Context(), o) },
	}
	c.Flags().StringVar(&o.listen, "listen", o.listen, "`HOST:PORT` to listen on; port 0 takes any")
	c.Flags().BoolVar(&o.remote, "allow-remote", false, "listen on other addresses than loopback")
	c.Flags().StringVar(&o.traces, "trace-link", "", "`URL` of a trace, with {trace} for its id")
	return c
}

func (p *program) web(ctx context.Context, o webOptions) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	var options []web.Option
	if o.traces != "" {
		link, err := web.TraceLink(o.traces)
		if invalid := (*quorumlock.InvalidError)(nil); errors.As(err, &invalid) {
			return usagef("--trace-link %s: %s; %s", invalid.Value, invalid.Bound, invalid.Fix)
		}
		options = append(options, link)
	}
	if host, _, err := net.SplitHostPort(o.listen); err != nil {
		return usagef("--listen %s: write HOST:PORT, such as 127.0.0.1:7787", o.listen)
	} else if !o.remote && !isLoopback(host) {
		return usagef("--listen %s: is not loopback, and the page has no login; use 127.0.0.1, or --allow-remote if only those who may see all locks can reach it", o.listen)
	}
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return usagef("--listen: %v", err)
	}
	h := web.Handler(m, options...)
	if !o.remote {
		h = onlyLoopback(h)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1) // capacity 1: why the server has ended; nothing is dropped, never closed
	go func() { failed <- server.Serve(listener) }()
	p.line("http://%s/", listener.Addr())
	select {
	case err = <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if server.Shutdown(limit) != nil {
		_ = server.Close()
	}
	if err = <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// isLoopback reports whether a host, as in a URL or an address, is this machine by loopback.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// onlyLoopback answers only requests for a loopback host. A site can make its own name lead to 127.0.0.1 (DNS
// rebinding), and its script could then read the page; the browser still sends the site's name.
func onlyLoopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if !isLoopback(host) {
			http.Error(w, "The page is for a loopback host, such as http://127.0.0.1: see --allow-remote.", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
