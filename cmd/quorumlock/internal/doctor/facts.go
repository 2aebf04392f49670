// Package doctor checks the Redis masters that locks live on. Probe asks one node; Judge finds what is wrong with all
// of them together, and how to fix it.
package doctor

import (
	"strings"
	"time"
)

// Node has the facts that one node reports.
type Node struct {
	Addr  string
	Fault *Finding // why the node could not be asked, nil if it could
	Plain bool     // the connection goes to another host, without TLS
	// Certificate is how long the certificates of the node and of its authority are valid, 0 without TLS.
	Certificate time.Duration

	RunID   string // of the server process
	Uptime  time.Duration
	ReplID  string // of the data set: a master and its replicas have the same one
	Former  string // master_replid2: of the data set of which it was a replica until it was promoted
	Role    string // master or slave
	Master  string // HOST:PORT that a replica follows
	Mode    string // standalone, cluster or sentinel
	Version string
	Others  []string // run_ids that other connections to the address have reached

	Eviction  string // maxmemory-policy
	MaxMemory bool   // maxmemory is set

	AOF           bool   // appendonly yes
	Fsync         string // appendfsync; empty when the user may not read the configuration
	LoadTruncated bool   // aof-load-truncated yes
	WriteFailed   bool   // the last write to the append-only file failed
	Loading       bool

	Replicas    int
	MinReplicas string        // min-replicas-to-write: a number, "set" when only that is known, or empty
	GoodNow     int           // replicas that count for it now
	Fenced      bool          // INFO counts good replicas, as it does with both min-replicas settings on
	MaxLag      time.Duration // min-replicas-max-lag, 0 when the user may not read the configuration

	RoundTrip  time.Duration // the shortest of a few
	Clock      time.Duration // this node's clock minus the clock of this machine
	Unchecked  string        // why INFO could not be read
	Missing    []string      // rights that the user lacks, as ACL rules
	Refused    []Refusal     // other refusals by the server
	Marker     time.Duration // the time of the restart guard's marker, 0 for none
	Process    string        // what the marker names: the server's process, and for a failover group its data and epoch; empty for none
	Quarantine time.Duration // how long the node does not vote, by the marker; 0 or less for a node that votes
	Binds      time.Duration // how long the marker still binds clients without the guard; 0 or less if it does not

	InUse map[string]time.Duration // announcements of lists of nodes, and how long ago each was made

	BaseAhead     time.Duration // how far the base of the registers is ahead of this node's clock
	RegisterAhead time.Duration // how far the highest register is ahead
}

// Answers reports whether the node could be asked.
func (n Node) Answers() bool { return n.Fault == nil }

// readInfo reads the answer to INFO.
func (n *Node) readInfo(text string) {
	var host, port string
	text = strings.TrimPrefix(text, "txt:") // a verbatim string, in RESP3
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "run_id":
			n.RunID = value
		case "uptime_in_seconds":
			n.Uptime = time.Duration(number(value)) * time.Second
		case "redis_version":
			if n.Version == "" {
				n.Version = value
			}
		case "valkey_version":
			n.Version = "valkey " + value
		case "redis_mode", "server_mode":
			n.Mode = value
		case "role":
			n.Role = value
		case "master_host":
			host = value
		case "master_port":
			port = value
		case "master_replid":
			n.ReplID = value
		case "master_replid2":
			if strings.Trim(value, "0") != "" {
				n.Former = value
			}
		case "maxmemory":
			n.MaxMemory = value != "0"
		case "maxmemory_policy":
			n.Eviction = value
		case "aof_enabled":
			n.AOF = value == "1"
		case "aof_last_write_status":
			n.WriteFailed = value != "ok"
		case "loading":
			n.Loading = value == "1"
		case "connected_slaves":
			n.Replicas = number(value)
		case "min_slaves_good_slaves": // only there when min-replicas-to-write is set
			n.MinReplicas, n.GoodNow, n.Fenced = "set", number(value), true
		}
	}
	if host != "" {
		n.Master = host + ":" + port
	}
}

// readConfig reads the answer to CONFIG GET, if the user may ask.
func (n *Node) readConfig(values map[string]string) {
	n.Fsync = values["appendfsync"]
	n.LoadTruncated = values["aof-load-truncated"] == "yes"
	if least := values["min-replicas-to-write"]; least != "" && least != "0" {
		n.MinReplicas = least
	}
	n.MaxLag = time.Duration(number(values["min-replicas-max-lag"])) * time.Second
}

func number(s string) (n int) {
	for _, digit := range s {
		if digit < '0' || digit > '9' || n > 1<<40 {
			return n
		}
		n = 10*n + int(digit-'0')
	}
	return n
}
