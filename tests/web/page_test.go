package web

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// quiet asserts that the page has met no error, and that its policy has refused nothing.
func (p *tab) quiet() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Empty(p.t, p.errors)
}

// fits asserts that nothing is wider than the window.
func (p *tab) fits() {
	p.t.Helper()
	wide := eval[[]string](p, `[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(e).clipPath === 'none' && !e.closest('caption, thead')).
		map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))`)
	assert.Empty(p.t, wide, "beyond the right edge")
	assert.LessOrEqual(p.t, eval[int](p, `document.documentElement.scrollWidth`), eval[int](p, `innerWidth`), "it scrolls sideways")
}

func TestAnOperatorFindsTheHolderOfANameThatHangs(t *testing.T) {
	needsChromium(t)
	at := night(t)
	p := open(t, at, 1100, 900)
	p.eventually("#verdict-text", "Locks are granted. 2 of 3 nodes are usable.")
	assert.Contains(t, p.text("#verdict-detail"), "If one more node fails, no lock is granted or renewed.")
	assert.Contains(t, p.text("#nodes tbody tr:nth-child(3)"), "grants no locks")
	assert.Contains(t, p.text("#losses tbody"), "invoices/close-month")
	assert.Contains(t, p.text("#leases tbody"), "orders/4711")

	p.run(chromedp.SendKeys("#find-name", "reports/"), chromedp.Click(`button[value=prefix]`))
	p.eventually("#listed tbody", "2 wait")
	p.run(chromedp.Click(`#listed tbody a`))
	p.eventually("#name-text", "It is held. 2 processes wait.")
	assert.Contains(t, p.text("#holders tbody"), "billing-2 (eu-west)")
	assert.Contains(t, p.text("#answers tbody"), "no answer")
	rows := p.text("#queue tbody tr:nth-child(1)") + "; " + p.text("#queue tbody tr:nth-child(2)")
	const waits = `[0-9a-f]{16}( this process)? [0-9.]+ m?s since [0-9:]+ exclusive`
	assert.Regexp(t, "^"+waits+"; "+waits+"$", rows)
	assert.Equal(t, 1, strings.Count(rows, "this process"), rows)
	assert.Empty(t, p.text("#queue-more"))
	_, trace := traced()
	assert.Equal(t, "https://jaeger.example/trace/"+trace+"?uiFind=0102030405060708", eval[string](p, `document.querySelector('#holders a').href`))
	assert.Equal(t, "noopener noreferrer", eval[string](p, `document.querySelector('#holders a').rel`))

	p.run(chromedp.SetValue("#find-name", "encode"), chromedp.SetValue("#find-permits", "4"), chromedp.Click(`button[value=name]`))
	p.eventually("#name-text", "2 of 4 permits are held.")
	p.eventually("#leases tbody", "reports-1 (eu-west) asks for it: deploy of checkout")
	p.run(chromedp.Click("#name .close"))
	require.Eventually(t, func() bool { return p.text("#name") == "" }, patience, 50*time.Millisecond, "it is closed")

	assert.Equal(t, 1, eval[int](p, `document.querySelectorAll('h1').length`))
	for role, least := range map[string]int{"table": 4, "row": 10, "cell": 20, "columnheader": 10, "meter": 6, "status": 1, "search": 1} {
		assert.GreaterOrEqual(t, eval[int](p, fmt.Sprintf(`document.querySelectorAll('[role=%s]').length`, role)), least, role)
	}
	assert.Zero(t, eval[int](p, `document.querySelectorAll('input:not([id]), [style]:not(.bar i), [onclick]').length`))
	p.fits()
	p.quiet()
}

// hostile are foreign names and labels.
var hostile = []string{
	`<script>window.harmed=1</script>`, `"><img src=x onerror=window.harmed=1>`, `'-window.harmed=1-'`, `</td></table><h1>owned</h1>`,
	`javascript:window.harmed=1`, `{{constructor.constructor("window.harmed=1")()}}`, "\u202egnp.exe\u2066", "a\x00b\x1b[2J\nc\r\u2028d",
	`a/b//../%2e%2e/?x=1&name=y#z+ %`, `&lt;b&gt;&#x41;`, "__proto__", "constructor", "\u0300\u0301\u0302\u0303" + strings.Repeat("\u0300", 60),
	strings.Repeat("w", 256), "مرحبا بالعالم", "𝕏🔒\U000e0041",
}

