package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

const (
	mostStreams = 64
	every       = time.Second
	goodFor     = every * 9 / 10   // an answer is good for viewers whose second began later
	patience    = 10 * time.Second // of a write to a viewer
	longestScan = 20 * time.Second
	listEvery   = 15 * time.Second
)

// servers knows which servers are shutting down: their Shutdown waits for requests, and a stream would not end.
type servers struct {
	mu     sync.Mutex
	ending map[*http.Server]chan struct{} // closed when Shutdown begins
}

// of returns a channel that closes when the server of a request begins its Shutdown. For a server of another kind it
// returns nil, which never closes.
func (s *servers) of(r *http.Request) <-chan struct{} {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending == nil {
		s.ending = map[*http.Server]chan struct{}{}
	}
	end := s.ending[server]
	if end == nil {
		end = make(chan struct{})
		s.ending[server] = end // it stays: a browser may connect once more
		// A second Shutdown runs it again. A server whose Shutdown has begun never does.
		server.RegisterOnShutdown(sync.OnceFunc(func() { close(end) }))
	}
	return end
}

// subject is the name that a viewer looks at.
type subject struct {
	name    string
	permits int // 0 for a name without
}

// subjectOf reads the query of a request. An empty name is none.
func subjectOf(r *http.Request) (s subject, err error) {
	q := r.URL.Query()
	s.name = q.Get("name")
	if text := q.Get("permits"); text != "" && s.name != "" {
		if s.permits, err = strconv.Atoi(text); err != nil || s.permits < 0 || s.permits > mostPermits {
			return s, fmt.Errorf("permits is not a number of 0 to %d", mostPermits)
		}
	}
	return s, nil
}

// stream serves server-sent events: the state each second, and the name that the viewer looks at.
func (p *page) stream(w http.ResponseWriter, r *http.Request) {
	subject, err := subjectOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d pages are open.", mostStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy would hold the events back
	if r.Method == http.MethodHead {
		return
	}
	v := &viewer{page: p, to: w, control: http.NewResponseController(w), ending: p.servers.of(r), subject: subject}
	v.run(r.Context())
}

// viewer is one stream.
type viewer struct {
	*page
	to      http.ResponseWriter
	control *http.ResponseController
	ending  <-chan struct{}
	subject subject
}

func (v *viewer) run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	if v.write("retry: 2000\n\n") != nil {
		return
	}
	for {
		if v.show(ctx) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-v.ending:
			return
		case <-v.closed:
			_ = v.show(ctx) // the last losses
			_ = v.write("event: closed\ndata: {}\n\n")
			return
		}
	}
}

// show sends the state, and the view of the subject.
func (v *viewer) show(ctx context.Context) error {
	of := "state"
	select {
	case <-v.closed:
		of = "last state" // the state from before is no longer true
	default:
	}
	state, err := v.polls.get(ctx, of, func(context.Context) (any, time.Duration) { return v.overview(), goodFor })
	if err == nil {
		err = v.write("event: state\ndata: " + string(state) + "\n\n")
	}
	if err != nil || v.subject.name == "" {
		return err
	}
	body, err := v.polls.get(ctx, "name "+queryOf(v.subject.name, v.subject.permits), func(ctx context.Context) (any, time.Duration) {
		return v.look(ctx, v.subject), goodFor
	})
	if err != nil {
		return err
	}
	return v.write("event: name\ndata: " + string(body) + "\n\n")
}

// write sends a text. A WriteTimeout is for the answer as a whole, and the answer of a stream has no end: each
// write has its own time.
func (v *viewer) write(text string) error {
	_ = v.control.SetWriteDeadline(v.now().Add(patience)) // if it is not supported, the server's own remains
	if _, err := v.to.Write([]byte(text)); err != nil {
		return err
	}
	return v.control.Flush()
}

// overview returns the state that the Manager knows.
func (p *page) overview() overview {
	nodes, leases := p.m.Nodes(), p.m.Leases()
	v := overview{Process: p.process, At: p.now().UnixMilli(), Verdict: verdictOf(p.m.Ready(), nodes, leases), Nodes: nodeRows(nodes), Total: len(leases)}
	v.Leases = leaseRows(urgent(leases, mostLeases), p.now())
	v.Events, v.Losses, v.Lost, v.Dropped = p.recent.latest()
	return v
}

// look asks the nodes about a name.
func (p *page) look(ctx context.Context, s subject) nameView {
	var kind quorumlock.Kind
	if s.permits > 0 {
		kind = quorumlock.Permits(s.permits)
	}
	status, err := p.m.Inspect(ctx, s.name, kind)
	return ofName(s.name, s.permits, &status, err, p.m.Leases(), p.link, p.now())
}

// list serves the names of a prefix. One request scans at a time, and the others wait.
func (p *page) list(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "application/json")
		return
	}
	deadline := http.NewResponseController(w).SetWriteDeadline
	_ = deadline(time.Time{}) // none while it waits: for each scan before it up to longestScan
	prefix := r.URL.Query().Get("prefix")
	body, err := p.polls.get(r.Context(), "list "+prefix, func(ctx context.Context) (any, time.Duration) {
		select {
		case p.scan <- struct{}{}:
			defer func() { <-p.scan }()
		case <-ctx.Done():
			return nil, 0
		}
		found := p.found(ctx, prefix)
		took := time.Duration(found.Took * float64(time.Millisecond))
		return found, max(listEvery*9/10, 9*took) // at most a tenth of the time
	})
	if err != nil {
		return // the viewer is gone
	}
	_ = deadline(p.now().Add(patience))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// found finds the names of a prefix.
func (p *page) found(ctx context.Context, prefix string) listView {
	began := p.now()
	ctx, cancel := context.WithTimeout(ctx, longestScan)
	defer cancel()
	v := listView{At: began.UnixMilli(), Prefix: shown(prefix, inTable), Rows: []listRow{}}
	for s, err := range p.m.List(ctx, prefix) {
		if err != nil {
			v.Error = problem(err, alone)
			break
		}
		if len(v.Rows) == mostListed {
			v.More = true
			break
		}
		v.Rows = append(v.Rows, listRowOf(&s, p.now()))
	}
	slices.SortFunc(v.Rows, func(a, b listRow) int {
		return cmp.Or(cmp.Compare(b.Waiters, a.Waiters), cmp.Compare(a.Name, b.Name))
	})
	v.Took = ms(p.now().Sub(began))
	return v
}
