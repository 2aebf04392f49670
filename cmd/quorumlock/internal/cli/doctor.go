package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/doctor"
	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/shown"
)

func (p *program) doctorCommand() *cobra.Command {
	o := failoverOptions{limit: 10 * time.Minute, settle: 10 * time.Second}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check the nodes, and say how to fix them",
		Long: `Doctor asks each node for its role, persistence, clock and the rights of the
user, and compares the nodes. It takes no lock. It tries what a grant needs on
two keys of its own, under the prefix, and deletes them; the server's ACL LOG
gets a line for each right that is missing. Give it the user and the
--restart-guard of your clients: what is wrong depends on them.

With --failover it says what a failover of one endpoint does to a lock. That is
for managed services, which have replicas behind one address: force a failover
in the service's console when the command asks for it. Until the failover ends,
the command writes one key 20 times a second, and dials 4 times a second. It is
not the key of a lock, and is deleted. The report says whether run_id changed,
for how long writes were refused, whether acknowledged writes were lost, what
became of the open connection, whether two masters took writes at the same time,
and what to set. It holds only for the kind of failure that you forced.

It exits with 0 when nothing needs fixing, with 1 when the nodes work and need
attention (warn), or no failover was seen, and with 2 when a node cannot vote,
the nodes are not independent, or an endpoint must not be the only node (fail).`,
		Annotations: needsServers,
		Args:        exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags(), &p.connection); err != nil {
				return err
			}
			if o.failover {
				return p.failover(cmd.Context(), o)
			}
			return p.doctor(cmd.Context())
		},
	}
	c.Flags().BoolVar(&o.failover, "failover", false, "watch a failover of one endpoint that you force\nmeanwhile")
	c.Flags().Var(durationFlag{&o.limit}, "for", "with --failover: how long to wait for its end,\n1s to 1h")
	c.Flags().Var(durationFlag{&o.settle}, "settle", "with --failover: it ends when nothing has\nchanged for this long, 1s to 1h")
	return c
}

func (p *program) doctor(ctx context.Context) error {
	c := &p.connection
	nodes := make([]doctor.Node, len(c.options))
	var wg sync.WaitGroup
	for i, option := range c.options {
		wg.Go(func() { nodes[i] = doctor.Probe(ctx, option, c.prefix) })
	}
	wg.Wait()
	report := doctor.Judge(nodes, doctor.Settings{Guard: c.guard, Prefix: c.prefix})
	if c.json {
		if err := p.printJSON(doctorReport(nodes, report)); err != nil {
			return err
		}
	} else {
		writeAll(p.stdout, p.checkup(nodes, report))
	}
	return exitFor(report.Worst())
}

// exitFor returns an error without a text that has the exit code of the worst finding.
func exitFor(worst doctor.Level) error {
	if _, code := verdict(worst); code != exitOK {
		return &exitError{code: code}
	}
	return nil
}

// verdict returns the word and the exit code for the worst finding.
func verdict(worst doctor.Level) (word string, code int) {
	switch worst {
	case doctor.Fail:
		return "broken", exitBroken
	case doctor.Warn:
		return "warnings", exitWarnings
	default:
		return "ok", exitOK
	}
}

// verdictOf returns the word for the nodes of a list. If a node fails while a majority grants locks, the exit code is
// the one for broken, because the node needs a repair, but the word is another.
func verdictOf(r doctor.Report) string {
	word, code := verdict(r.Worst())
	if code == exitBroken && r.Voting >= r.Quorum {
		word = "degraded"
	}
	return word
}

// checkup formats the report for people.
func (p *program) checkup(nodes []doctor.Node, r doctor.Report) string {
	style := p.style()
	t := &table{width: p.columns()}
	t.row("", "NODE", "ROLE", "VERSION", "PING", "CLOCK", "AOF", "WHEN FULL", "REPLICAS")
	for i, n := range nodes {
		if !n.Answers() {
			t.row(strconv.Itoa(i), n.Addr, "no answer")
			continue
		}
		t.row(strconv.Itoa(i), n.Addr, cmp.Or(n.Role, "-"), cmp.Or(n.Version, "-"), short(n.RoundTrip), clock(n), disk(n), full(n), replicas(n))
	}
	var b strings.Builder
	b.WriteString(t.String())
	b.WriteString(remedies(style, nodes, r.Findings))
	fmt.Fprintf(&b, "\n%s: %d of %d nodes can grant locks, %d needed", paint(style, r.Worst(), verdictOf(r)), r.Voting, len(nodes), r.Quorum)
	if r.Waiting > 0 {
		fmt.Fprintf(&b, "; %d more after the quarantine", r.Waiting)
	}
	b.WriteByte('\n')
	return b.String()
}

// remedies lists findings, each with its fix.
func remedies(style style, nodes []doctor.Node, findings []doctor.Finding) string {
	var b strings.Builder
	for _, same := range alike(findings) {
		f := same[0]
		subject := "all nodes"
		if f.Node >= 0 {
			subject = subjects(same, nodes)
		}
		fmt.Fprintf(&b, "\n%s  %s: %s\n", style.of(f.Level, fmt.Sprintf("%-4s", f.Level)), subject, f.Code)
		b.WriteString(wrap("      ", f.Problem))
		b.WriteString(wrap("      ", "fix: "+f.Fix))
	}
	return b.String()
}

