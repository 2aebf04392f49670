package main

// callers are the bugs in the queue of the callers of one process.
var callers = []mutant{
	// Who looks after a lock that was handed on.
	{
		name: "nobody looks after a release", file: "internal/quorum/handoff.go",
		old: "h.at = max(h.at, now+grace+trip+time.Millisecond)",
		new: "h.at = 0",
		pkg: decisions, run: "TestHandOff$|DeadTickets",
	},
	{
		name: "every node is asked at once", file: "internal/quorum/handoff.go",
		old: "h.asked = h.reserved & -h.reserved // the first",
		new: "h.asked = h.reserved",
		pkg: decisions, run: "TestHandOff$",
	},
	{
		name: "the others are not asked", file: "internal/quorum/handoff.go",
		old: "ask = h.reserved &^ h.asked",
		new: "ask = 0",
		pkg: decisions, run: "TestHandOff$",
	},
	{
		name: "a queue that moves is emptied elsewhere", file: "internal/quorum/handoff.go",
		old: "if h.asked.Has(node) && lapsed {",
		new: "if h.asked.Has(node) {",
		pkg: decisions, run: "TestHandOff$",
	},
	{
		name: "an old release is looked after", file: "internal/quorum/handoff.go",
		old: "func (h *HandOff) Released() { *h = HandOff{} }",
		new: "func (h *HandOff) Released() {}",
		pkg: decisions, run: "TestHandOff$",
	},
	{
		name: "a sign of life is none", file: "internal/quorum/handoff.go",
		old: "func (h *HandOff) Settled() { *h = HandOff{} }",
		new: "func (h *HandOff) Settled() {}",
		pkg: decisions, run: "TestHandOff$",
	},
	{
		name: "the first node's grace counts alone", file: "internal/quorum/handoff.go",
		old: "h.at = max(h.at, now+grace+trip+time.Millisecond)",
		new: "if h.at == 0 {\n\t\th.at = now + grace + trip + time.Millisecond\n\t}",
		pkg: decisions, run: "TestHandOff$",
	},
	// The queue of the callers in one process.
	{
		name: "the last caller is first", file: "internal/quorum/local.go",
		old: "c := l.waiting[0]\n\tl.waiting = l.waiting[1:]",
		new: "c := l.waiting[len(l.waiting)-1]\n\tl.waiting = l.waiting[:len(l.waiting)-1]",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a cancelled caller is served", file: "internal/quorum/local.go",
		old: "l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)",
		new: "",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a cancelled contender stops the queue", file: "internal/quorum/local.go",
		old: "if l.phase == localContending && l.head.ID == id {\n\t\treturn l.next(now)",
		new: "if l.phase == localContending && l.head.ID == id {\n\t\treturn Step{}",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a lost hold stops the queue", file: "internal/quorum/local.go",
		old: "\tif l.phase != localHeld && l.phase != localChecking {\n\t\treturn Step{}\n\t}\n\treturn l.next(now)",
		new: "\treturn Step{}",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "two contenders", file: "internal/quorum/local.go",
		old: "if l.phase == localIdle {\n\t\treturn l.contend",
		new: "if l.phase == localIdle || l.phase == localContending {\n\t\treturn l.contend",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a pass without proof", file: "internal/quorum/local.go",
		old: "proven := h.Proven && h.Tokens > 0",
		new: "proven := h.Tokens > 0",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a pass without a token", file: "internal/quorum/local.go",
		old: "proven := h.Proven && h.Tokens > 0",
		new: "proven := h.Proven",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a pass with no validity left", file: "internal/quorum/local.go",
		old: " || !h.Useful {",
		new: " {",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a pass to other terms", file: "internal/quorum/local.go",
		old: "len(l.waiting) == 0 || l.waiting[0].Terms != l.head.Terms ||",
		new: "len(l.waiting) == 0 ||",
		pkg: decisions, run: "TestLocal$",
	},
	{
		name: "a pass on old knowledge", file: "internal/quorum/local.go",
		old: "proven && now < h.AnsweredAt+CheckAfter:",
		new: "proven:",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a check behind a check", file: "internal/quorum/local.go",
		old: "return l.decide(now, h, false)",
		new: "return l.decide(now, h, true)",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "passing has no end in time", file: "internal/quorum/local.go",
		old: " && now < l.since+CheckAfter\n",
		new: "\n",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "passing has no end in number", file: "internal/quorum/local.go",
		old: "l.passes < maxPasses &&",
		new: "",
		pkg: decisions, run: "TestLocal$",
	},
	{
		name: "callers that come back are served before others", file: "internal/quorum/local.go",
		old: "return l.waiting[0].Arrived <= l.since && ",
		new: "return ",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "others are forgotten", file: "internal/quorum/local.go",
		old: "case h.Others > 0 && !(proven && l.fair(now)):",
		new: "case h.Others < 0:",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a check does not reset the bound", file: "internal/quorum/local.go",
		old: "l.since, l.passes = h.AnsweredAt, 0",
		new: "l.passes = 0",
		pkg: decisions, run: "TestLocal$",
	},
	{
		name: "the next ticket does not go along", file: "internal/quorum/local.go",
		old: "s.Caller != 0 && h.Subscribed,",
		new: "false,",
		pkg: decisions, run: "TestLocal$|EqualShares",
	},
	{
		name: "a ticket goes along that nobody wakes", file: "internal/quorum/local.go",
		old: "s.Caller != 0 && h.Subscribed,",
		new: "s.Caller != 0,",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
	{
		name: "a lock that was handed on is asked for at once", file: "internal/quorum/local.go",
		old: "at = max(at, l.handedOn+ReacquireDelay)",
		new: "at = max(at, l.handedOn)",
		pkg: decisions, run: "TestLocal$",
	},
	{
		name: "a lock is never left free", file: "internal/quorum/local.go",
		old: "if l.releases++; l.releases < every {",
		new: "if l.releases++; l.releases < 1000*every {",
		pkg: decisions, run: "LeavesItFree|ClientsWithoutQueues",
	},
	{
		name: "a lock is always left free", file: "internal/quorum/local.go",
		old: "if l.releases++; l.releases < every {",
		new: "if l.releases++; l.releases < 0*every {",
		pkg: decisions, run: "LeavesItFree",
	},
	{
		name: "strangers are forgotten", file: "internal/quorum/local.go",
		old: "if now < l.stranger {",
		new: "if now < 0 {",
		pkg: decisions, run: "LeavesItFree",
	},
	{
		name: "TryAcquire is refused without a holder", file: "internal/quorum/local.go",
		old: "if c.Once && l.phase == localContending {",
		new: "if c.Once && l.phase == localIdle {",
		pkg: decisions, run: "TestLocal$|LocalKeeps",
	},
}
