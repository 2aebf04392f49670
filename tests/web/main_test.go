// Package web looks at the page of package web in a real headless Chromium: the text that an operator reads, the effect
// of hostile texts, and the reconnection. make web installs Chromium and names it; without it only the handler is
// tested.
package web

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// patience is the limit for required events on a machine that stands still for seconds.
const patience = time.Minute

var (
	chromium = flag.String("chromium", "", "the `program` Chromium")
	picture  = flag.String("picture", "", "the `file` that gets a screenshot")
)

// browser is shared by all tests; each has its own tab.
var browser struct {
	once sync.Once
	ctx  context.Context
	end  []context.CancelFunc
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for i := range browser.end {
		browser.end[len(browser.end)-1-i]()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// needsChromium skips a test without a browser.
func needsChromium(t *testing.T) {
	t.Helper()
	if *chromium == "" {
		t.Skip("make web runs it: it needs -chromium, and half a minute of processor time")
	}
}

// start starts the browser.
func start() {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(*chromium), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-dev-shm-usage", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	browser.end = append(browser.end, end)
	browser.ctx, end = chromedp.NewContext(allocator)
	browser.end = append(browser.end, end)
	browser.err = chromedp.Do(browser.ctx)
}

// tab is a page in the browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string // of the console: exceptions, and refusals by the page's policy
}

// open opens a page, in a window of this size.
func open(t *testing.T, url string, width, height int64) *tab {
	t.Helper()
	browser.once.Do(start)
	require.NoError(t, browser.err)
	ctx, end := chromedp.NewContext(browser.ctx)
	t.Cleanup(end)
	p := &tab{t: t}
	require.NoError(t, chromedp.Listen(ctx, p.hear))
	var stop context.CancelFunc
	p.ctx, stop = context.WithTimeout(ctx, 3*patience)
	t.Cleanup(stop)
	p.run(chromedp.EmulateViewport(width, height), chromedp.Navigate(url))
	return p
}

func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			p.errors = append(p.errors, string(arg.Value))
		}
	}
}

func (p *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// eval returns the value of an expression of the page's script.
func eval[T any](p *tab, script string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
	require.NoError(p.t, err)
	return v
}

// text returns the visible text of an element.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return strings.Join(strings.Fields(eval[string](p, fmt.Sprintf(`(e => e?.checkVisibility() ? e.innerText : '')(document.querySelector(%q))`, selector))), " ")
}

// eventually waits until an element shows a text.
func (p *tab) eventually(selector, want string) {
	p.t.Helper()
	var found string
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if found = p.text(selector); strings.Contains(found, want) {
			return
		}
	}
	require.Fail(p.t, "not shown in time", "%s: %q does not contain %q", selector, found, want)
}
