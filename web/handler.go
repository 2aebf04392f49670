package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
)

//go:embed static
var static embed.FS

// asset is a file of the page.
type asset struct {
	kind, tag string
	body      []byte
}

// assets are the files by the end of the request's path; "" is the page itself.
var assets = map[string]asset{
	"":          readAsset("static/index.html", "text/html; charset=utf-8"),
	"app.js":    readAsset("static/app.js", "text/javascript; charset=utf-8"),
	"style.css": readAsset("static/style.css", "text/css; charset=utf-8"),
	"icon.svg":  readAsset("static/icon.svg", "image/svg+xml"),
}

func readAsset(name, kind string) asset {
	body, err := static.ReadFile(name)
	if err != nil {
		panic(err) // it is compiled in
	}
	sum := sha256.Sum256(body)
	return asset{kind: kind, tag: `"` + hex.EncodeToString(sum[:8]) + `"`, body: body}
}

// policy lets the page load its own three files and its own data, and nothing else. It also blocks anything that an
// external name, label or error might bring in, should the page ever take one for HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// page is the handler.
type page struct {
	m       *quorumlock.Manager
	link    string // to traces; "" for none
	process string // a description of this process
	now     func() time.Time
	recent  *recent
	polls   polls
	servers servers
	closed  chan struct{} // closed when the Manager has closed; carries nothing
	// streams has capacity mostStreams, and a value for each open stream; scan has capacity 1, and a value while a
	// request scans the nodes. Nothing is dropped, and both are never closed.
	streams, scan chan struct{}
}

// Handler returns the page about m, for the end of a path that ends with a slash, behind http.StripPrefix or at the
// root. It answers GET and HEAD only, and needs an http.ResponseWriter that can flush. It is safe for concurrent use, by
// several servers too.
//
// Handler begins to record events. It keeps one goroutine and some 100 kB until m is closed, so call it once. A nil m
// panics.
func Handler(m *quorumlock.Manager, opts ...Option) http.Handler {
	host, _ := os.Hostname()
	p := &page{
		m: m, now: time.Now, process: shown(host+", "+filepath.Base(os.Args[0])+", process "+strconv.Itoa(os.Getpid()), inTable),
		recent: newRecent(m), closed: make(chan struct{}), streams: make(chan struct{}, mostStreams), scan: make(chan struct{}, 1),
	}
	p.polls = polls{now: p.now, byOf: map[string]*poll{}}
	for _, o := range opts {
		o.apply(p)
	}
	go func() { // the only goroutine; the end of the Manager ends it
		defer close(p.closed)
		p.recent.run(p.now)
	}()
	return p
}

// ServeHTTP serves the page, its files and its data.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // a name is in the address, and a trace viewer need not know it
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	p.servers.of(r) // before its Shutdown
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "The page is read-only: GET and HEAD only.", http.StatusMethodNotAllowed)
		return
	}
	switch end := strings.TrimPrefix(r.URL.Path, "/"); end {
	case "events", "list":
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "Another site asks.", http.StatusForbidden)
			return
		}
		if end == "events" {
			p.stream(w, r)
		} else {
			p.list(w, r)
		}
	default:
		p.file(w, r, end)
	}
}

// file serves a file of the page.
func (p *page) file(w http.ResponseWriter, r *http.Request, end string) {
	a, ok := assets[end]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if whole, _, _ := strings.Cut(r.RequestURI, "?"); end == "" && whole != "" && !strings.HasSuffix(whole, "/") { // the files are next to it
		w.Header().Set("Location", "./"+path.Base(whole)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
}
