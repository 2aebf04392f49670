package main

// messages are the bugs in how a node is subscribed to, and in keys, values and answers.
var messages = []mutant{
	// Subscribers.
	{
		name: "a node is subscribed to over one connection", file: "internal/node/subscriber.go",
		old: "\tfor n.ctx.Err() == nil {\n\t\terr := n.receive",
		new: "\tfor first := true; first && n.ctx.Err() == nil; first = false {\n\t\terr := n.receive",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "nobody hears that a node is subscribed to again", file: "internal/node/subscriber.go",
		old: "\t\t\tn.cfg.OnSubscribed(n.cfg.Index)\n",
		new: "\t\t\tif n.progress.Add(1<<32) < 2<<32 {\n\t\t\t\tn.cfg.OnSubscribed(n.cfg.Index)\n\t\t\t}\n",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "the subscriber's connection is the worker's", file: "internal/node/connection.go",
		old: "{ return n.register(conn, 0) }",
		new: "{ return n.watch(conn) }",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "a node whose connection broke is subscribed to", file: "internal/node/subscriber.go",
		old: "\t\tn.subscribed.Store(false)\n",
		new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
	{
		name: "a subscriber that may not subscribe says nothing", file: "internal/node/subscriber.go",
		old: "\t\tn.judgeSubscriber(err)\n",
		new: "\t\t_ = err\n",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
	{
		name: "a subscriber that may not subscribe is reported at the next check", file: "internal/node/subscriber.go",
		old: "\t\tn.Check()\n",
		new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$/the_command/by_default",
	},
	{
		name: "a subscriber that was mended stays a warning", file: "internal/node/subscriber.go",
		old: "\t\t\tn.judgeSubscriber(nil)\n",
		new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
	{
		name: "a subscriber that may not subscribe hides another warning", file: "internal/node/health.go",
		old: "errors.Join(n.warning, doubt)",
		new: "doubt",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsOneOfTwoWarnings$",
	},
	{
		name: "a message that is too short is a wake-up", file: "internal/node/subscriber.go",
		old: "if len(m.Message) > 1+TicketLen {",
		new: "if len(m.Message) > TicketLen {",
		pkg: scripts, run: "TestRealRedisConforms/RESP3/a_message_with_any_kind",
	},
	{
		name: "the subscriber's connection is left to rueidis", file: "internal/node/connection.go",
		old: "{ return n.register(conn, 0) }",
		new: "{ return conn }",
		pkg: scripts, run: "TestCloseDoesNotWaitForASubscriberWhoseServerHangs$",
	},
	// Keys, values and answers.
	{
		name: "the queue is a name", file: "internal/node/keys.go",
		old: "queueTag    = \"\\xffq\"",
		new: "queueTag    = \"qq\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the base is the hint", file: "internal/node/keys.go",
		old: "baseTag     = \"\\xffb\"",
		new: "baseTag     = \"\\xffh\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the registers are without the prefix", file: "internal/node/keys.go",
		old: "return prefix + registerTag",
		new: "return registerTag + prefix",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "a name meets a companion key", file: "internal/node/keys.go",
		old: "registerTag = \"\\xffr\"",
		new: "registerTag = \"r\"",
		pkg: real, run: "TestANameMayBeAnyTextAndNeverMeetsACompanionKey$",
	},
	{
		name: "a reservation is a stranger's", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == reservedMark {",
		new: "if s[OwnerLen:] == reservedMark && s == \"\" {",
		pkg: scripts, run: "FuzzParseValue$",
	},
	{
		name: "what begins like a reservation is one", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == reservedMark {",
		new: "if strings.HasPrefix(s[OwnerLen:], reservedMark) {",
		pkg: scripts, run: "FuzzParseValue$",
	},
	{
		name: "a token in a value is negative", file: "internal/node/keys.go",
		old: "if err != nil || token < 0 {",
		new: "if err != nil {",
		pkg: scripts, run: "FuzzParseValue$|FuzzValueRoundTrip$",
	},
	{
		name: "proof is the owner and the beginning of the token", file: "internal/node/request.go",
		old: "return value[:OwnerLen+1+n+1]",
		new: "return value[:OwnerLen+1+n]",
		pkg: scripts, run: "TestProofIsOwnerAndToken$",
	},
	{
		name: "an answer of four parts is a vote", file: "internal/node/reply.go",
		old: "case len(parts) != 3:",
		new: "case len(parts) < 3:",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "the position is not read", file: "internal/node/reply.go",
		old: "if r.Position, err = integerOf(&parts[2]); err == nil {",
		new: "if _, err = integerOf(&parts[2]); err == nil {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a state without a queue", file: "internal/node/reply.go",
		old: "if len(parts) != 4 {",
		new: "if len(parts) < 3 {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "more answers than operations", file: "internal/node/batch.go",
		old: "if len(all.codes) != operations || ",
		new: "if len(all.codes) < operations || ",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a life to which nothing can be added", file: "internal/node/reply.go",
		old: "math.MaxInt64/2/int64",
		new: "math.MaxInt64/int64",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a failed operation of many counts as missing", file: "internal/node/reply.go",
		old: "return Unanswered, status, nil",
		new: "return Missing, status, nil",
		pkg: scripts, run: "FuzzReplies$",
	},
}