// paint returns the word of a verdict in its colour.
func paint(style style, worst doctor.Level, word string) string {
	if worst == doctor.Note {
		return style.green(word)
	}
	return style.of(worst, word)
}

// alike groups findings that differ only in their node.
func alike(findings []doctor.Finding) (groups [][]doctor.Finding) {
next:
	for _, f := range findings {
		for i, group := range groups {
			if same := group[0]; same.Level == f.Level && same.Code == f.Code && same.Problem == f.Problem && same.Fix == f.Fix {
				groups[i] = append(group, f)
				continue next
			}
		}
		groups = append(groups, []doctor.Finding{f})
	}
	return groups
}

// subjects names the nodes of findings that are alike.
func subjects(findings []doctor.Finding, nodes []doctor.Node) string {
	if len(findings) == 1 {
		i := findings[0].Node
		return fmt.Sprintf("node %d (%s)", i, shown.Text(nodes[i].Addr))
	}
	var numbers []string
	for _, f := range findings {
		numbers = append(numbers, strconv.Itoa(f.Node))
	}
	return "nodes " + strings.Join(numbers, ", ")
}

// of returns a text in the colour of a level.
func (s style) of(l doctor.Level, text string) string {
	switch l {
	case doctor.Fail:
		return s.red(text)
	case doctor.Warn:
		return s.yellow(text)
	default:
		return text
	}
}

func clock(n doctor.Node) string {
	if n.RoundTrip == 0 {
		return "-"
	}
	if n.Clock.Abs() < 10*time.Second {
		return fmt.Sprintf("%+dms", n.Clock.Milliseconds())
	}
	if n.Clock > 0 {
		return "+" + short(n.Clock)
	}
	return short(n.Clock)
}

// disk describes whether there is an append-only file, and when it reaches the disk.
func disk(n doctor.Node) string {
	switch {
	case n.Unchecked != "":
		return "-"
	case !n.AOF:
		return "off"
	case n.Fsync == "":
		return "on"
	}
	return n.Fsync
}

// full describes the effect of a full memory.
func full(n doctor.Node) string {
	switch {
	case n.Unchecked != "":
		return "-"
	case !n.MaxMemory:
		return "no limit"
	}
	return n.Eviction
}

func replicas(n doctor.Node) string {
	if n.Unchecked != "" {
		return "-"
	}
	text := strconv.Itoa(n.Replicas)
	if n.MinReplicas != "" {
		text += ", min " + n.MinReplicas
	}
	return text
}

// doctorJSON is the JSON of doctor. Its keys are stable.
type doctorJSON struct {
	Verdict  string           `json:"verdict"` // ok, warnings, degraded or broken
	Voting   int              `json:"voting"`
	Waiting  int              `json:"waiting"`
	Quorum   int              `json:"quorum"`
	Nodes    []checkedJSON    `json:"nodes"`
	Findings []doctor.Finding `json:"findings"`
}

type checkedJSON struct {
	Addr            string   `json:"addr"`
	Answers         bool     `json:"answers"`
	Role            string   `json:"role"`
	Mode            string   `json:"mode"`
	Version         string   `json:"version"`
	RunID           string   `json:"run_id"`
	ReplID          string   `json:"master_replid"`
	RoundTripMs     float64  `json:"round_trip_ms"`
	ClockOffsetMs   float64  `json:"clock_offset_ms"` // minus the clock of this machine
	AppendOnly      bool     `json:"append_only"`
	AppendFsync     string   `json:"append_fsync"` // empty when it isn't known
	EvictionPolicy  string   `json:"eviction_policy"`
	MaxMemory       bool     `json:"max_memory"`
	Replicas        int      `json:"replicas"`
	MinReplicas     string   `json:"min_replicas_to_write"` // a number, "set", or empty
	RestartGuardMs  float64  `json:"restart_guard_ms"`
	MissingRights   []string `json:"missing_rights"`
	UncheckedReason string   `json:"unchecked_reason"`
}

func doctorReport(nodes []doctor.Node, r doctor.Report) doctorJSON {
	j := doctorJSON{Verdict: verdictOf(r), Voting: r.Voting, Waiting: r.Waiting, Quorum: r.Quorum, Nodes: []checkedJSON{}, Findings: []doctor.Finding{}}
	j.Findings = append(j.Findings, r.Findings...)
	for _, n := range nodes {
		j.Nodes = append(j.Nodes, checkedNode(n))
	}
	return j
}

func checkedNode(n doctor.Node) checkedJSON {
	return checkedJSON{
		Addr: n.Addr, Answers: n.Answers(), Role: n.Role, Mode: n.Mode, Version: n.Version, RunID: n.RunID, ReplID: n.ReplID,
		RoundTripMs: ms(n.RoundTrip), ClockOffsetMs: ms(n.Clock), AppendOnly: n.AOF, AppendFsync: n.Fsync,
		EvictionPolicy: n.Eviction, MaxMemory: n.MaxMemory, Replicas: n.Replicas, MinReplicas: n.MinReplicas,
		RestartGuardMs: ms(n.Marker), MissingRights: append([]string{}, n.Missing...), UncheckedReason: n.Unchecked,
	}
}
