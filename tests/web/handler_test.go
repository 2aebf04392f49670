package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/web"
)

// get asks for a path below the page, and returns the answer with its body.
func get(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r) // follows no redirect
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(body)
}

func TestEachAnswerIsReadOnlyAndKeepsOthersOut(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, web.Handler(manager(t, quorumlocktest.Start(t, 3), "")), "127.0.0.1:0")
	for path, kind := range map[string]string{
		"": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8",
		"icon.svg": "image/svg+xml", "list?prefix=": "application/json",
	} {
		answer, body := get(t, http.MethodGet, url+path)
		assert.Equal(t, http.StatusOK, answer.StatusCode, path)
		assert.Equal(t, kind, answer.Header.Get("Content-Type"), path)
		assert.NotEmpty(t, body, path)
		answer, body = get(t, http.MethodHead, url+path)
		assert.Equal(t, http.StatusOK, answer.StatusCode, path)
		assert.Empty(t, body, path)
	}
	answer, _ := get(t, http.MethodHead, url+"events")
	assert.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	for _, path := range []string{"", "app.js", "events", "list", "nothing", "../../etc/passwd", "static/index.html"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			if path == "events" && method == http.MethodGet {
				continue
			}
			answer, _ := get(t, method, url+path)
			policy := answer.Header.Get("Content-Security-Policy")
			if strings.HasPrefix(path, "..") {
				continue // the mux redirects
			}
			assert.True(t, strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';"), policy)
			assert.NotContains(t, policy, "unsafe")
			assert.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"))
			assert.Equal(t, "no-referrer", answer.Header.Get("Referrer-Policy"))
			assert.Empty(t, answer.Header.Get("Access-Control-Allow-Origin"))
			if method != http.MethodGet {
				assert.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode, "%s %s", method, path)
				assert.Equal(t, "GET, HEAD", answer.Header.Get("Allow"))
			}
		}
	}
	for _, path := range []string{"nothing", "static/index.html", "app.js/"} {
		answer, _ := get(t, http.MethodGet, url+path)
		assert.Equal(t, http.StatusNotFound, answer.StatusCode, path)
	}
	for _, path := range []string{"events", "list?prefix=a"} {
		answer, _ := get(t, http.MethodGet, url+path, "Sec-Fetch-Site", "cross-site")
		assert.Equal(t, http.StatusForbidden, answer.StatusCode, "another site makes no viewer's browser scan the nodes")
	}
	first, _ := get(t, http.MethodGet, url+"app.js")
	again, _ := get(t, http.MethodGet, url+"app.js", "If-None-Match", first.Header.Get("ETag"))
	assert.Equal(t, http.StatusNotModified, again.StatusCode)
	for _, bad := range []string{"events?name=a&permits=x", "events?name=a&permits=-1", "events?name=a&permits=1025"} {
		answer, _ := get(t, http.MethodGet, url+bad)
		assert.Equal(t, http.StatusBadRequest, answer.StatusCode, bad)
	}
}

func TestAPathWithoutItsSlashLeadsToThePage(t *testing.T) {
	t.Parallel()
	h := web.Handler(manager(t, quorumlocktest.Start(t, 1), ""))
	for path, want := range map[string]string{"/locks": "./locks/", "/a:b": "./a:b/", "//evil.example": "./evil.example/", "/x?y=/": "./x/"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.URL.Path = ""
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusMovedPermanently, w.Code)
		assert.Equal(t, want, w.Header().Get("Location"))
	}
}

// event is one of a stream.
type event struct {
	kind string
	data map[string]any
}

// stream reads the events of a stream until it ends; the channel is closed then. Its capacity is more than a test
// reads, so nothing is dropped.
func stream(t *testing.T, ctx context.Context, url string) <-chan event {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	events := make(chan event, 1000)
	go func() {
		defer close(events)
		defer func() { _ = answer.Body.Close() }()
		lines, kind := bufio.NewScanner(answer.Body), ""
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				kind = name
			} else if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				e := event{kind: kind}
				if json.Unmarshal([]byte(text), &e.data) == nil {
					events <- e
				}
			}
		}
	}()
	t.Cleanup(func() { // a test ends the stream before
		for range events {
			continue // until it is closed
		}
	})
	return events
}

