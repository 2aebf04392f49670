package quorumlocktest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redisVersion is the version that miniredis reports in HELLO.
const redisVersion = "8.4.0"

type section struct {
	name   string
	fields [][2]string
}

// info returns the text of INFO for these sections, or all sections if there are none.
// Unknown sections are empty, as in Redis. The caller holds node.exec.
func (p *process) info(asked []string) string {
	all := len(asked) == 0
	asked = slices.Clone(asked)
	for i, name := range asked {
		asked[i] = strings.ToLower(name)
		all = all || slices.Contains([]string{"all", "default", "everything"}, asked[i])
	}
	var texts []string
	for _, s := range p.sections() {
		if !all && !slices.Contains(asked, strings.ToLower(s.name)) {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "# %s\r\n", s.name)
		for _, f := range s.fields {
			fmt.Fprintf(&b, "%s:%s\r\n", f[0], f[1])
		}
		texts = append(texts, b.String())
	}
	return strings.Join(texts, "\r\n")
}

// sections returns all sections of INFO, with the overrides. It has the fields that
// affect clients, and no invented values.
func (p *process) sections() []section {
	now := p.node.now()
	up := int(now.Sub(p.started) / time.Second)
	mode, role, enabled := p.node.standing()
	sections := []section{
		{"Server", [][2]string{
			{"redis_version", redisVersion},
			{"redis_mode", mode},
			{"run_id", p.runID},
			{"tcp_port", "6379"},
			{"server_time_usec", strconv.FormatInt(now.UnixMicro(), 10)},
			{"uptime_in_seconds", strconv.Itoa(up)},
			{"uptime_in_days", strconv.Itoa(up / (24 * 60 * 60))},
		}},
		{"Clients", [][2]string{
			{"connected_clients", strconv.Itoa(p.clients())},
		}},
		{"Memory", [][2]string{
			{"maxmemory", "0"},
			{"maxmemory_human", "0B"},
			{"maxmemory_policy", "noeviction"},
		}},
		{"Persistence", [][2]string{
			{"loading", "0"},
			{"aof_enabled", "0"},
		}},
		{"Stats", [][2]string{
			{"total_connections_received", strconv.Itoa(p.srv.TotalConnections() - 1)}, // without the one that starts the process
			{"total_commands_processed", strconv.Itoa(p.srv.TotalCommands())},
			{"evicted_keys", "0"},
		}},
		{"Replication", [][2]string{
			{"role", role},
			{"connected_slaves", "0"},
			{"master_failover_state", "no-failover"},
			{"master_replid", p.replID},
			{"master_replid2", strings.Repeat("0", 40)},
			{"master_repl_offset", "0"},
			{"second_repl_offset", "-1"},
		}},
		{"Cluster", [][2]string{
			{"cluster_enabled", enabled},
		}},
	}
	left := p.node.override(sections)
	sections[0].fields = append(sections[0].fields, left...)
	return sections
}

// override applies SetInfo, and returns the fields that are in no section.
func (n *Node) override(sections []section) [][2]string {
	known := map[string]bool{}
	for _, s := range sections {
		for i, f := range s.fields {
			known[f[0]] = true
			if value, ok := n.info[f[0]]; ok {
				s.fields[i][1] = value
			}
		}
	}
	var left [][2]string
	for key, value := range n.info {
		if !known[key] {
			left = append(left, [2]string{key, value})
		}
	}
	slices.SortFunc(left, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return left
}

// field returns one field of INFO.
func (p *process) field(key string) string {
	for _, s := range p.sections() {
		for _, f := range s.fields {
			if f[0] == key {
				return f[1]
			}
		}
	}
	return ""
}

// infoReply returns the text in RESP: a verbatim string in RESP3.
func infoReply(text string, resp3 bool) []byte {
	if resp3 {
		return fmt.Appendf(nil, "=%d\r\ntxt:%s\r\n", len(text)+len("txt:"), text)
	}
	return []byte(bulk(text))
}
