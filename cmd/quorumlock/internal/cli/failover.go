package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/doctor"
)

type failoverOptions struct {
	failover      bool
	limit, settle time.Duration
}

// maxFailover bounds --failover: the probe keeps every write until it ends.
const maxFailover = time.Hour

func (o failoverOptions) check(flags *pflag.FlagSet, c *connection) error {
	switch {
	case !o.failover && flags.Changed("for"), !o.failover && flags.Changed("settle"):
		return usagef("--for and --settle: they bound a failover; give --failover as well")
	case !o.failover:
		return nil
	case len(c.options) != 1:
		return usagef("--failover: --nodes lists %d nodes, and a failover is watched at one: give the one endpoint of the service", len(c.options))
	case o.limit < time.Second || o.limit > maxFailover:
		return usagef("--for %v: must be 1s to 1h", o.limit)
	case o.settle < time.Second || o.settle > maxFailover:
		return usagef("--settle %v: must be 1s to 1h", o.settle)
	}
	return nil
}

// failover watches a failover of the one endpoint.
func (p *program) failover(ctx context.Context, o failoverOptions) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	c := &p.connection
	f := doctor.ProbeFailover(ctx, c.options[0], c.prefix, doctor.FailoverSettings{
		For: o.limit, Settle: o.settle,
		Ready: func() {
			p.note("writing to %s: force a failover there now; this waits for up to %v", c.addr(0), o.limit)
		},
		Seen: func() { p.note("a failover was seen: this ends when nothing has changed for %v", o.settle) },
	})
	report := doctor.JudgeFailover(f)
	if c.json {
		if err := p.printJSON(failoverReport(f, report)); err != nil {
			return err
		}
	} else {
		writeAll(p.stdout, p.aftermath(f, report))
	}
	return exitFor(report.Worst())
}

// aftermath formats the report of a failover for people.
func (p *program) aftermath(f doctor.Failover, r doctor.FailoverReport) string {
	style, n := p.style(), f.Before
	t := &table{width: p.columns()}
	t.row("", "NODE", "ROLE", "VERSION", "WHEN FULL", "REPLICAS", "FENCED")
	if n.Answers() {
		t.row("0", n.Addr, cmp.Or(n.Role, "-"), cmp.Or(n.Version, "-"), full(n), replicas(n), fenced(n))
	} else {
		t.row("0", n.Addr, "no answer")
	}
	var b strings.Builder
	b.WriteString(t.String())
	if r.Row != doctor.RowNotTried {
		b.WriteString("\n" + courseFacts(f, r))
	}
	b.WriteString(remedies(style, []doctor.Node{n}, r.Findings))
	word, _ := verdict(r.Worst())
	// The word may be coloured, so the wrapping of the following text must not count it.
	b.WriteString("\n" + paint(style, r.Worst(), word))
	b.WriteString(strings.TrimPrefix(wrap("", word+": "+r.Meaning), word))
	if r.Advice != "" {
		b.WriteString(wrap("      ", "advice: "+r.Advice))
	}
	return b.String()
}

// courseFacts describes the course of a failover, one line for each fact.
func courseFacts(f doctor.Failover, r doctor.FailoverReport) string {
	const indent = "                "
	var b strings.Builder
	fact := func(key, value string) {
		fmt.Fprintf(&b, "%-*s%s", len(indent), key, strings.TrimPrefix(wrap(indent, value), indent))
	}
	seen := "not seen in " + short(f.Lasted)
	if r.Seen {
		seen = fmt.Sprintf("seen after %s, watched for %s", short(r.After), short(f.Lasted))
	}
	fact("failover", seen)
	fact("run_id", idChange(f.Before.RunID, r.Seen, r.RunIDChanged))
	fact("master_replid", idChange(f.Before.ReplID, r.Seen, r.ReplIDChanged))
	fact("writes", refused(r.Course))
	fact("acknowledged", fmt.Sprintf("%d, of them lost: %d", r.Acknowledged, r.Lost))
	if r.Seen {
		fact("old connection", oldConnection(r.Course))
		fact("window", window(r.Course))
	}
	return b.String()
}

func idChange(before string, seen, changed bool) string {
	switch {
	case before == "":
		return "not shown by INFO"
	case changed:
		return "changed"
	case seen:
		return "did not change"
	}
	return "as before"
}