// next returns the next event of a kind, which must come in time, or the zero event at the end of the stream.
func next(t *testing.T, events <-chan event, kind string) event {
	t.Helper()
	for late := time.After(patience); ; {
		select {
		case e, open := <-events:
			if !open || e.kind == kind {
				return e
			}
		case <-late:
			require.Fail(t, "no event in time", kind)
		}
	}
}

// The server of serve has a WriteTimeout and a ReadTimeout of 2 s.
func TestAStreamOutlivesTheTimeoutsOfItsServerAndNotItsManager(t *testing.T) {
	t.Parallel()
	c := quorumlocktest.Start(t, 3)
	m := manager(t, c, "billing-1")
	lost := acquire(t, background, m, "invoices")
	acquire(t, background, m, "orders/4711")
	url, _ := serve(t, web.Handler(m), "127.0.0.1:0")
	c.ForceLost(t, lost)
	events := stream(t, t.Context(), url+"events?name=orders%2F4711")
	var state, name event
	for range 5 {
		state = next(t, events, "state")
		name = next(t, events, "name")
	}
	require.NotNil(t, state.data, "the stream has ended")
	assert.Equal(t, map[string]any{"level": "good", "text": "Locks are granted. 3 of 3 nodes are usable.", "detail": ""}, state.data["verdict"])
	assert.EqualValues(t, 1, state.data["total"])
	assert.EqualValues(t, 1, state.data["lost"])
	assert.Equal(t, "It is held.", name.data["text"])
	assert.Equal(t, "billing-1", name.data["holders"].([]any)[0].(map[string]any)["label"])
	assert.Equal(t, "1 lease of it is of this process.", name.data["here"])

	require.NoError(t, m.Close(background))
	assert.Equal(t, "closed", next(t, events, "closed").kind)
	assert.Zero(t, next(t, events, ""), "the stream has ended")
	after := stream(t, t.Context(), url+"events")
	assert.Equal(t, "This Manager is closed.", next(t, after, "state").data["verdict"].(map[string]any)["text"])
	assert.Equal(t, "closed", next(t, after, "closed").kind)
}

// sent is an answer that sends its parts only at Flush. An http.Server also sends when it has 4 kB, so over it an event
// would come some seconds late.
type sent struct {
	http.ResponseWriter
	unsent strings.Builder
	parts  chan string // its capacity is more than a test has parts; never closed
}

func (s *sent) Write(b []byte) (int, error) { return s.unsent.Write(b) }

func (s *sent) Flush() {
	s.parts <- s.unsent.String()
	s.unsent.Reset()
}

func TestEachEventIsSentAtOnce(t *testing.T) {
	t.Parallel()
	m := manager(t, quorumlocktest.Start(t, 1), "")
	acquire(t, background, m, "job")
	w := &sent{ResponseWriter: httptest.NewRecorder(), parts: make(chan string, 1000)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		web.Handler(m).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events?name=job", nil))
	}()
	for _, want := range []string{"retry: ", "event: state\n", "event: name\n", "event: state\n", "event: name\n"} {
		select {
		case part := <-w.parts:
			assert.True(t, strings.HasPrefix(part, want), "%q and not %q", part, want)
			assert.Equal(t, 1, strings.Count(part, "\n\n"), "one event: %q", part)
		case <-time.After(patience):
			assert.Fail(t, "nothing is sent", want)
		}
	}
	stop()
	<-done
	assert.Empty(t, w.unsent.String())
}

