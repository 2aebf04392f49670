package main

// comforts are the bugs in what makes the library pleasant: options of a call, hints, and
// what traces show.
var comforts = []mutant{
	{
		name: "a release before the minimum deletes the lock", file: "hold.go",
		old: "\tif h.terms.minHold == 0 {\n",
		new: "\tif h.terms.minHold >= 0 {\n",
		pkg: virtual, run: "TestAReleaseBeforeTheMinimum",
	},
	{
		name: "Close forgets the minimum", file: "watchdog.go",
		old: "if keep := h.keepRequest(); keep != nil {",
		new: "if keep := h.keepRequest(); keep != nil && false {",
		pkg: virtual, run: "TestAReleaseBeforeTheMinimum",
	},
	{
		name: "nobody releases a lock that has its minimum", file: "transition.go",
		old: "h.m.dog.schedule(h, keep)",
		new: "h.m.dog.schedule(h, quorum.Never)",
		pkg: virtual, run: "TestAWaiterIsWokenWhenTheMinimumIsOver",
	},
	{
		name: "a lease with a minimum is passed on", file: "local.go",
		old: "h.terms.maxHold == 0 && h.terms.minHold == 0 &&",
		new: "h.terms.maxHold == 0 &&",
		pkg: virtual, run: "TestCallersOfOneProcessWaitForTheMinimum",
	},
	{
		name: "a lock that a heal has made is not released", file: "rounds.go",
		old: "\t\t\th.acquire.MadeElsewhere(i)\n",
		new: "",
		pkg: virtual, run: "TestALockThatARenewalHasPutOntoANode",
	},
	{
		name: "votes that were split are somebody's", file: "internal/quorum/waiter.go",
		old: "!r.Scattered || w.scattered >= maxScattered",
		new: "!r.Scattered || w.scattered >= 0",
		pkg: virtual, run: "TestTryAcquireAsksAgain",
	},
	{
		name: "WithWait bounds the work", file: "do.go",
		old: "fnCtx, cancel := context.WithCancelCause(context.WithValue(ctx,",
		new: "ctx, stopWork := context.WithTimeout(ctx, time.Second)\n\tdefer stopWork()\n\tfnCtx, cancel := context.WithCancelCause(context.WithValue(ctx,",
		pkg: virtual, run: "TestWithWaitBounds",
	},
	{
		name: "a wait that is over is the end of a context", file: "acquire.go",
		old: "case w.ctx.Err() != nil && context.Cause(w.ctx) == errWaitOver:",
		new: "case w.ctx.Err() == nil && context.Cause(w.ctx) == errWaitOver:",
		pkg: virtual, run: "TestWithWaitBounds",
	},
	{
		name: "a lease of before the first refusal is somebody else's", file: "own.go",
		old: "\t\t\to.holds[h.lock] = h\n",
		new: "\t\t\t_ = h\n",
		pkg: virtual, run: "TestAnotherManagersLeaseIsNotOurs",
	},
	{
		name: "a lease that another has taken stays ours", file: "own.go",
		old: "return !h.over && ownerOf(h.value) == owner",
		new: "return h != nil",
		pkg: virtual, run: "TestAnotherManagersLeaseIsNotOurs",
	},
	{
		name: "a later lease is somebody else's", file: "grant.go",
		old: "\tm.own.add(h)\n",
		new: "",
		pkg: virtual, run: "TestAnotherManagersLeaseIsNotOurs",
	},
	{
		name: "Do of the same name waits for itself", file: "do.go",
		old: "f, _ := ctx.Value(frameKey{}).(*frame)",
		new: "f, _ := ctx.Value(frameKey{}).(*frame)\n\tf = nil",
		pkg: virtual, run: "TestACallUnderDo",
	},
	{
		name: "a lease that is watched looks forgotten", file: "remind.go",
		old: "!l.asked.Load() && ",
		new: "",
		pkg: virtual, run: "TestALeaseThatIsNeverChecked",
	},
	{
		name: "a caller in the queue of the process is never warned", file: "remind.go",
		old: "h.local != nil && h.local.waitsSince(",
		new: "h.local != nil && now == 0 && h.local.waitsSince(",
		pkg: virtual, run: "TestACallerThatMayWaitForItself",
	},
	{
		name: "a release is cut short by what it ends", file: "answers.go",
		old: "if waiting = errors.Is(context.Cause(ctx), ErrReleased); waiting {",
		new: "if waiting = false; waiting {",
		pkg: real, run: "TestAReleaseIsNotCutShort",
	},
	{
		name: "a cause hides the context's own error", file: "errors.go",
		old: "errs = append(errs, cause)",
		new: "errs[0] = cause",
		pkg: real, run: "TestAnEndedWaitHas",
	},
	{
		name: "the caller's provider is not used", file: "tracing.go",
		old: "return newTracer(span.TracerProvider())",
		new: "return nil",
		pkg: real, run: "TestSpansAreMadeWithTheProvider",
	},
	{
		name: "each poll is an event", file: "tracing.go",
		old: "if h.Owner == \"\" || h.Owner == s.holder {",
		new: "if h.Owner == \"\" {",
		pkg: real, run: "TestSpansShow|TestAWaitersSpan",
	},
	{
		name: "a waiter's span leads nowhere", file: "tracing.go",
		old: "if sc, ok := parseTraceParent(h.TraceParent); ok {",
		new: "if sc, ok := parseTraceParent(h.TraceParent); ok && !sc.IsRemote() {",
		pkg: real, run: "TestAWaitersSpan",
	},
	{
		name: "a passed lease leads nowhere", file: "local.go",
		old: "\tw.call.follows(t.previous)\n",
		new: "",
		pkg: real, run: "TestACallersSpanLinks",
	},
	{
		name: "a name that is taken is an error", file: "tracing.go",
		old: "case \"ok\", \"held\", \"cancelled\",",
		new: "case \"ok\", \"cancelled\",",
		pkg: real, run: "TestOnlyErrorsAreErrors",
	},
}