// refused describes how long writes were refused, and why.
func refused(c doctor.Course) string {
	if c.Refused == 0 && c.Accepted {
		return "never refused"
	}
	var why []string
	for _, word := range slices.Sorted(maps.Keys(c.Failures)) {
		why = append(why, fmt.Sprintf("%s %d", word, c.Failures[word]))
	}
	text := "refused for " + short(c.Refused)
	if !c.Accepted {
		text += ", and not accepted again"
	}
	return text + " (" + strings.Join(why, ", ") + ")"
}

func oldConnection(c doctor.Course) string {
	switch c.Old {
	case doctor.OldEnded:
		return "ended"
	case doctor.OldSilent:
		return "stayed open without an answer, and was given up"
	case doctor.OldReadOnly:
		return "survived the demotion, and answers READONLY"
	case doctor.OldRefuses:
		return "survived, and answers " + c.OldRefusal
	case doctor.OldAccepts:
		return "survived, and its server still accepts writes"
	case doctor.OldMoved:
		return "survived, and leads to the new master"
	default:
		return "not known"
	}
}

// window describes the lower bound of the failover window.
func window(c doctor.Course) string {
	switch {
	case c.Window == 0:
		return "the old master took no write after the new one had answered"
	case !c.TwoMasters:
		return "at least " + short(c.Window) + ": the old master took writes for this long after the new one had answered"
	}
	return "at least " + short(c.Window) + ": two masters took writes at the same time for this long"
}

func fenced(n doctor.Node) string {
	switch {
	case n.Unchecked != "":
		return "-"
	case !n.Fenced:
		return "never"
	case n.MaxLag == 0:
		return "yes"
	}
	return "lag " + short(n.MaxLag)
}

// failoverJSON is the JSON of doctor --failover. Its keys are stable.
type failoverJSON struct {
	Verdict         string           `json:"verdict"` // ok, warnings or broken
	Row             doctor.Row       `json:"row"`
	Meaning         string           `json:"meaning"`
	Advice          string           `json:"advice"`                  // empty where the findings are enough
	AdvisedWindowMs float64          `json:"advised_window_ms"`       // 0 where the endpoint must not be the only node
	Node            checkedJSON      `json:"node"`                    // before the failover
	Fenced          bool             `json:"fenced"`                  // INFO shows min_slaves_good_slaves
	GoodReplicas    int              `json:"good_replicas"`           // the number that it shows
	MaxLagMs        float64          `json:"min_replicas_max_lag_ms"` // 0 when it may not be read
	Failover        courseJSON       `json:"failover"`
	Findings        []doctor.Finding `json:"findings"`
}

type courseJSON struct {
	Seen          bool                 `json:"seen"`
	AfterMs       float64              `json:"after_ms"`
	WatchedMs     float64              `json:"watched_ms"`
	RunIDChanged  bool                 `json:"run_id_changed"`
	ReplIDChanged bool                 `json:"master_replid_changed"`
	RefusedMs     float64              `json:"refused_ms"`
	Accepted      bool                 `json:"accepted_again"`
	Failures      map[string]int       `json:"failures"` // of writes during that time, by their reason
	Acknowledged  int                  `json:"acknowledged"`
	Lost          int                  `json:"lost"`
	Old           doctor.OldConnection `json:"old_connection"` // ended, silent, read_only, refuses, accepts, moved, or empty
	OldRefusal    string               `json:"old_connection_error"`
	WindowMs      float64              `json:"window_ms"` // a lower bound
	TwoMasters    bool                 `json:"two_masters"`
}

func failoverReport(f doctor.Failover, r doctor.FailoverReport) failoverJSON {
	word, _ := verdict(r.Worst())
	return failoverJSON{
		Verdict: word, Row: r.Row, Meaning: r.Meaning, Advice: r.Advice, AdvisedWindowMs: ms(r.Advised), Node: checkedNode(f.Before),
		Fenced: f.Before.Fenced, GoodReplicas: f.Before.GoodNow, MaxLagMs: ms(f.Before.MaxLag),
		Failover: courseJSON{
			Seen: r.Seen, AfterMs: ms(r.After), WatchedMs: ms(f.Lasted), RunIDChanged: r.RunIDChanged, ReplIDChanged: r.ReplIDChanged,
			RefusedMs: ms(r.Refused), Accepted: r.Accepted, Failures: r.Failures, Acknowledged: r.Acknowledged, Lost: r.Lost,
			Old: r.Old, OldRefusal: r.OldRefusal, WindowMs: ms(r.Window), TwoMasters: r.TwoMasters,
		},
		Findings: append([]doctor.Finding{}, r.Findings...),
	}
}