func TestShutdownDoesNotWaitForViewers(t *testing.T) {
	t.Parallel()
	h := web.Handler(manager(t, quorumlocktest.Start(t, 3), ""))
	url, server := serve(t, h, "127.0.0.1:0")
	events := stream(t, t.Context(), url+"events")
	next(t, events, "state")
	ctx, stop := context.WithTimeout(background, patience)
	defer stop()
	require.NoError(t, server.Shutdown(ctx))
	assert.Zero(t, next(t, events, ""))
	late := httptest.NewRequestWithContext(context.WithValue(ctx, http.ServerContextKey, server), http.MethodGet, "/events", nil)
	h.ServeHTTP(httptest.NewRecorder(), late) // over a connection that a browser had opened in advance
	assert.NoError(t, ctx.Err(), "it ends at once")
}

func TestAStreamEndsWithItsRequestAndThereAreAtMost64(t *testing.T) {
	t.Parallel()
	h := web.Handler(manager(t, quorumlocktest.Start(t, 1), ""))
	var open atomic.Int64
	url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		h.ServeHTTP(w, r)
	}), "127.0.0.1:0")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 64 {
		next(t, stream(t, ctx, url+"events"), "state")
	}
	answer, _ := get(t, http.MethodGet, url+"events")
	assert.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	assert.NotEmpty(t, answer.Header.Get("Retry-After"))
	stop()
	require.Eventually(t, func() bool { return open.Load() == 0 }, patience, 10*time.Millisecond)
	again, stop := context.WithCancel(t.Context())
	defer stop()
	assert.Equal(t, "state", next(t, stream(t, again, url+"events"), "state").kind)
	stop()
}

// counted counts, for each list of words, the script calls to all nodes that have all of these words among their
// arguments. A Manager's own checks also read, but not locks.
func counted(c *quorumlocktest.Cluster, words ...string) map[string]*atomic.Int64 {
	counts := map[string]*atomic.Int64{}
	for _, w := range words {
		counts[w] = new(atomic.Int64)
	}
	for _, n := range c.Nodes() {
		n.Fail(func(args []string) bool {
			for w, count := range counts {
				if !slices.ContainsFunc(strings.Fields(w), func(word string) bool { return !slices.Contains(args, word) }) {
					count.Add(1)
				}
			}
			return false
		}, "")
	}
	return counts
}

func TestViewersShareWhatTheyAskOfTheNodes(t *testing.T) {
	t.Parallel()
	c := quorumlocktest.Start(t, 3)
	m := manager(t, c, "billing-1")
	for i := range 250 {
		acquire(t, background, m, fmt.Sprintf("orders/%03d", i), quorumlock.WithoutRenewal())
	}
	url, _ := serve(t, web.Handler(m), "127.0.0.1:0")
	const ofName = "read quorumlock:orders/000"
	counts := counted(c, ofName, "scan")
	reads, scans := counts[ofName], counts["scan"]
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	plain := stream(t, ctx, url+"events")
	for range 4 {
		assert.Len(t, next(t, plain, "state").data["leases"], 100)
	}
	assert.Zero(t, reads.Load(), "a page without a name asks nothing of the nodes")

	began := time.Now()
	var all []<-chan event
	for range 10 {
		all = append(all, stream(t, ctx, url+"events?name=orders%2F000"))
	}
	for range 5 {
		for _, events := range all {
			require.NotEmpty(t, next(t, events, "name").data["text"], "whatever it is: on a machine that stands still, nodes are late")
		}
	}
	most := int64(time.Since(began)/(900*time.Millisecond)) + 2 // one at the beginning, one under way
	assert.LessOrEqual(t, reads.Load(), 3*most, "one read in 0.9 s of each node, whoever looks")
	assert.GreaterOrEqual(t, reads.Load(), int64(3*3))
	t.Logf("%d reads of 3 nodes in %v, with 10 viewers", reads.Load(), time.Since(began))
	stop()

	answers := make(chan string, 4)
	for range cap(answers) {
		go func() {
			_, body := get(t, http.MethodGet, url+"list?prefix=orders%2F")
			answers <- body
		}()
	}
	for range cap(answers) {
		var list struct {
			Rows []any
			More bool
		}
		require.NoError(t, json.Unmarshal([]byte(<-answers), &list))
		assert.Len(t, list.Rows, 200)
		assert.True(t, list.More)
	}
	assert.Positive(t, scans.Load())
	assert.LessOrEqual(t, scans.Load(), int64(2*4+2), "four viewers share one scan of some 1,000 keys")
}

