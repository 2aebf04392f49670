package doctor

// Level is the severity of a finding.
type Level string

// The levels, from the least. A note requires no action.
const (
	Note Level = "note"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one thing to know or to fix.
type Finding struct {
	Level   Level  `json:"level"`
	Code    string `json:"code"`
	Node    int    `json:"node"` // index in the list, -1 for all nodes together
	Problem string `json:"problem"`
	Fix     string `json:"fix"`
}

// The codes are stable: scripts look for them.
const (
	CodeUnreachable    = "unreachable"
	CodePassword       = "wrong_password"
	CodeTLSMissing     = "tls_missing"    // the node speaks TLS, and we do not
	CodeTLSUnexpected  = "tls_unexpected" // we speak TLS, and the node does not
	CodeTLSUntrusted   = "tls_untrusted"
	CodeTLSClient      = "tls_client_certificate"
	CodeTLSEnds        = "tls_certificate_ends"
	CodePlain          = "not_encrypted"
	CodeNotRedis       = "not_redis"
	CodeLoading        = "loading"
	CodeMissingRights  = "missing_rights"
	CodeUnchecked      = "unchecked"
	CodeSameServer     = "same_server"
	CodeReplica        = "replica"
	CodeReplicaOf      = "replica_of_listed_node"
	CodeFormerReplica  = "former_replica"
	CodeCluster        = "cluster_mode"
	CodeSentinel       = "sentinel"
	CodeOldVersion     = "old_version"
	CodeSeveralServers = "several_servers"
	CodeEviction       = "eviction"
	CodePersistence    = "no_persistence"
	CodeWeakLog        = "weak_persistence"
	CodeWriteFailed    = "persistence_failed"
	CodeReplicas       = "replicas_without_guard"
	CodeMinReplicas    = "min_replicas"
	CodeClock          = "clock_off"
	CodeLocalClock     = "local_clock_off"
	CodeEven           = "even_number"
	CodeSingle         = "single_node"
	CodeGuardDiffers   = "restart_guard_differs"
	CodeGuardUnused    = "restart_guard_not_given"
	CodeQuarantine     = "in_quarantine"
	CodeBaseAhead      = "base_ahead"
	CodeRegisterAhead  = "register_ahead"
	CodeNoQuorum       = "no_quorum"
	CodeRedisAnswered  = "refused"
	CodeFull           = "memory_full"
	CodeWritesStopped  = "writes_stopped"
	CodeNoCommand      = "missing_command"
	CodeOtherList      = "other_list"
)

// The codes of a forced failover.
const (
	CodeNoFailover  = "no_failover"
	CodeNotWritable = "not_writable"       // the first write failed
	CodeNotAccepted = "not_accepted_again" // no write was accepted after the failover
	CodeNoRunID     = "no_run_id"
	CodeRunIDKept   = "run_id_kept"
	CodeTwoMasters  = "two_masters"
	CodeWritesLost  = "writes_lost"
	CodeNeverFenced = "never_fenced"
	CodeFewReplicas = "fence_without_majority"
	CodeMoved       = "connection_moved"
	CodeOneReplica  = "one_replica"
)
