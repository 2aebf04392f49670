package main

// The cases of internal/node/conformance, on a real Redis.
const cases = "TestRealRedisConforms/RESP3/"

const (
	lanes    = "internal/node/queue.go"
	batching = "internal/node/batch.go"
	worker   = "internal/node/node.go"
	greeting = "internal/node/greet.go"
	requests = "internal/node/request.go"
	replies  = "internal/node/reply.go"
	retrying = "internal/node/orphans.go"
)

// nodes are the bugs of a node's worker: of its lanes, its batches, its connection and
// its end.
var nodes = []mutant{
	// Lanes.
	{
		name: "acquisitions go first", file: requests,
		old: "r.Kind, r.Expires, r.urgent = Acquire, a.NotAfter, a.Again", new: "r.Kind, r.Expires, r.urgent = Acquire, a.NotAfter, true",
		pkg: scripts, run: "TestAcquisitionsGoLast$|TestAFullLane",
	},
	{
		name: "one more vote for a lease waits behind new leases", file: requests,
		old: "Acquire, a.NotAfter, a.Again", new: "Acquire, a.NotAfter, false",
		pkg: scripts, run: "TestAcquisitionsGoLast$",
	},
	{
		name: "releases are shed", file: lanes,
		old: "\tif req.urgent {\n", new: "\tif req.urgent && len(n.lanes.urgent) < acquireMax {\n",
		pkg: scripts, run: "TestAFullLaneShedsAcquisitionsOnly$",
	},
	{
		name: "a lane of acquisitions has no end", file: lanes,
		old: "ok := len(n.lanes.acquire) < acquireMax", new: "ok := true",
		pkg: scripts, run: "TestAFullLaneShedsAcquisitionsOnly$",
	},
	{
		name: "acquisitions that nobody waits for fill the lane", file: lanes,
		old: "\t\texpired = n.purge()\n", new: "",
		pkg: scripts, run: "TestAFullLaneMakesRoomByWhatHasExpired$",
	},
	{
		name: "a withdrawn acquisition is sent", file: lanes,
		old: "\tcase req.withdrawn.Load():\n\t\tout.withdrawn", new: "\tcase false:\n\t\tout.withdrawn",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$",
	},
	{
		name: "a release of nothing is sent", file: lanes,
		old: "if req.undoesNothing(bit) {", new: "if false {",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$",
	},
	{
		name: "a release is not sent to a node that may have granted", file: requests,
		old: "u.sent.Load()&node == 0 &&", new: "",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$|TestAReleaseIsSentToTheNodes",
	},
	{
		name: "a release looks at what other nodes have sent", file: requests,
		old: "u.sent.Load()&node == 0 &&", new: "u.sent.Load() == 0 &&",
		pkg: scripts, run: "TestAReleaseIsSentToTheNodesThatWereAsked$",
	},
	{
		name: "a ticket stays when the acquisition was not sent", file: requests,
		old: "\tif ticket == (TicketUpdate{}) {\n", new: "\tif undoes != nil {\n\t\tr.undoes, r.undoesGeneration = undoes, undoes.generation.Load()\n\t}\n\tif ticket == (TicketUpdate{}) {\n",
		pkg: scripts, run: "TestAReleaseCancelsAnAcquisitionThatStillWaits$",
	},
	{
		name: "a batch is a script and no more", file: lanes,
		old: "i < most && size < batchBytes", new: "i < min(most, MaxLocks) && size < batchBytes",
		pkg: scripts, run: "TestABatchHasNoMostNumberOfRequests$",
	},
	{
		name: "a batch is as large as it gets", file: lanes,
		old: "i < most && size < batchBytes", new: "i < most",
		pkg: scripts, run: "TestABatchHasAMostSize$",
	},
	{
		name: "a script has no end", file: batching,
		old: "c.locks > 0 && (c.locks+locks > MaxLocks ||", new: "c.locks > 0 && (false ||",
		pkg: scripts, run: "TestScriptsAreCutAtTheMostOperations$",
	},
	{
		name: "a script is one operation too long", file: batching,
		old: "c.locks > 0 && (c.locks+locks > MaxLocks ||", new: "c.locks > 0 && (c.locks+locks > MaxLocks+1 ||",
		pkg: scripts, run: "TestScriptsAreCutAtTheMostOperations$",
	},
	{
		name: "an expired request is sent", file: lanes,
		old: "\tcase req.Expires <= now:\n\t\tout.expired", new: "\tcase false:\n\t\tout.expired",
		pkg: scripts, run: "TestARequestThatHasExpiredIsNotSent$",
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

	// Connections, orphans and Close.
	{
		name: "a lock that is made behind its release stays", file: batching,
		old: "\t\tn.orphans.add(e.req, n.voidAt(e.req, s.steady, s.at))\n", new: "",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a heal that is made behind its release stays", file: requests,
		old: "\t\tfor i := 1; i < len(r.args); i += 5 {\n\t\t\tf(r.args[i][:OwnerLen])\n\t\t}\n\tdefault:", new: "\tdefault:",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a release of many locks looks at the first", file: requests,
		old: "\tfor i := 1; i < len(r.args); i += stride {\n\t\tf(r.args[i][:OwnerLen])\n\t}\n}\n\n// bytes", new: "\tf(r.args[1][:OwnerLen])\n\t_ = stride\n}\n\n// bytes",
		pkg: scripts, run: "TestEveryKindOfReleaseIsRetried$",
	},
	{
		name: "a retried release puts the ticket back", file: retrying,
		old: "\tagain := plainRelease(req)\n", new: "\tagain := &Request{Kind: Release, urgent: true, insists: true, keys: req.keys, args: req.args}\n",
		pkg: scripts, run: "TestEveryKindOfReleaseIsRetried$",
	},
	{
		name: "a release is retried while the lock may still be made", file: retrying,
		old: "\t\tif now.Before(r.at) {\n\t\t\treturn false\n\t\t}\n", new: "",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$|TestCloseWaits",
	},
	{
		name: "every release is sent twice after a break", file: retrying,
		old: "ok := n.orphans[owner]; ok && sent.Before(void) {", new: "ok := n.orphans[owner]; ok || len(n.orphans) > 0 && sent.Before(void.Add(time.Hour*1e6)) {",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a retried release is retried", file: retrying,
		old: "\t\t\tdelete(n.orphans, owner) // one retry is enough\n", new: "\t\t\tn.orphans[owner] = void.Add(time.Minute)\n",
		pkg: scripts, run: "TestCloseWaits|TestALockThatIsMade",
	},
	{
		name: "void orphans stay", file: greeting,
		old: "\tn.orphans.forget(time.Now())\n", new: "",
		pkg: scripts, run: "TestOrphansThatAreVoidAreForgotten$",
	},
	{
		name: "Close does not wait for what may still be made", file: worker,
		old: "n.closed = n.closed || len(n.retries) == 0 || !n.Health().up()", new: "n.closed = true",
		pkg: scripts, run: "TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade$",
	},
	{
		name: "Close takes a wait for a retry for a node that hangs", file: worker,
		old: "if now == seen && !resting {", new: "if now == seen && (!resting || seen == now) {",
		pkg: scripts, run: "TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade$",
	},
	{
		name: "Close takes a retried release for one that was not answered", file: worker,
		old: "\t\tinTime = n.settled\n", new: "\t\tinTime = false\n",
		pkg: scripts, run: "TestCloseIsInTimeWhenOnlyASecondReleaseIsMissing$",
	},
	{
		name: "Close waits for ever", file: worker,
		old: "\t\t\tif now == seen && !resting {\n\t\t\t\treturn false\n\t\t\t}\n", new: "\t\t\tif now == seen && !resting {\n\t\t\t\tcontinue\n\t\t\t}\n",
		pkg: scripts, run: "TestCloseGivesUpAfterASecondWithoutProgress$",
	},
	{
		name: "Close gives up although the node answers", file: worker,
		old: "\t\t\tnow := n.progress.Load()\n\t\t\tif now == seen", new: "\t\t\tnow := seen\n\t\t\tif now == seen",
		pkg: scripts, run: "TestCloseGoesOnWhileTheNodeMakesProgress$",
	},
	{
		name: "Close sends no more than a lane holds", file: worker,
		old: "for _, req := range last {", new: "for _, req := range last[:min(len(last), acquireMax)] {",
		pkg: scripts, run: "TestCloseSendsMoreThanALaneHolds$",
	},
	{
		name: "Close waits for nodes that are down", file: worker,
		old: "\tif n.Health().up() { // otherwise", new: "\tif true { // otherwise",
		pkg: scripts, run: "TestCloseDoesNotWaitForANodeThatIsDown$",
	},
	{
		name: "Close sends acquisitions", file: lanes,
		old: "\tcase n.leaving:\n\t\tout.closing", new: "\tcase false:\n\t\tout.closing",
		pkg: scripts, run: "TestCloseSendsNoAcquisitions$",
	},
	{
		name: "nothing is sent again where it was not applied", file: batching,
		old: "\t\tif !e.resent && (", new: "\t\tif false && (",
		pkg: scripts, run: cases + "scripts_that_the_server_forgot|" + cases + "an_acquisition_that_was_refused",
	},
	{
		name: "one more vote is sent again behind its release", file: batching,
		old: "e.req.Kind == Acquire && !e.req.urgent ||", new: "e.req.Kind == Acquire ||",
		pkg: scripts, run: cases + "an_acquisition_that_was_refused",
	},
	{
		name: "releases do not survive a break", file: batching,
		old: "\t\tif e.req.insists {\n\t\t\tn.retryQueue", new: "\t\tif false {\n\t\t\tn.retryQueue",
		pkg: scripts, run: "TestReleasesSurviveABrokenConnection$",
	},
	{
		name: "releases do not wait for a busy server", file: batching,
		old: "\tcase r.Status == Failed && len(n.retryQueue) < retryMax:", new: "\tcase false:",
		pkg: scripts, run: "TestReleasesWaitForAServerThatIsBusy$",
	},
	{
		name: "the batch stays in memory", file: batching,
		old: "\tclear(results)\n\tclear(n.batch)\n", new: "\tclear(results)\n",
		pkg: scripts, run: "TestNothingIsLeftOfRequestsThatWereAnswered$",
	},
	{
		name: "what could not be sent stays in memory", file: batching,
		old: "\tclear(n.batch) // the next one", new: "\tclear(n.batch[:0]) // the next one",
		pkg: scripts, run: "TestNothingIsLeftOfRequestsThatWereAnswered$",
	},
	{
		name: "the lanes stay in memory", file: lanes,
		old: "\tclear(lane[rest:])\n", new: "",
		pkg: scripts, run: "TestNothingIsLeftOfRequestsThatWereAnswered$",
	},
	{
		name: "buffers stay as large as the largest burst", file: greeting,
		old: "\tn.batch, n.calls, n.commands, n.codes = nil, nil, nil, nil\n", new: "",
		pkg: scripts, run: "TestBuffersDoNotStayAsLargeAsTheLargestBurst$",
	},

	// Guard and quarantine.
	{
		name: "a newcomer's trust covers a flush", file: greeting,
		old: "marker != n.marker && stop == 0 && agreed == longest {", new: "false {",
		pkg: scripts, run: cases + "a_client_sees_a_flush|TestAFlushBetween",
	},

	// Connections, keys and the subscriber.
	{
		name: "the kernel goes on sending for a connection that was given up", file: "internal/node/connection.go",
		old: "_ = tcp.SetLinger(0)", new: "_ = tcp",
		pkg: scripts, run: "TestAConnectionThatIsGivenUpIsReset$",
	},
	{
		name: "a connection is reset only when it is cut", file: "internal/node/connection.go",
		old: "return abandon(c.Conn)", new: "return c.Conn.Close()",
		pkg: scripts, run: "TestAConnectionThatIsGivenUpIsReset$",
	},
	{
		name: "connections that have ended stay", file: "internal/node/connection.go",
		old: "\tdelete(c.node.conns, c)", new: "",
		pkg: scripts, run: "TestConnectionsThatHaveEndedAreForgotten$",
	},
	{
		name: "Close leaves a hung connection to rueidis", file: "internal/node/connection.go",
		old: "\tfor _, conn := range conns {\n\t\t_ = raw(conn.Conn).Close()", new: "\tfor _, conn := range conns {\n\t\t_ = conn",
		pkg: virtual, run: "TestCloseWaitsForNodesThatMayStillAnswer$",
	},
	{
		name: "Close leaves a dial to its timeout", file: "internal/node/options.go",
		old: "conn, err := callOrAbandon(life, func() (net.Conn, error) { return dial(ctx, addr, d, config) }, func(late net.Conn) { _ = late.Close() })",
		new: "conn, err := dial(ctx, addr, d, config)",
		pkg: virtual, run: "TestCloseEndsADialThatHangs$",
	},
	{
		name: "a dial function takes as long as it likes", file: "internal/node/options.go",
		old: "context.WithTimeout(ctx, maxDial)", new: "context.WithCancel(ctx)",
		pkg: scripts, run: "TestADialFunctionIsBounded$",
	},
	{
		name: "long pipelines get a connection of their own", file: "internal/node/options.go",
		old: "o.PipelineMultiplex, o.BlockingPipeline = -1, -1", new: "o.PipelineMultiplex = -1",
		pkg: real, run: "TestThereIsOneConnectionWhateverIsCalledALongPipeline$",
	},
	{
		name: "credentials are waited for", file: "internal/node/options.go",
		old: "return callOrAbandon(life, func() (rueidis.AuthCredentials, error) { return credentials(ctx) }, nil)", new: "return credentials(ctx)",
		pkg: real, run: "TestAUsersFunctionThatHangsHoldsUpNeitherNewNorClose$",
	},
	{
		name: "a dial function that does not look at its context is waited for", file: "internal/node/options.go",
		old: "conn, err := callOrAbandon(life, func() (net.Conn, error) { return dial(ctx, addr, d, config) }, func(late net.Conn) { _ = late.Close() })",
		new: "defer context.AfterFunc(life, cancel)()\n\t\tconn, err := dial(ctx, addr, d, config)",
		pkg: real, run: "TestAUsersFunctionThatHangsHoldsUpNeitherNewNorClose$",
	},
	{
		name: "Close leaves releases with a busy node", file: worker,
		old: "(len(n.retryQueue) == 0 || !n.Health().up())", new: "n.conns != nil",
		pkg: virtual, run: "TestCloseWaitsForNodesThatMayStillAnswer$",
	},

	// Keys.
	{
		name: "the hint is without the prefix", file: "internal/node/keys.go",
		old: "return prefix + hintTag", new: "return hintTag + prefix",
		pkg: scripts, run: "FuzzKeys$",
	},

	// The subscriber.

	// What a server says of itself.
	{
		name: "an acquisition is taken without a position", file: replies,
		old: "\tcase len(parts) != 3:\n\t\treturn errReply\n", new: "\tcase len(parts) < 2:\n\t\treturn errReply\n\tcase len(parts) == 2:\n\t\tr.Status = Taken\n\t\treturn nil\n",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a marker that is nobody's", file: greeting,
		old: " || marker == \"\" { // \"\" stands", new: " { // \"\" stands",
		pkg: scripts, run: "FuzzGreeting$",
	},
}