// written records the write deadline that stands at the first write.
type written struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
	at        time.Duration // of the first write, until the deadline
}

func (w *written) SetWriteDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	return nil
}

func (w *written) Write(b []byte) (int, error) {
	if w.at == 0 {
		w.at = time.Until(w.deadlines[len(w.deadlines)-1])
	}
	return w.ResponseRecorder.Write(b)
}

// A list may wait for other scans, of up to 20 s each. That time is not part of the time for the write.
func TestTheTimeToWriteAListBeginsWithTheWrite(t *testing.T) {
	t.Parallel()
	c := quorumlocktest.Start(t, 1)
	w := &written{ResponseRecorder: httptest.NewRecorder()}
	web.Handler(manager(t, c, "billing-1")).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/list?prefix=a", http.NoBody))
	require.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, time.Time{}, w.deadlines[0], "none while it waits")
	assert.InDelta(t, 10*time.Second, w.at, float64(5*time.Second))
}

func TestAPageOfPermitsReadersAndANodeThatIsDown(t *testing.T) {
	t.Parallel()
	url := night(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	look := func(query string) map[string]any {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		return next(t, stream(t, ctx, url+"events?"+query), "name").data
	}
	permits := look("name=encode&permits=100")
	assert.Equal(t, "2 of 100 permits are held.", permits["text"])
	assert.Len(t, permits["holders"], 2)
	readers := look("name=prices")
	assert.Equal(t, "2 readers hold it together.", readers["text"])
	assert.Len(t, readers["holders"], 2)
	daily := look("name=reports%2Fdaily")
	assert.Equal(t, "It is held. 2 processes wait.", daily["text"])
	queue := daily["queue"].([]any)
	require.Len(t, queue, 2)
	own := 0
	for _, row := range queue {
		w := row.(map[string]any)
		if w["own"] == true {
			own++
		}
		assert.Equal(t, "exclusive", w["wants"])
		assert.GreaterOrEqual(t, w["waited"], 0.0)
		assert.InDelta(t, time.Now().UnixMilli(), w["since"], float64(2*patience.Milliseconds()))
	}
	assert.Equal(t, 1, own)
	assert.Empty(t, readers["queue"])
	assert.NotNil(t, readers["queue"])
	holder := daily["holders"].([]any)[0].(map[string]any)
	_, trace := traced()
	assert.Equal(t, "https://jaeger.example/trace/"+trace+"?uiFind=0102030405060708", holder["trace"])
	node := daily["nodes"].([]any)[2].(map[string]any)
	assert.Equal(t, "no answer", node["says"])
	assert.Contains(t, node["problem"], "refused")
	assert.Equal(t, "No one holds it.", look("name=free")["text"])
	assert.Contains(t, look("name=" + strings.Repeat("x", 5000))["error"], "name")
	for events, wanted := stream(t, ctx, url+"events"), false; !wanted; { // with the next renewal
		state := next(t, events, "state").data
		require.NotNil(t, state)
		leases := state["leases"].([]any)
		i := slices.IndexFunc(leases, func(l any) bool { return l.(map[string]any)["name"] == "orders/4711" })
		require.GreaterOrEqual(t, i, 0)
		l := leases[i].(map[string]any)
		wanted = l["waiters"] == 1.0 && l["asked"] == "reports-1 (eu-west) asks for it: deploy of checkout"
	}
	stop()
}