func TestTextsOfOthersAreShownAndDoNothing(t *testing.T) {
	needsChromium(t)
	c := quorumlocktest.Start(t, 3)
	m := manager(t, c, hostile[0])
	h := handler(t, m)
	for i, text := range hostile {
		label := text[:min(len(text), 256)]
		acquire(t, background, m, text, quorumlock.WithHolder(label))
		if i == 1 {
			require.NoError(t, m.AskRelease(background, text, hostile[0]))
		}
	}
	for _, n := range c.Nodes() { // another program's lock
		_, err := n.Do("SET", "quorumlock:of another", hostile[1]+strings.Repeat("W", 4096), "PX", "600000")
		require.NoError(t, err)
		_, err = n.Do("SET", "quorumlock:of another, as ours", "0123456789abcdef0123456789abcdef 7 1700000000000000 - "+hostile[0]+hostile[1], "PX", "600000")
		require.NoError(t, err)
	}
	crowd(t, c, m, hostile[0]+hostile[1])
	c.ForceLost(t, acquire(t, background, m, hostile[1]+"lost"))
	at, _ := serve(t, h, "127.0.0.1:0")
	p := open(t, at+"#prefix=", 360, 740)
	p.eventually("#leases tbody", "<script>window.harmed=1</script>")
	p.eventually("#listed tbody", "of another")
	assert.Contains(t, p.text("#listed tbody"), hostile[1])
	assert.Contains(t, p.text("#leases tbody"), `\u202egnp.exe\u2066`)
	assert.Contains(t, p.text("#leases tbody"), `a\x00b\x1b[2J\nc\r\u2028d`)
	assert.Contains(t, p.text("#losses tbody"), `onerror=window.harmed=1>lost`)
	p.fits()

	for _, text := range append(hostile, "of another", "of another, as ours") { // each is found by its link
		href := "#" + url.Values{"name": {text}}.Encode()
		require.True(t, eval[bool](p, fmt.Sprintf(`[...document.querySelectorAll('#listed a')].some(a => a.getAttribute('href') === %s)`, strconv.Quote(href))), "%q", text)
		p.run(chromedp.Evaluate[chromedp.Void]("location.hash = " + strconv.Quote(href) + "; 0"))
		p.eventually("#name-text", "It is held.")
		if want := map[bool]string{true: text}[strings.HasPrefix(text, "<")]; want != "" {
			assert.Equal(t, want, p.text("#name-title"))
		}
		p.fits()
		p.run(chromedp.Evaluate[chromedp.Void]("location.hash = 'prefix='; 0"))
		p.eventually("#listed tbody", "of another")
	}
	p.run(chromedp.Evaluate[chromedp.Void]("location.hash = 'name=crowd'; 0"))
	p.eventually("#queue tbody", "shared")
	p.eventually("#queue-more", "And 1 more.")
	assert.NotContains(t, p.text("#queue tbody"), "harmed", "it is no ticket")
	assert.Equal(t, "undefined", eval[string](p, `typeof window.harmed`))
	assert.Equal(t, []int{1, 1, 1}, eval[[]int](p, `['h1', 'img', 'script'].map(tag => document.getElementsByTagName(tag).length)`), "no element of others")
	assert.Zero(t, eval[int](p, `document.querySelectorAll('a[href^="javascript" i], iframe, [onerror]').length`))
	p.quiet()
}

func TestThePolicyOfThePageRefusesWhatTheScriptWouldLetIn(t *testing.T) {
	needsChromium(t)
	at, _ := serve(t, handler(t, manager(t, quorumlocktest.Start(t, 1), "")), "127.0.0.1:0")
	p := open(t, at, 800, 600)
	p.eventually("#verdict-text", "Locks are granted.")
	assert.Equal(t, "refused", eval[string](p, `(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return 'refused' } })()`))
	assert.Equal(t, "undefined", eval[string](p, `(() => { const s = document.createElement('style'); s.textContent = 'body { --harmed: 1 }'; document.head.append(s);
		return getComputedStyle(document.body).getPropertyValue('--harmed') || 'undefined' })()`))
}

func TestThePageFitsAPhoneByDayAndByNight(t *testing.T) {
	needsChromium(t)
	at := night(t)
	p := open(t, at+"#name=reports%2Fdaily", 360, 740)
	p.eventually("#name-text", "wait")
	grounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		require.NoError(t, err)
		p.eventually("#nodes tbody", "grants no locks")
		p.fits()
		grounds[eval[string](p, `getComputedStyle(document.body).backgroundColor`)] = true
		assert.Equal(t, "0s", eval[string](p, `getComputedStyle(document.querySelector('.bar i')).transitionDuration`))
		assert.Empty(t, eval[[]string](p, contrasts), scheme)
	}
	assert.Len(t, grounds, 2, "a light page and a dark one")
	p.quiet()
}

// contrasts lists texts whose contrast is below 4.5, the AA of WCAG 2.
const contrasts = `(() => {
	const rgb = c => c.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
	const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c } };
	const found = new Set();
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
		const a = light(getComputedStyle(e).color), b = light(ground(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) found.add(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
	}
	return [...found];
})()`

func TestThePageSaysThatItIsStaleAndComesBack(t *testing.T) {
	needsChromium(t)
	c := quorumlocktest.Start(t, 3)
	m := manager(t, c, "billing-1")
	h := handler(t, m)
	at, server := serve(t, h, "127.0.0.1:0")
	p := open(t, at, 800, 600)
	p.eventually("#verdict-text", "Locks are granted. 3 of 3")
	require.NoError(t, server.Close())
	p.eventually("#verdict-text", "No news from the process for")
	assert.Contains(t, p.text("#verdict-detail"), "Below is what was known at")
	assert.Equal(t, "??", eval[string](p, `document.title.slice(0, 2)`))
	u, err := url.Parse(at)
	require.NoError(t, err)
	serve(t, h, u.Host)
	p.eventually("#verdict-text", "Locks are granted. 3 of 3")
	assert.False(t, eval[bool](p, `document.body.classList.contains('stale')`))
	require.NoError(t, m.Close(background))
	p.eventually("#verdict-text", "This Manager is closed.")
	p.quiet()
}

func TestThePictureOfTheDocuments(t *testing.T) {
	needsChromium(t)
	if *picture == "" {
		t.Skip("make web-picture runs it")
	}
	at := night(t)
	p := open(t, at+"#name=reports%2Fdaily", 1000, 1320)
	p.eventually("#name-text", "wait")
	time.Sleep(12 * time.Second) // so that the times are not zero
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*picture, png, 0o644))
}
