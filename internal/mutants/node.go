package main

// The cases of internal/node/conformance, on a real Redis.
const cases = "TestRealRedisConforms/RESP3/"

const (
	lanes    = "internal/node/queue.go"
	batching = "internal/node/batch.go"
	greeting = "internal/node/greet.go"
	requests = "internal/node/request.go"
	replies  = "internal/node/reply.go"
	retrying = "internal/node/orphans.go"
)

// nodes are the bugs of a node's worker beside those in closing: of its lanes, and in what
// it reads and remembers.
var nodes = []mutant{
	// Lanes.
	{
		name: "acquisitions go first", file: requests,
		old: "r.Kind, r.Expires, r.urgent = Acquire, a.NotAfter, a.Again", new: "r.Kind, r.Expires, r.urgent = Acquire, a.NotAfter, true",
		pkg: scripts, run: "TestAcquisitionsGoLast$|TestAFullLane",
	},
	{
		name: "releases are shed", file: lanes,
		old: "\tif req.urgent {\n", new: "\tif req.urgent && len(n.lanes.urgent) < acquireMax {\n",
		pkg: scripts, run: "TestAFullLaneShedsAcquisitionsOnly$",
	},
	{
		name: "a release is not sent to a node that may have granted", file: requests,
		old: "u.withdrawn.Load() && u.sent.Load()&node == 0", new: "u.withdrawn.Load()",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$|TestAReleaseIsSentToTheNodes",
	},
	{
		name: "a ticket stays when the acquisition was not sent", file: requests,
		old: "\tif ticket == (TicketUpdate{}) {\n", new: "\tif undoes != nil {\n\t\tr.undoes, r.undoesGeneration = undoes, undoes.generation.Load()\n\t}\n\tif ticket == (TicketUpdate{}) {\n",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$",
	},
	{
		name: "a script is one operation too long", file: batching,
		old: "(c.locks+locks > MaxLocks ||", new: "(c.locks+locks > MaxLocks+1 ||",
		pkg: scripts, run: "TestScriptsAreSplitAtTheLimitOfOperations$",
	},
	// Answers.
	{
		name: "an unknown character in the answers is a detail", file: replies,
		old: "if !known && all.codes[i] != '*' {", new: "if false {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "fewer details than answers", file: batching,
		old: " || strings.Count(all.codes, \"*\") != len(all.details) {", new: " {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a lock of another type ends a renewal", file: replies,
		old: "case strings.HasPrefix(failed.Error(), \"WRONGTYPE\"):", new: "case false:",
		pkg: scripts, run: "FuzzReplies$|" + cases + "the_errors_of_operations",
	},
	{
		name: "an unanswered release counts as done", file: replies,
		old: "if r.N = r.Answers[0]; r.N == Unanswered {", new: "if r.N = r.Answers[0]; false {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a release that may not be is sent for ever", file: replies,
		old: "\t\t\t\tr.Status = failure\n", new: "\t\t\t\t_, r.Status = failure, Unknown\n",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "an acquisition is taken without a position", file: replies,
		old: "\tcase len(parts) != 3:\n\t\treturn errReply\n", new: "\tcase len(parts) < 2:\n\t\treturn errReply\n\tcase len(parts) == 2:\n\t\tr.Status = Taken\n\t\treturn nil\n",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a marker that is nobody's", file: "internal/node/guard.go",
		old: " || marker == \"\" { // \"\" stands", new: " { // \"\" stands",
		pkg: scripts, run: "FuzzGreeting$",
	},
	{
		name: "nothing goes out while answers are handed out", file: batching,
		old: "n.queued() < aheadFrom {", new: "n.queued() >= 0 {",
		pkg: scripts, run: "TestABatchHasALimitOnItsSize$",
	},
	// What may still be made, what stays in memory, and keys.
	{
		name: "a request whose connection broke is forgotten", file: batching,
		old: "\t\tn.orphans.add(e.req, n.voidAt(e.req, t.steady, t.at))\n", new: "",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a release of many locks looks at the first", file: requests,
		old: "\tfor i := 1; i < len(r.args); i += stride {\n\t\tf(r.args[i][:OwnerLen])\n\t}\n}\n\n// bytes", new: "\tf(r.args[1][:OwnerLen])\n\t_ = stride\n}\n\n// bytes",
		pkg: scripts, run: "TestEveryKindOfReleaseIsRetried$",
	},
	{
		name: "a release is retried while the lock may still be made", file: retrying,
		old: "\t\tif now.Before(r.at) {\n", new: "\t\tif now.Before(r.at) && now.IsZero() {\n",
		pkg: scripts, run: "TestReleasesAreRetriedEachAtItsTime$",
	},
	{
		name: "the lanes stay in memory", file: lanes,
		old: "\tclear(lane[rest:])\n", new: "",
		pkg: scripts, run: "TestAnsweredRequestsDoNotStayInMemory$",
	},
	{
		name: "the buffers of a burst stay in memory", file: greeting,
		old: "\tn.batch, n.transfers, n.codes = nil, [2]transfer{}, nil\n", new: "",
		pkg: scripts, run: "TestBuffersDoNotStayAsLargeAsTheLargestBurst$",
	},
	{
		name: "the hint is without the prefix", file: "internal/node/keys.go",
		old: "return prefix + hintTag", new: "return hintTag + prefix",
		pkg: scripts, run: "FuzzKeys$",
	},
}
