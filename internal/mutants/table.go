package main

// The packages whose tests are on trial.
const (
	decisions = "internal/quorum" // golden cases, a second implementation, random walks
	scripts   = "internal/node"   // conformance on a real Redis
	virtual   = "quorumlocktest"  // the whole Manager in virtual time
	real      = "."               // the whole Manager on real Redis
	clocks    = "internal/clock"
)

// mutants are the bugs, by where they lie. A bug is a change that somebody
// could make in good faith.
var mutants = []mutant{
	// Counting votes.
	{
		name: "quorum of n/2", file: "internal/quorum/tally.go",
		old: "func Size(n int) int { return n/2 + 1 }", new: "func Size(n int) int { return max(1, n/2) }",
		pkg: decisions, run: "TestTally$",
	},
	{
		name: "a second answer of a node counts", file: "internal/quorum/tally.go",
		old: "if !t.Silent().Has(i) {\n\t\treturn false\n\t}", new: "",
		pkg: decisions, run: "TestTally$",
	},
	{
		name: "held is told while it may be otherwise", file: "internal/quorum/tally.go",
		old: "case taken >= blocking:", new: "case taken >= blocking-1 && taken > 0:",
		pkg: decisions, run: "TestTally$",
	},
	{
		name: "failures are told as held", file: "internal/quorum/tally.go",
		old: "case failed >= blocking:\n\t\treturn NoQuorum", new: "case failed >= blocking:\n\t\treturn Held",
		pkg: decisions, run: "TestTally$",
	},
	{
		name: "taken counts as a failure", file: "attempt.go",
		old: "\t\ta.claim.Refuse(i)\n", new: "\t\ta.claim.Fail(i)\n",
		pkg: virtual, run: "TestAStrangersKeyWithoutAnEndIsNotFreeNow$",
	},
	{
		name: "a failure counts as taken", file: "attempt.go",
		old: "\ta.claim.Fail(i)\n\ta.fail(i, reply.Err)", new: "\ta.claim.Refuse(i)\n\ta.fail(i, reply.Err)",
		pkg: virtual, run: "TestTimeoutsOfNodesAreNotTheCallersDeadline$",
	},
	{
		name: "silence is a vote", file: "attempt.go",
		old: "\t\t\ta.fail(i, errSilent)\n\t\t}\n\t}\n\ta.claim.Votes().Expire()",
		new: "\t\t\ta.claim.Grant(i, max(1, a.claim.Token()))\n\t\t}\n\t}\n\ta.claim.Votes().Expire()",
		pkg: virtual, run: "TestAmbiguousIsNeverAVoteAndIsAlwaysReleased$",
	},
	{
		name: "an ambiguous answer is a vote", file: "attempt.go",
		old: "\tcase node.Unsent:\n\t\ta.unsent, a.outof",
		new: "\tcase node.Unknown:\n\t\treturn a.claim.Grant(i, max(1, a.claim.Token()))\n\tcase node.Unsent:\n\t\ta.unsent, a.outof",
		pkg: real, run: "TestAnAttemptThatCameToNothingLeavesNoKeys$/lost",
	},
	{
		name: "a vote over a connection that was not greeted", file: "internal/node/node.go",
		old: "changed := n.dialed.Load() != n.greeted", new: "changed := false",
		pkg: scripts, run: "TestAVoteOverAConnectionThatWasNotGreetedDoesNotCount$",
	},

	// Fencing tokens.
	{
		name: "no write-back", file: "internal/quorum/claim.go",
		old: "\tcase counter < c.token:\n", new: "\tcase counter < c.token:\n\t\tc.at = c.at.With(i)\n",
		pkg: decisions, run: "TestClaim",
	},
	{
		name: "write-back that is not sent", file: "attempt.go",
		old: "if raise.Has(j) {", new: "if raise.Has(j) && j > 0 {",
		pkg: virtual, run: "TestCountersThatDisagreeAreBroughtUpBeforeTheGrant$",
	},
	{
		name: "a node above the token stands at it", file: "internal/quorum/claim.go",
		old: "case counter == c.token:", new: "case counter >= c.token:",
		pkg: decisions, run: "TestClaim",
	},
	{
		name: "a refused write-back counts", file: "internal/quorum/claim.go",
		old: "\tdefault:\n\t\tc.refused = c.refused.With(i)", new: "\tdefault:\n\t\tc.at = c.at.With(i)",
		pkg: decisions, run: "TestClaim",
	},
	{
		name: "the answer to a write-back is not looked at", file: "attempt.go",
		old: "ok := reply.Status == node.Done && reply.N == 1", new: "ok := reply.Status == node.Done",
		pkg: virtual, run: "TestAGrantNeedsAQuorumThatTookTheToken$",
	},
	{
		name: "a counter below 1 is a token", file: "internal/quorum/claim.go",
		old: "if !c.unfenced && counter < 1 {", new: "if !c.unfenced && counter < -1 {",
		pkg: decisions, run: "TestClaim",
	},
	{
		name: "write-back to any owner", file: "internal/node/lua/raise.lua",
		old: "string.sub(held, 1, 33) ~= ARGV[1] .. ' '", new: "#held < 1",
		pkg: scripts, run: "TestRealRedisConforms/raise",
	},
	{
		name: "write-back above the token is confirmed", file: "internal/node/lua/raise.lua",
		old: "if tonumber(last) > tonumber(ARGV[2]) then\n  return 0", new: "if tonumber(last) > tonumber(ARGV[2]) then\n  return 1",
		pkg: scripts, run: "TestRealRedisConforms/raise",
	},
	{
		name: "write-back sets, even down", file: "internal/node/lua/raise.lua",
		old: "if tonumber(last) > tonumber(ARGV[2]) then\n  return 0\nend\nif tonumber(last) < tonumber(ARGV[2]) then",
		new: "if tonumber(last) ~= tonumber(ARGV[2]) then",
		pkg: scripts, run: "TestRealRedisConforms/raise",
	},
	{
		name: "write-back makes a counter", file: "internal/node/lua/raise.lua",
		old: "if not last then\n  return 0\nend", new: "last = last or 0",
		pkg: scripts, run: "TestRealRedisConforms/raise",
	},
	{
		name: "a repeated acquire counts again", file: "internal/node/lua/acquire.lua",
		old: "string.match(held, '^%d+', 34) or '0', now)", new: "string.format('%.0f', redis.call('INCR', KEYS[2])), now)",
		pkg: scripts, run: "TestRealRedisConforms/asking_again",
	},
	{
		name: "a repeated acquire is taken by itself", file: "internal/node/lua/acquire.lua",
		old: "if held and not kept and not ours then", new: "if held and not kept then",
		pkg: scripts, run: "TestRealRedisConforms/asking_again",
	},
	{
		name: "a seed far from the node's clock is taken", file: "internal/node/lua/acquire.lua",
		old: "counter = math.min(math.max(tonumber(ARGV[5]), now - ARGV[6]), now + ARGV[6])", new: "counter = tonumber(ARGV[5])",
		pkg: scripts, run: "TestRealRedisConforms/a_seed",
	},
	{
		name: "counters in scientific notation", file: "internal/node/lua/acquire.lua",
		old: "redis.call('SET', KEYS[2], string.format('%.0f', counter), 'PXAT'", new: "redis.call('SET', KEYS[2], tostring(counter), 'PXAT'",
		pkg: scripts, run: "TestRealRedisConforms/a_new_counter",
	},
	{
		name: "acquire forgets a counter before the clock reaches it", file: "internal/node/lua/acquire.lua",
		old: "forgotten(now, counter, ARGV[4])", new: "forgotten(now, 0, ARGV[4])",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
	{
		name: "extend forgets a counter before the clock reaches it", file: "internal/node/lua/extend.lua",
		old: "forgotten(now, last, ARGV[3])", new: "forgotten(now, token, ARGV[3])",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
	{
		name: "extend forgets a token before the clock reaches it", file: "internal/node/lua/extend.lua",
		old: "forgotten(now, token, ARGV[3])", new: "forgotten(now, last, ARGV[3])",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
	{
		name: "raise forgets a token before the clock reaches it", file: "internal/node/lua/raise.lua",
		old: "forgotten(now, tonumber(ARGV[2]), ARGV[3])", new: "forgotten(now, 0, ARGV[3])",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
	{
		name: "release forgets a counter before the clock reaches it", file: "internal/node/lua/release.lua",
		old: "time[2], to, ARGV[3])", new: "time[2], 0, ARGV[3])",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
	{
		name: "extend believes a counter that is beyond all numbers", file: "internal/node/lua/extend.lua",
		old: "if last and last > 9007199254740991 then", new: "if false then",
		pkg: real, run: "TestAFenceCounterThatTurnsBadUnderALeaseDoesNotEndIt$",
	},
	{
		name: "a failed attempt takes back any step", file: "internal/node/lua/release.lua",
		old: "elseif last and token == 0 and last == tonumber(string.match(held, '^%d+', 34) or '') then", new: "elseif last and token == 0 then",
		pkg: scripts, run: "TestRealRedisConforms/a_failed_attempt",
	},
	{
		name: "release leaves the counter behind", file: "internal/node/lua/release.lua",
		old: "if last and token > last then", new: "if last and token > last and false then",
		pkg: scripts, run: "TestRealRedisConforms/release",
	},
	{
		name: "extend leaves the counter behind", file: "internal/node/lua/extend.lua",
		old: "if last and last < token then", new: "if last and last > token then",
		pkg: scripts, run: "TestRealRedisConforms/extend_prolongs",
	},

	// Locks on the node.
	{
		name: "extend creates", file: "internal/node/lua/extend.lua",
		old: "== ' w ' then\n    replies[#replies + 1] = 0",
		new: "== ' w ' then\n    redis.call('SET', KEYS[key], owner .. ' 0 0 - ', 'PX', px)\n    replies[#replies + 1] = 1",
		pkg: scripts, run: "TestRealRedisConforms/extend",
	},
	{
		name: "acquire makes a lock that outlives a frozen script", file: "internal/node/lua/acquire.lua",
		old: "'NX', 'PXAT', ends)", new: "'NX', 'PX', ARGV[3])",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack$/acquire",
	},
	{
		name: "extend brings back what expired in a frozen script", file: "internal/node/lua/extend.lua",
		old: "redis.call('PEXPIREAT', KEYS[key], ms + px)", new: "redis.call('PEXPIRE', KEYS[key], px)",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack/extend",
	},
	{
		name: "extend believes a lock that is older than it can be", file: "internal/node/lua/extend.lua",
		old: "elseif now > ARGV[1] + px * 1000 then", new: "elseif now > ARGV[1] + px * 1e12 then",
		pkg: scripts, run: "TestAnExtendThatTookLongerThanALockLivesFindsItGone$",
	},
	{
		name: "heal brings back what expired in a frozen script", file: "internal/node/lua/heal.lua",
		old: "redis.call('PEXPIREAT', KEYS[key], ends)", new: "redis.call('PEXPIRE', KEYS[key], px)",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack/heal",
	},
	{
		name: "extend of any owner", file: "internal/node/lua/extend.lua",
		old: "elseif string.sub(held, 1, 33) ~= owner .. ' ' then", new: "elseif #held < 1 then",
		pkg: scripts, run: "TestRealRedisConforms/extend",
	},
	{
		name: "extend by zero", file: "internal/node/lua/extend.lua",
		old: "if tonumber(px) < 1 then", new: "if tonumber(px) < 0 then",
		pkg: scripts, run: "TestRealRedisConforms/extend",
	},
	{
		name: "one bad key fails a batch of renewals", file: "internal/node/lua/extend.lua",
		old: "local held = redis.pcall(", new: "local held = redis.call(",
		pkg: scripts, run: "TestRealRedisConforms/a_bad_key",
	},
	{
		name: "heal at any time", file: "internal/node/lua/heal.lua",
		old: "if now > last + ARGV[1] then", new: "if now > last + ARGV[1] + 1e12 then",
		pkg: scripts, run: "TestRealRedisConforms/heal",
	},
	{
		name: "heal prolongs another's lock", file: "internal/node/lua/heal.lua",
		old: "elseif string.sub(held, 1, 33) == string.sub(value, 1, 33) then", new: "elseif #held > 1 then",
		pkg: scripts, run: "TestRealRedisConforms/heal",
	},
	{
		name: "acquire at any time", file: "internal/node/lua/acquire.lua",
		old: "late = now > ARGV[7] + ARGV[10]", new: "late = now > ARGV[7] + ARGV[10] + 1e12",
		pkg: scripts, run: "TestRealRedisConforms/a_request",
	},
	{
		name: "acquire over a key of another type", file: "internal/node/lua/acquire.lua",
		old: "value, kept and 'XX' or 'NX', 'PXAT', ends", new: "value, 'PXAT', ends",
		pkg: scripts, run: "TestRealRedisConforms/a_key_of_another_type",
	},
	{
		name: "a counter that is no number is overwritten", file: "internal/node/lua/acquire.lua",
		old: "return redis.error_reply('ERR quorumlock: the fence counter is not a number')", new: "last = 0",
		pkg: scripts, run: "TestRealRedisConforms/a_counter",
	},
	{
		name: "release of any owner", file: "internal/node/lua/release.lua",
		old: "local ours = string.sub(held, 1, 33) == ARGV[1] .. ' '", new: "local ours = #held > 0",
		pkg: scripts, run: "TestRealRedisConforms/release",
	},

	// The restart guard and clocks.
	{
		name: "a restart is not noticed", file: "internal/node/lua/guard.lua",
		old: "run == ARGV[1] and ARGV[4] ~= '1'", new: "ARGV[4] ~= '1'",
		pkg: scripts, run: "TestARestartThatFindsItsDataIsQuarantinedAllTheSame$",
	},
	{
		name: "no look at the marker", file: "internal/node/lua/acquire.lua",
		old: "if found[2] ~= ARGV[14] then", new: "if found[2] == 'x' then",
		pkg: scripts, run: "TestRealRedisConforms/the_restart_guard_sees_a_flush",
	},
	{
		name: "a missing marker passes", file: "internal/node/lua/acquire.lua",
		old: "if found[2] ~= ARGV[14] then", new: "if found[2] and found[2] ~= ARGV[14] then",
		pkg: scripts, run: "TestRealRedisConforms/the_restart_guard_sees_a_flush",
	},
	{
		name: "a quarantine binds only who started it", file: "internal/node/lua/guard.lua",
		old: "redis.call('SET', KEYS[1], marker)", new: "if not run then redis.call('SET', KEYS[1], marker) end",
		pkg: virtual, run: "TestAStepThatOneClientFindsBindsTheOthersUnderTheGuard$",
	},
	{
		name: "votes of a node in quarantine", file: "internal/node/node.go",
		old: "case e.req.Kind == Acquire && quarantined:", new: "case e.req.Kind == Acquire && quarantined && i < 0:",
		pkg: scripts, run: "TestRealRedisConforms/the_restart_guard_quarantines",
	},
	{
		name: "no floor after a quarantine", file: "internal/node/greet.go",
		old: "n.marker, n.floor = marker, strconv.FormatInt(ends, 10)", new: "n.marker, n.floor = marker, \"0\"",
		pkg: scripts, run: "TestRealRedisConforms/counters_go_on",
	},
	{
		name: "the floor is the start of the quarantine", file: "internal/node/greet.go",
		old: "n.marker, n.floor = marker, strconv.FormatInt(ends, 10)", new: "n.marker, n.floor = marker, strconv.FormatInt(now, 10)",
		pkg: scripts, run: "TestRealRedisConforms/counters_go_on",
	},
	{
		name: "trust in an empty node covers a flush", file: "internal/node/greet.go",
		old: "flag(n.cfg.Trust && n.marker == \"\")", new: "flag(n.cfg.Trust)",
		pkg: scripts, run: "TestRealRedisConforms/the_restart_guard_trusts_nothing",
	},
	{
		name: "trust in a node that is not empty", file: "internal/node/lua/guard.lua",
		old: " and redis.call('DBSIZE') == 0 then", new: " then",
		pkg: scripts, run: "TestRealRedisConforms/the_restart_guard_trusts",
	},
	{
		name: "clients with other longest leases are let in", file: "internal/node/greet.go",
		old: "if agreed != longest {", new: "if agreed < 0 {",
		pkg: scripts, run: "TestRealRedisConforms/clients_with_different",
	},
	{
		name: "a guard that cannot work refuses the node as a whole", file: "internal/node/greet.go",
		old: "\t\twithheld, err = n.guard(ctx)\n", new: "\t\tif withheld, err = n.guard(ctx); withheld != nil {\n\t\t\treturn nil, withheld\n\t\t}\n",
		pkg: virtual, run: "TestAGuardThatCannotDoItsWorkCostsVotesAndNoLease$",
	},
	{
		name: "a node that is refused votes", file: "internal/node/node.go",
		old: "case e.req.Kind == Acquire && n.withheld != nil:", new: "case e.req.Kind == Acquire && n.withheld != nil && i < 0:",
		pkg: scripts, run: "TestRealRedisConforms/a_guard_that_cannot",
	},
	{
		name: "a node that is refused is greeted again like any other", file: "internal/node/greet.go",
		old: "\t\t\tn.checkAt = n.cfg.Now() + mendEvery\n", new: "",
		pkg: virtual, run: "TestAGuardThatCannotDoItsWorkCostsVotesAndNoLease$",
	},
	{
		name: "the server of a node that is refused may vote elsewhere", file: "manager.go",
		old: "\tcase h.Withheld: // it is", new: "\tcase h.Withheld && i < 0: // it is",
		pkg: virtual, run: "TestANodeThatDoesNotVoteIsStillItself$",
	},
	{
		name: "votes of a node whose clock was stepped", file: "internal/node/node.go",
		old: "case n.why != nil && e.req.Kind == Acquire && r.Status == Granted:", new: "case n.why != nil && e.req.Kind == Acquire && r.Status == Taken:",
		pkg: virtual, run: "TestAVoteThatShowsASteppedClockDoesNotCount$",
	},
	{
		name: "a step binds only who has seen it", file: "internal/node/wire.go",
		old: "n.distrust, n.distrusted = n.cfg.Guard > 0, at", new: "n.distrusted = at",
		pkg: virtual, run: "TestAStepThatOneClientFindsBindsTheOthersUnderTheGuard$",
	},
	{
		name: "what was evicted under the guard is forgotten", file: "internal/node/greet.go",
		old: "\t\tn.evicted = true //", new: "\t\t//",
		pkg: virtual, run: "TestAGuardThatCannotDoItsWorkCostsVotesAndNoLease$",
	},
	{
		name: "our own clock is never to blame", file: "manager.go",
		old: "alone = steady >= m.quorum()", new: "alone = steady >= 0",
		pkg: virtual, run: "TestAClientWhoseClockStoodStillKeepsNobodyElseFromVotes$",
	},
	{
		name: "leases are not told of a step", file: "manager.go",
		old: "l.doubt(step)", new: "_ = l",
		pkg: virtual, run: "TestClocksThatStepOnAMajorityAreALossOfEveryLeaseWithinOneRound$",
	},
	{
		name: "a flush of an idle node is not looked for", file: "internal/node/node.go",
		old: "checkEvery = 10 * time.Second", new: "checkEvery = 1000 * time.Hour",
		pkg: virtual, run: "TestAFlushOfAnIdleNodeStartsItsQuarantineAtTheNextCheckup$",
	},
	{
		name: "a check comes before a heal", file: "internal/node/node.go",
		old: "\t\thurry := n.hurry.Swap(false)\n", new: "\t\thurry := n.hurry.Swap(false)\n\t\tif hurry {\n\t\t\tn.checkAt = 0\n\t\t}\n",
		pkg: scripts, run: "TestACheckComesBehindWhatIsQueued$",
	},
	{
		name: "nobody asks why a key is gone", file: "watchdog.go",
		old: "r.m.nodes[i].Check()", new: "_ = i",
		pkg: virtual, run: "TestANodeThatHasLostAKeyIsLookedAtWithinOneInterval$",
	},
	{
		name: "leases trust a clock that was stepped", file: "internal/quorum/machine.go",
		old: "if m.window[in.Node] -= in.By; m.window[in.Node] <= now {", new: "if in.By < 0 {",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a step that is found during a grant is forgotten", file: "attempt.go",
		old: "l.doubtSince(a.began)", new: "",
		pkg: virtual, run: "TestAGrantThatAStepHasOvertakenIsNone$",
	},
	{
		name: "suspended time does not count", file: "internal/clock/clock.go",
		old: "max(boot, wall, 0)", new: "max(wall, 0)",
		pkg: clocks, run: "TestSuspend",
	},
	{
		name: "a wall clock set back turns time back", file: "internal/clock/clock.go",
		old: "max(boot, wall, 0)", new: "wall",
		pkg: clocks, run: "TestWallClockSetBackNeverTurnsTimeBack$",
	},
	{
		name: "a wall clock set forward does not count", file: "internal/clock/clock.go",
		old: "max(boot, wall, 0)", new: "max(boot, 0)",
		pkg: clocks, run: "TestWallClockSetForwardCountsAsElapsed$",
	},
	{
		name: "the steady clock steps with the wall clock", file: "internal/clock/clock.go",
		old: "j.steady + max(boot, 0)", new: "j.steady + max(boot, wall, 0)",
		pkg: clocks, run: "TestAStepThatClientAndNodeMakeTogetherIsFound$",
	},
	{
		name: "the steady clock stands still in a suspend", file: "internal/clock/clock.go",
		old: "j.steady + max(boot, 0)", new: "j.steady",
		pkg: clocks, run: "TestASuspendOfTheClientIsNoStepOfANode$",
	},
	{
		name: "the boot clock is read only when the wall clock disagrees", file: "internal/clock/clock.go",
		old: "j.differs(wall-mono) || int64(mono) >= c.due.Load() {\n\t\tmono, j", new: "j.differs(wall-mono) {\n\t\tmono, j",
		pkg: clocks, run: "TestASuspendThatTheWallClockHidesIsFoundWithinATick$",
	},
	{
		name: "the tick of the boot clock never begins again", file: "internal/clock/clock.go",
		old: "c.due.Store(int64(r.Mono + c.tick))\n\treturn r.Mono, j", new: "return r.Mono, j",
		pkg: clocks, run: "TestLooksWithinATickCompareNothingButTheWallClock$",
	},
	{
		name: "an interrupted reading is a jump", file: "internal/clock/clock.go",
		old: "least > accepted+tolerance", new: "most > accepted+tolerance",
		pkg: clocks, run: "TestTornReadingIsNotAJump$",
	},
	{
		name: "a bubble reads the system's clock", file: "internal/clock/clock.go",
		old: "ok && trusted()", new: "ok",
		pkg: clocks, run: "TestInABubbleTheSystemsClockDoesNotCount$",
	},
	{
		name: "steps below the least add up to nothing", file: "internal/clock/offset.go",
		old: "if by == 0 {\n\t\to.base = next\n\t}", new: "o.base = next",
		pkg: clocks, run: "TestAClockThatIsSlewedBeyondTheBoundIsFoundHoweverOftenItIsRead$",
	},
	{
		name: "the bound on clock rates does not reach step detection", file: "internal/clock/offset.go",
		old: "float64(d) * rate", new: "float64(d) * 0.01",
		pkg: clocks, run: "TestTheBoundOnRatesIsTheOneThatIsGiven$",
	},
	{
		name: "a step is reported by its least", file: "internal/clock/offset.go",
		old: "return most + drift", new: "return least + drift",
		pkg: clocks, run: "TestAStepAboveTheWidthsAndTheLeastIsAlwaysFound$",
	},
	{
		name: "a slow answer is a step", file: "internal/clock/offset.go",
		old: "least > drift", new: "most > drift",
		pkg: clocks, run: "TestAClockWithinTheBoundNeverSeemsToStepAndLiesWhereItIsSaidToLie$",
	},
	{
		name: "a node's clock counts from the sending", file: "internal/clock/offset.go",
		old: "low: nodeClock - received", new: "low: nodeClock - sent",
		pkg: clocks, run: "TestAClockWithinTheBoundNeverSeemsToStepAndLiesWhereItIsSaidToLie$",
	},

	// Validity and loss.
	{
		name: "validity counts from the grant", file: "attempt.go",
		old: "l.machine = quorum.NewMachine(&a.terms.Terms, window, a.began,", new: "l.machine = quorum.NewMachine(&a.terms.Terms, window, a.m.clock.Now(),",
		pkg: virtual, run: "TestValidityCountsFromBeforeTheSend$",
	},
	{
		name: "validity counts from the reply", file: "watchdog.go",
		old: "in.At = reply.Sent", new: "in.At = r.m.clock.Now()",
		pkg: virtual, run: "TestValidityCountsFromBeforeTheSend$",
	},
	{
		name: "no drift bound", file: "internal/quorum/window.go",
		old: "return time.Duration(float64(ttl)*factor) + 2*time.Millisecond", new: "return 0 * time.Duration(float64(ttl)*factor)",
		pkg: decisions, run: "TestWindow$|TestDrift",
	},
	{
		name: "no guard between stop and deadline", file: "internal/quorum/machine.go",
		old: "return min(m.window.Deadline()-m.terms.Guard, m.ceiling)", new: "return min(m.window.Deadline(), m.ceiling)",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a loss is not told early", file: "internal/quorum/machine.go",
		old: "return m.window.Deadline() - m.terms.Guard - m.terms.Early - m.lag", new: "return m.window.Deadline() - m.terms.Guard",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a watchdog that is late tells no earlier", file: "internal/quorum/machine.go",
		old: "m.terms.Early - m.lag", new: "m.terms.Early",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "how much earlier has no bound", file: "internal/quorum/machine.go",
		old: "lag := min(in.Lag, m.terms.MaxLag)", new: "lag := in.Lag",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a waiter comes with the first key that ends", file: "internal/quorum/window.go",
		old: "return ends[min(max(k, 1), len(ends))-1]", new: "return ends[0]",
		pkg: decisions, run: "TestFreedBy",
	},
	{
		name: "what was late before this period is forgotten", file: "internal/quorum/lag.go",
		old: "*l = Lag{since: l.since + lagPeriod, before: l.worst}", new: "*l = Lag{since: now}",
		pkg: decisions, run: "TestLag",
	},
	{
		name: "the watchdog's own time is not measured", file: "watchdog.go",
		old: "d.lag.Saw(now, late)", new: "d.lag.Saw(now, late*0)",
		pkg: real, run: "TestTheWatchdogMeasures",
	},
	{
		name: "a timer that is late does not count", file: "watchdog.go",
		old: "\t\treturn min(d.rung, d.asleep)\n\t}\n\treturn d.asleep", new: "\t\treturn min(d.rung, d.asleep)\n\t}\n\treturn d.m.clock.Now()",
		pkg: real, run: "TestTheWatchdogMeasures",
	},
	{
		name: "leases that sleep do not hear that the watchdog is late", file: "watchdog.go",
		old: "if d.measure(due, jumped) {", new: "if d.measure(due, jumped) && due < 0 {",
		pkg: real, run: "TestEveryLeaseHears",
	},
	{
		name: "an answer hears that the watchdog is late", file: "internal/quorum/machine.go",
		old: "lag < m.lag || in.Kind == Tick && !m.waiting()", new: "!m.waiting() || lag < m.lag",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a round that missed does not let its lease hear", file: "internal/quorum/machine.go",
		old: "if out.Missed && !m.waiting() {", new: "if out.Missed && m.waiting() {",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a jump of the clock is work", file: "watchdog.go",
		old: "late := now - due - (d.m.clock.Jumped() - jumped)", new: "late := now - due - 0*jumped",
		pkg: real, run: "TestAJumpOfTheClock",
	},
	{
		name: "what was due while the watchdog was awake is in time", file: "watchdog.go",
		old: "d.asleep = min(d.leases[0].wake, now+patience)", new: "d.asleep = min(max(now, d.leases[0].wake), now+patience)",
		pkg: real, run: "TestTheWatchdogMeasures",
	},
	{
		name: "a loss that is told early lets others in before the guard", file: "watchdog.go",
		old: "l.buried = max(s.now, l.machine.Stop()) + l.terms.Guard", new: "l.buried = s.now + l.terms.Guard",
		pkg: real, run: "TestALossThatIsToldEarly",
	},
	{
		name: "a round that was asked is ended by the watchdog's lag", file: "internal/quorum/machine.go",
		old: "in.Kind == Tick && !m.waiting()", new: "in.Kind == Tick",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a grant does not hear that the watchdog is late", file: "attempt.go",
		old: "\tl.machine.SetLag(a.m.dog.lagging())\n", new: "",
		pkg: real, run: "TestAGrantHears",
	},
	{
		name: "losses are told no earlier whatever the lag", file: "options.go",
		old: "t.MaxLag = quorum.MaxLag(t.ttl, t.ttl-spent)", new: "t.MaxLag = quorum.MaxLag(t.ttl, 0)",
		pkg: real, run: "TestHowMuchEarlier",
	},
	{
		name: "a jump of the clock before the deadline is no suspend", file: "watchdog.go",
		old: "in.Jump = jumped != l.jumped || s.now", new: "in.Jump = s.now",
		pkg: real, run: "TestAfterAJump",
	},
	{
		name: "leases do not hear that the watchdog is late", file: "watchdog.go",
		old: "\tin.Lag = l.m.dog.lagging()\n", new: "",
		pkg: real, run: "TestALateWatchdog",
	},
	{
		name: "a waiter that gives up stays in the queues", file: "waiters.go",
		old: "\tif w.ticket == \"\" || l != nil {\n", new: "\tif w != nil {\n",
		pkg: real, run: "TestAWaiterThatGivesUpLeavesNothingBehind$",
	},
	{
		name: "who frees a lock tells nobody", file: "internal/node/lua/release.lua",
		old: "  if ours or free then\n    given", new: "  if false then\n    given",
		pkg: real, run: "TestWhoWaitsIsServedInTheOrderOfComing$",
	},
	{
		name: "the second in the queue does not hear that the first may be frozen", file: "waiters.go",
		old: "\t\t\tw.next = true\n", new: "\t\t\tw.next = false\n",
		pkg: real, run: "TestAWaiterThatIsFrozenCostsItsGraceAndNoMore$",
	},
	{
		name: "a node that tells late gives no vote", file: "waiters.go",
		old: "\t\tcase missing:\n\t\t\ta.ask(i)\n", new: "\t\tcase missing:\n",
		pkg: real, run: "TestANodeThatTellsLateVotesToo$",
	},
	{
		name: "a waiter that is told by too few asks before the grace is over", file: "waiters.go",
		old: "now+w.m.grace()+time", new: "now+minGrace+time",
		pkg: virtual, run: "TestAWaiterThatIsToldByTooFewAsks",
	},
	{
		name: "an ear that comes back wakes nobody", file: "waiters.go",
		old: "\t\tw.again = true\n", new: "\t\tw.again = false\n",
		pkg: real, run: "TestWhoLosesItsEarIsServedAllTheSame$",
	},
	{
		name: "the deadline is the last node's", file: "internal/quorum/window.go",
		old: "return sorted[Size(len(w))-1]", new: "return sorted[0]",
		pkg: decisions, run: "TestWindow$|TestDeadline",
	},
	{
		name: "un-lose: an answer after the end counts", file: "internal/quorum/machine.go",
		old: "if !m.live() {\n\t\treturn out\n\t}", new: "if m.state == Released {\n\t\treturn out\n\t}\n\tm.state = Holding",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "the answer is looked at before the stop", file: "internal/quorum/machine.go",
		old: "if m.lapsed(now, in.Jump, &out) {", new: "if in.Kind != Kept && m.lapsed(now, in.Jump, &out) {",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "an old denial beats a newer confirmation", file: "internal/quorum/machine.go",
		old: "if m.window[in.Node] > m.terms.Keeps(in.At) {", new: "if m.window[in.Node] > Never-1 {",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a partial loss is not looked at", file: "internal/quorum/machine.go",
		old: "if now >= m.End() { // it was ahead before this answer", new: "if now >= Never { // it was ahead before this answer",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "heal before the round has spoken", file: "internal/quorum/machine.go",
		old: "if m.told || !m.open {", new: "if m.told || !m.open || m.gone != 0 {",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "a thin margin is no risk", file: "internal/quorum/machine.go",
		old: "thin := m.terms.Nodes > 1 && m.Margin(now) <= 0", new: "thin := m.terms.Nodes > 1 && m.Margin(now) < 0",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "no last look before the grant", file: "attempt.go",
		old: "if l.machine.End()-now < a.terms.least {", new: "if now < 0 {",
		pkg: virtual, run: "TestALeaseThatWasWonTooSlowlyIsNotGranted$",
	},
	{
		name: "a valid lease is a flag", file: "lease.go",
		old: "func (l *Lease) Valid() bool { return l.Remaining() > 0 }", new: "func (l *Lease) Valid() bool { return l.stop.Load() > 0 }",
		pkg: real, run: "TestAnOverdueLeaseIsNotValidBeforeAnybodyWasTold$",
	},
	{
		name: "deaf to the clock", file: "watchdog.go",
		old: "d.asleep = min(d.leases[0].wake, now+patience)", new: "d.asleep = now + patience",
		pkg: virtual, run: "TestASilentMajorityMeansAtRiskThenLostByTheStopExactly$",
	},
	{
		name: "the loss is told before the context ends", file: "lease.go",
		old: "\tw.cancel(err)\n\tclose(w.done)\n", new: "\tclose(w.done)\n\tw.cancel(err)\n",
		pkg: real, run: "TestTheEndClosesWarningsThenContextThenDoneThenTellsTheLoss$",
	},
	{
		name: "a round begins before its machine knows", file: "watchdog.go",
		old: "d.extend(d.m.clock.Now(), renew)", new: "d.extend(now-1, renew)", // what passes between the two looks at the clock
		pkg: virtual, run: "TestARoundIsOverWhenEveryNodeHasAnsweredOrRefused$",
	},
	{
		name: "Verify believes any owner", file: "lease.go",
		old: "strings.HasPrefix(reply.Value, l.owner+\" \")", new: "strings.HasPrefix(reply.Value, \"\")",
		pkg: real, run: "TestVerifyAsksTheNodes$",
	},
	{
		name: "no maximum hold", file: "internal/quorum/machine.go",
		old: "m.ceiling = began + terms.MaxHold", new: "m.ceiling = Never - terms.MaxHold",
		pkg: decisions, run: "TestMachine$",
	},
	{
		name: "node timeouts look like the caller's deadline", file: "internal/node/classify.go",
		old: "return errors.New(err.Error())", new: "return err",
		pkg: virtual, run: "TestTimeoutsOfNodesAreNotTheCallersDeadline$",
	},

	// Cleaning up.
	{
		name: "a failed attempt keeps its keys", file: "attempt.go",
		old: "\ta.release(spared, a.wait.yield(split, cut))\n", new: "\t_, _ = spared, split\n",
		pkg: virtual, run: "TestAmbiguousIsNeverAVoteAndIsAlwaysReleased$",
	},
	{
		name: "an ambiguous answer is not released", file: "attempt.go",
		old: "\tcase node.Unsent:\n\t\ta.unsent", new: "\tcase node.Unsent, node.Unknown:\n\t\ta.unsent",
		pkg: real, run: "TestAnAttemptThatCameToNothingLeavesNoKeys$/lost",
	},
	{
		name: "an acquire without an end", file: "attempt.go",
		old: "(a.began + a.terms.Timeout).Microseconds()", new: "(a.began + time.Hour).Microseconds()",
		pkg: virtual, run: "TestAnAcquireThatArrivesLateLocksNothing$",
	},
	{
		name: "a heal without an end", file: "watchdog.go",
		old: "notAfter := min(time.Duration(l.stop.Load()), now+l.terms.Timeout)", new: "notAfter := now + time.Hour",
		pkg: virtual, run: "TestAHealIsVoidOnceItsNodeTimeoutIsOver$",
	},
	{
		name: "a heal that outlives a release", file: "watchdog.go",
		old: "notAfter := min(time.Duration(l.stop.Load()), now+l.terms.Timeout)", new: "notAfter := time.Duration(l.stop.Load())",
		pkg: virtual, run: "TestAHealIsVoidOnceItsNodeTimeoutIsOver$",
	},
	{
		name: "remnants of a loss are released at once", file: "watchdog.go",
		old: "l.buried = max(s.now, l.machine.Stop()) + l.terms.Guard", new: "l.buried = s.now",
		pkg: virtual, run: "TestMaxHoldEndsALeaseAtItsAgeExactly$",
	},
	{
		name: "remnants of a loss are not released", file: "watchdog.go",
		old: "d.m.post(i, req, nobody{})", new: "_, _ = i, req",
		pkg: virtual, run: "TestMaxHoldEndsALeaseAtItsAgeExactly$",
	},
	{
		name: "the kernel goes on sending for a connection that was given up", file: "internal/node/node.go",
		old: "_ = tcp.SetLinger(0)", new: "_ = tcp",
		pkg: scripts, run: "TestAConnectionThatIsGivenUpIsReset$",
	},
	{
		name: "a connection is reset only when it is cut", file: "internal/node/node.go",
		old: "return abandon(c.Conn)", new: "return c.Conn.Close()",
		pkg: scripts, run: "TestAConnectionThatIsGivenUpIsReset$",
	},
	{
		name: "an acquire is sent again behind its release", file: "internal/node/node.go",
		old: "if e.resends == 0 && !n.released(i) {", new: "if e.resends == 0 {",
		pkg: scripts, run: "TestRealRedisConforms/what_was_released",
	},
	{
		name: "nothing is sent again where anything is released", file: "internal/node/node.go",
		old: "slices.ContainsFunc(n.batch[i+1:], func", new: "slices.ContainsFunc(n.batch, func",
		pkg: scripts, run: "TestRealRedisConforms/what_was_released",
	},
	{
		name: "a lock that is made behind its release stays", file: "internal/node/node.go",
		old: "\t\t\tn.echo(e.req, sentAt)", new: "",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a heal that is made behind its release stays", file: "internal/node/adrift.go",
		old: "for i := 0; i < len(req.Args); i += 3 {", new: "for i := 0; i < 0; i++ {",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a release is sent again while the lock may still be made", file: "internal/node/adrift.go",
		old: "again.Expires += void.Sub(sent)", new: "again.Expires += void.Sub(sent)\n\tvoid = sent",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "every release is sent twice after a break", file: "internal/node/adrift.go",
		old: "if !ok || !sent.Before(void) {", new: "if n.adrift != nil && !ok {\n\t\tvoid = sent\n\t} else if !ok || !sent.Before(void) {",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "Close does not wait for what may still be made", file: "internal/node/node.go",
		old: "len(n.echoes) == 0 || !n.Health().up()", new: "true",
		pkg: scripts, run: "TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade$",
	},
	{
		name: "Close takes an echo for a release that was not answered", file: "internal/node/node.go",
		old: "inTime = n.settled", new: "inTime = false",
		pkg: scripts, run: "TestCloseIsInTimeWhenOnlyASecondReleaseIsMissing$",
	},
	{
		name: "an echo has an echo", file: "internal/node/adrift.go",
		old: "\tdelete(n.adrift, owner)", new: "\tn.adrift[owner] = void.Add(time.Minute)",
		pkg: scripts, run: "TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade$",
	},
	{
		name: "what could not be sent stays in memory", file: "internal/node/node.go",
		old: "\tclear(n.batch) // the next one may be shorter", new: "\t// the next one may be shorter",
		pkg: scripts, run: "TestNothingIsKeptOfRequestsThatWereAnswered$",
	},
	{
		name: "what was sent stays in memory", file: "internal/node/node.go",
		old: "\tclear(n.batch)\n\tn.requeue(again)", new: "\tn.requeue(again)",
		pkg: scripts, run: "TestNothingIsKeptOfRequestsThatWereAnswered$",
	},
	{
		name: "buffers stay as large as the largest burst", file: "internal/node/greet.go",
		old: "\t\tn.trim()\n", new: "",
		pkg: scripts, run: "TestBuffersDoNotStayAsLargeAsTheLargestBurst$",
	},
	{
		name: "what is void stays adrift", file: "internal/node/greet.go",
		old: "\tn.adrift.forget(time.Now())\n", new: "",
		pkg: scripts, run: "TestWhatIsVoidDoesNotStayAdrift$",
	},
	{
		name: "releases overtake what waits", file: "internal/node/node.go",
		old: "if ok {\n\t\tn.queue, n.settled = append(n.queue, entry{req: req, to: to}), false",
		new: "if ok {\n\t\tn.queue, n.settled = append(n.queue, entry{req: req, to: to}), false\n\t\tif req.Insist {\n\t\t\tcopy(n.queue[1:], n.queue)\n\t\t\tn.queue[0] = entry{req: req, to: to}\n\t\t}",
		pkg: virtual, run: "TestAReleaseNeverOvertakesItsAcquire$",
	},
	{
		name: "Close leaves releases with a busy node", file: "internal/node/node.go",
		old: "(len(n.parked) == 0 || !n.Health().up())", new: "n.conns != nil",
		pkg: virtual, run: "TestCloseWaitsForNodesThatMayStillAnswer$",
	},
	{
		name: "Close leaves releases with a busy node that does not vote", file: "internal/node/node.go",
		old: "return h.Err == nil || h.Withheld", new: "return h.Err == nil",
		pkg: virtual, run: "TestCloseWaitsForABusyNodeThatDoesNotVote$",
	},
	{
		name: "Close cuts everybody off", file: "internal/node/node.go",
		old: "\tif n.Health().up() { // otherwise", new: "\tif n.queue == nil { // otherwise",
		pkg: virtual, run: "TestCloseTakesBackAttemptsInFlight$",
	},
	{
		name: "Close waits for nodes that are down", file: "internal/node/node.go",
		old: "\tif n.Health().up() { // otherwise", new: "\tif n.ctx != nil { // otherwise",
		pkg: virtual, run: "TestCloseEndsADialThatHangs$",
	},
	{
		name: "Close leaves a dial to its timeout", file: "internal/node/option.go",
		old: "conn, err := heed(life, func() (net.Conn, error) { return dial(ctx, addr, d, config) }, func(late net.Conn) { _ = late.Close() })",
		new: "conn, err := dial(ctx, addr, d, config)",
		pkg: virtual, run: "TestCloseEndsADialThatHangs$",
	},
	{
		name: "a dial function takes as long as it likes", file: "internal/node/option.go",
		old: "context.WithTimeout(ctx, maxDial)", new: "context.WithCancel(ctx)",
		pkg: scripts, run: "TestADialFunctionIsBounded$",
	},
	{
		name: "Close with an ended context releases nothing", file: "manager.go",
		old: "context.WithTimeout(context.WithoutCancel(ctx), closeGrace)", new: "context.WithTimeout(ctx, closeGrace)",
		pkg: virtual, run: "TestCloseReleasesWithAContextThatHasEnded$",
	},
	{
		name: "Close sends no more than a queue holds", file: "internal/node/node.go",
		old: "for _, req := range last {", new: "for _, req := range last[:min(len(last), queueMax)] {",
		pkg: scripts, run: "TestCloseSendsMoreThanAQueueHolds$",
	},
	{
		name: "Close waits for the node timeout of a release", file: "lease.go",
		old: "\tl.m.inflight.Done() // Close", new: "\tdefer l.m.inflight.Done() // Close",
		pkg: virtual, run: "TestCloseDoesNotWaitForTheNodeTimeoutOfARelease$",
	},
	{
		name: "Close takes a node that is down for one that was cut off", file: "internal/node/node.go",
		old: "\tinTime := true", new: "\tinTime := false",
		pkg: virtual, run: "TestCloseIsDoneWithAContextThatHasEndedAndANodeThatIsDown$",
	},
	{
		name: "Renew ends a round that is under way", file: "internal/quorum/machine.go",
		old: "if m.open && !m.told && now", new: "if m.open && m.told && !m.told && now",
		pkg: virtual, run: "TestRenewJoinsARoundThatIsUnderWay$",
	},
	{
		name: "a grant that a step has overtaken", file: "attempt.go",
		old: "\tl.doubtSince(a.began)\n\tif l.Err() == nil {", new: "\tl.doubtSince(a.began)\n\tif l != nil {",
		pkg: virtual, run: "TestAGrantThatAStepHasOvertakenIsNone$",
	},
	{
		name: "long pipelines get a connection of their own", file: "internal/node/option.go",
		old: "o.PipelineMultiplex, o.BlockingPipeline = -1, -1", new: "o.PipelineMultiplex = -1",
		pkg: real, run: "TestThereIsOneConnectionWhateverIsCalledALongPipeline$",
	},
	{
		name: "credentials are waited for", file: "internal/node/option.go",
		old: "return heed(life, func() (rueidis.AuthCredentials, error) { return credentials(ctx) }, nil)", new: "return credentials(ctx)",
		pkg: real, run: "TestAUsersFunctionThatHangsHoldsUpNeitherNewNorClose$",
	},
	{
		name: "a dial function that does not look at its context is waited for", file: "internal/node/option.go",
		old: "conn, err := heed(life, func() (net.Conn, error) { return dial(ctx, addr, d, config) }, func(late net.Conn) { _ = late.Close() })",
		new: "defer context.AfterFunc(life, cancel)()\n\t\tconn, err := dial(ctx, addr, d, config)",
		pkg: real, run: "TestAUsersFunctionThatHangsHoldsUpNeitherNewNorClose$",
	},
	{
		name: "the guard trusts a server without run_id", file: "internal/node/greet.go",
		old: "if len(strings.Fields(n.identity.RunID)) != 1 {", new: "if len(strings.Fields(n.identity.RunID)) > 9 {",
		pkg: virtual, run: "TestTheGuardRefusesAServerThatDoesNotSayWhichProcessItIs$",
	},
	{
		name: "a life to which nothing can be added", file: "internal/node/wire.go",
		old: "math.MaxInt64/2/int64", new: "math.MaxInt64/int64",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a holder without an end ends first", file: "inspect.go",
		old: "n.TTL < 0 {", new: "n.TTL < -time.Hour {",
		pkg: real, run: "TestInspectTellsThatAHolderHasNoEnd$",
	},
	{
		name: "connections that have ended are kept", file: "internal/node/node.go",
		old: "\tdelete(c.node.conns, c)", new: "",
		pkg: scripts, run: "TestConnectionsThatHaveEndedAreForgotten$",
	},
	{
		name: "Release ends a lease that Close is about to end", file: "lease.go",
		old: "if !l.m.enter() { // Close releases", new: "if !l.m.enter() && l.step(quorum.Input{Kind: quorum.Release}, nil).ended { // Close releases",
		pkg: virtual, run: "TestAReleaseLeavesTheEndToACloseThatHasBegun$",
	},
	{
		name: "Close waits for the span processors of calls", file: "manager.go",
		old: "\tspan.end(l, err)\n\treturn l, err", new: "\tm.inflight.Add(1)\n\tspan.end(l, err)\n\tm.inflight.Done()\n\treturn l, err",
		pkg: real, run: "TestASpanProcessorThatHangsInACallHoldsUpNoClose$",
	},
	{
		name: "the watchdog waits for the span processors of losses", file: "tracing.go",
		old: "l.m.reporter.add(func() {\n\t\topts :=", new: "func(f func()) { f() }(func() {\n\t\topts :=",
		pkg: real, run: "TestASpanProcessorThatHangsHoldsUpNoLoss$",
	},
	{
		name: "Close asks the server once more", file: "internal/node/node.go",
		old: "\tdefer n.cut() // first", new: "\t// first",
		pkg: virtual, run: "TestCloseWaitsForNodesThatMayStillAnswer$",
	},
	{
		name: "Close leaves a hung connection to rueidis", file: "internal/node/node.go",
		old: "\tfor _, conn := range conns {\n\t\t_ = raw(conn.Conn).Close()", new: "\tfor _, conn := range conns {\n\t\t_ = conn",
		pkg: virtual, run: "TestCloseWaitsForNodesThatMayStillAnswer$",
	},
	{
		name: "late votes are dropped", file: "attempt.go",
		old: "l.vote(i, a.began, reply)", new: "_ = i",
		pkg: virtual, run: "TestLateVotesRaiseTheMargin$",
	},

	// Who may vote.
	{
		name: "one server, two votes", file: "internal/node/greet.go",
		old: "case a.RunID != \"\" && a.RunID == b.RunID:", new: "case a.RunID == \"\" && a.RunID == b.RunID:",
		pkg: real, run: "TestOneServerIsNeverTwoVotes$",
	},
	{
		name: "a replica votes", file: "internal/node/greet.go",
		old: "case id.Role != \"\" && id.Role != \"master\":", new: "case id.Role == \"sentinel\":",
		pkg: real, run: "TestReplicasAndClustersAreRefused$",
	},
	{
		name: "a node timeout that leaves no time to renew", file: "options.go",
		old: "case spent >= t.ttl", new: "case spent >= 10*t.ttl",
		pkg: real, run: "TestBadInputIsRefusedByNameBoundAndFix$",
	},
	{
		name: "a lease longer than the restart guard", file: "options.go",
		old: "case c.guarded && t.ttl+t.lockDelay > c.guard:", new: "case c.guarded && t.ttl > c.guard:",
		pkg: real, run: "TestBadLeasesAreRefusedAndNothingIsWritten$",
	},
	{
		name: "a name meets a companion key", file: "internal/node/keys.go",
		old: "fenceTag = \"\\xfff\"", new: "fenceTag = \"f\"",
		pkg: real, run: "TestANameMayBeAnyTextAndNeverMeetsACompanionKey$",
	},

	// Waiting.
	{
		name: "who is refused is queued anew each time", file: "internal/node/lua/acquire.lua",
		old: "redis.call('ZADD', queue, 'NX', ARGV[9], ticket)",
		new: "redis.call('ZADD', queue, 'NX', now, ticket .. now)",
		pkg: scripts, run: "TestRealRedisConforms/whoever_waits",
	},
	{
		name: "the queue is by arrival", file: "internal/node/lua/acquire.lua",
		old: "redis.call('ZADD', queue, 'NX', ARGV[9], ticket)",
		new: "redis.call('ZADD', queue, 'NX', now, ticket)",
		pkg: scripts, run: "TestRealRedisConforms/whoever_waits",
	},
	{
		name: "a place that counts oneself", file: "internal/node/lua/acquire.lua",
		old: "place = redis.call('ZRANK', queue, ticket) or -1",
		new: "place = redis.call('ZCARD', queue)",
		pkg: scripts, run: "TestRealRedisConforms/whoever_waits",
	},
	{
		name: "a queue without an end", file: "internal/node/lua/acquire.lua",
		old: "  redis.call('PEXPIREAT', queue, (now - now % 1000) / 1000 + 60000) -- who waits looks more often than that\n",
		new: "",
		pkg: scripts, run: "TestRealRedisConforms/the_queue_has_an_end",
	},
	{
		name: "a queue ends with its first ticket", file: "internal/node/lua/acquire.lua",
		old: "(now - now % 1000) / 1000 + 60000)",
		new: "(now - now % 1000) / 1000 + 60000, 'NX')",
		pkg: scripts, run: "TestRealRedisConforms/the_queue_has_an_end",
	},
	{
		name: "a queue of those who yield without an end", file: "internal/node/lua/release.lua",
		old: "    redis.call('PEXPIREAT', queue, time[1] * 1000 + 60000)\n",
		new: "",
		pkg: scripts, run: "TestRealRedisConforms/the_queue_has_an_end",
	},
	{
		name: "who does not listen is queued", file: "internal/node/lua/acquire.lua",
		old: "local waits = queue and ticket ~= '' and ARGV[12] == '1'",
		new: "local waits = queue and ticket ~= ''",
		pkg: scripts, run: "TestRealRedisConforms/who_does_not_listen_is",
	},
	{
		name: "a node claims to be listened to", file: "internal/node/wire.go",
		old: "Arg(n.offsetArg(), n.floor, flag(n.listens.Load()), n.channels).Build()",
		new: "Arg(n.offsetArg(), n.floor, \"1\", n.channels).Build()",
		pkg: scripts, run: "TestRealRedisConforms/who_does_not_listen_is",
	},
	{
		name: "who comes too late is queued", file: "internal/node/lua/acquire.lua",
		old: "if waits and not late then",
		new: "if waits then",
		pkg: scripts, run: "TestRealRedisConforms/who_comes_too_late",
	},
	{
		name: "a free lock is given away by who comes too late", file: "internal/node/lua/acquire.lua",
		old: "if late then\n  return { now }\nend",
		new: "if late and (not queue or redis.call('ZCARD', queue) == 0) then\n  return { now }\nend",
		pkg: scripts, run: "TestRealRedisConforms/who_comes_too_late",
	},
	{
		name: "a lock is handed to the last", file: "internal/node/lua/common.lua",
		old: "redis.call('ZRANGE', queue, 0, 1)",
		new: "redis.call('ZRANGE', queue, 0, 1, 'REV')",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "a release hands nothing on", file: "internal/node/lua/release.lua",
		old: "if ours or free then",
		new: "if ours and not KEYS[3] then",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "a release does not say that it has handed on", file: "internal/node/lua/release.lua",
		old: "given and given ~= ARGV[4] and 2 or 1",
		new: "1",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "the next is not told", file: "internal/node/lua/common.lua",
		old: "if second and second ~= me then",
		new: "if second == '' then",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "the next is told that it is its turn", file: "internal/node/lua/common.lua",
		old: "'n' .. string.sub(second, 1, 32) .. lock",
		new: "'k' .. string.sub(second, 1, 32) .. lock",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "who asks is told as well", file: "internal/node/lua/common.lua",
		old: "if second and second ~= me then",
		new: "if second then",
		pkg: scripts, run: "TestRealRedisConforms/a_free_lock_goes_to_the_first_in_its_queue,_whoever",
	},
	{
		name: "a message without the lock", file: "internal/node/lua/common.lua",
		old: "'k' .. ticket .. lock) > 0",
		new: "'k' .. ticket .. 'x') > 0",
		pkg: scripts, run: "TestRealRedisConforms/a_release_keeps",
	},
	{
		name: "somebody else's release frees what is kept", file: "internal/node/lua/release.lua",
		old: "if ours or free then",
		new: "if ours or free or string.sub(held, 33) == ' w ' then",
		pkg: scripts, run: "TestRealRedisConforms/what_is_kept_is_refused",
	},
	{
		name: "a lock is kept for ever", file: "internal/node/lua/common.lua",
		old: "ticket .. ' w ', 'PX', grace)",
		new: "ticket .. ' w ')",
		pkg: scripts, run: "TestRealRedisConforms/what_is_kept_is_free",
	},
	{
		name: "a lock is kept for one grace for all", file: "internal/node/lua/common.lua",
		old: "ticket .. ' w ', 'PX', grace)",
		new: "ticket .. ' w ', 'PX', 900)",
		pkg: scripts, run: "TestRealRedisConforms/what_is_kept_is_free",
	},
	{
		name: "what is kept is not acquired by whom it is kept for", file: "internal/node/lua/acquire.lua",
		old: "if held and not kept and not ours then",
		new: "if held and not ours then",
		pkg: scripts, run: "TestRealRedisConforms/whom_a_lock_is_kept_for_acquires",
	},
	{
		name: "what is kept is anybody's who waits", file: "internal/node/lua/acquire.lua",
		old: "and string.sub(held, 1, 35) == string.sub(ticket, 1, 32) .. ' w '",
		new: "and string.sub(held, 33) == ' w '",
		pkg: scripts, run: "TestRealRedisConforms/what_is_kept_is_refused",
	},
	{
		name: "what is kept is acquired over another's lock", file: "internal/node/lua/acquire.lua",
		old: "and string.sub(held, 1, 35) == string.sub(ticket, 1, 32) .. ' w '",
		new: "and true",
		pkg: scripts, run: "TestRealRedisConforms/whoever_waits",
	},
	{
		name: "a kept lock is not acquired", file: "internal/node/lua/acquire.lua",
		old: "kept and 'XX' or 'NX'",
		new: "'NX'",
		pkg: scripts, run: "TestRealRedisConforms/whom_a_lock_is_kept_for_acquires",
	},
	{
		name: "what is kept is acquired too late", file: "internal/node/lua/acquire.lua",
		old: "if late then",
		new: "if late and not kept then",
		pkg: scripts, run: "TestRealRedisConforms/whom_a_lock_is_kept_for_gets_nothing",
	},
	{
		name: "what is kept is somebody's for extend", file: "internal/node/lua/extend.lua",
		old: " or string.sub(held, 33) == ' w ' then",
		new: " then",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_that_is_kept",
	},
	{
		name: "extend prolongs what is kept", file: "internal/node/lua/extend.lua",
		old: "elseif held == '' and redis.call('PTTL', KEYS[key]) == -2 or string.sub(held, 33) == ' w ' then",
		new: "elseif string.sub(held, 33) == ' w ' then\n    redis.call('PEXPIREAT', KEYS[key], ms + px)\n    replies[#replies + 1] = 1\n  elseif held == '' and redis.call('PTTL', KEYS[key]) == -2 then",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_that_is_kept",
	},
	{
		name: "heal spares what is kept", file: "internal/node/lua/heal.lua",
		old: "elseif string.sub(held, 33) == ' w ' then",
		new: "elseif string.sub(held, 33) == ' x ' then",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_that_is_kept",
	},
	{
		name: "heal replaces what is kept at any time", file: "internal/node/lua/heal.lua",
		old: "if now > last + ARGV[1] then",
		new: "if now > last + ARGV[1] and string.sub(held, 33) ~= ' w ' then",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_that_is_kept",
	},
	{
		name: "who does not listen any more is kept for", file: "internal/node/lua/common.lua",
		old: "'k' .. ticket .. lock) > 0 then",
		new: "'k' .. ticket .. lock) >= 0 then",
		pkg: scripts, run: "TestRealRedisConforms/who_does_not_listen_any_more",
	},
	{
		name: "garbage is kept for", file: "internal/node/lua/common.lua",
		old: "local ticket, grace = string.sub(first, 1, 32), string.match(first, '^[1-9]%d?%d?$', 33)",
		new: "local ticket, grace = string.sub(first, 1, 32), tonumber(string.sub(first, 33))",
		pkg: scripts, run: "TestRealRedisConforms/who_does_not_listen_any_more",
	},
	{
		name: "an empty ticket is who asks without one", file: "internal/node/lua/common.lua",
		old: "first == me and me ~= '' then",
		new: "first == me then",
		pkg: scripts, run: "TestRealRedisConforms/who_does_not_listen_any_more",
	},
	{
		name: "a script skips as many tickets as there are", file: "internal/node/lua/common.lua",
		old: "for _ = 1, 64 do",
		new: "for _ = 1, 1e9 do",
		pkg: scripts, run: "TestRealRedisConforms/a_script_skips",
	},
	{
		name: "a script skips one ticket less", file: "internal/node/lua/common.lua",
		old: "for _ = 1, 64 do",
		new: "for _ = 1, 63 do",
		pkg: scripts, run: "TestRealRedisConforms/a_script_skips",
	},
	{
		name: "who goes on waiting loses its place", file: "internal/node/lua/release.lua",
		old: "  if place ~= '' and not past then\n    redis.call('ZADD', queue, 'NX', place, ticket)\n  elseif ticket ~= '' then",
		new: "  if ticket ~= '' then",
		pkg: scripts, run: "TestRealRedisConforms/who_goes_on_waiting_keeps",
	},
	{
		name: "who goes on waiting and is the first is taken out", file: "internal/node/lua/release.lua",
		old: "if place ~= '' and (past or given == ticket) then",
		new: "if place ~= '' and past then",
		pkg: scripts, run: "TestRealRedisConforms/who_goes_on_waiting_keeps",
	},
	{
		name: "nobody lets others go first", file: "internal/node/lua/release.lua",
		old: "past = KEYS[3], ARGV[4], ARGV[5], ARGV[6] == '1'",
		new: "past = KEYS[3], ARGV[4], ARGV[5], false",
		pkg: scripts, run: "TestRealRedisConforms/who_goes_on_waiting_and_lets",
	},
	{
		name: "who lets others go first loses its place", file: "internal/node/lua/release.lua",
		old: "if place ~= '' and (past or given == ticket) then",
		new: "if place ~= '' and given == ticket then",
		pkg: scripts, run: "TestRealRedisConforms/who_goes_on_waiting_and_lets",
	},
	{
		name: "who leaves stays in the queue", file: "internal/node/lua/release.lua",
		old: "    redis.call('ZREM', queue, ticket)\n",
		new: "    redis.call('ZCARD', queue)\n",
		pkg: scripts, run: "TestRealRedisConforms/who_leaves_is_not",
	},
	{
		name: "who leaves does not pass on what is free", file: "internal/node/lua/release.lua",
		old: "if ours or free then",
		new: "if ours then",
		pkg: scripts, run: "TestRealRedisConforms/who_leaves_passes",
	},
	{
		name: "who passes on takes a step of the counter back", file: "internal/node/lua/release.lua",
		old: "last == tonumber(string.match(held, '^%d+', 34) or '')",
		new: "last >= (tonumber(string.match(held, '^%d+', 34) or '') or 0)",
		pkg: scripts, run: "TestRealRedisConforms/who_leaves_passes",
	},
	{
		name: "a free lock is anybody's", file: "internal/node/lua/acquire.lua",
		old: "if queue and not kept and redis.call('ZCARD', queue) > 0 and",
		new: "if queue and kept and",
		pkg: scripts, run: "TestRealRedisConforms/a_free_lock_goes_to_the_first_in_its_queue,_whoever",
	},
	{
		name: "a refused asker of a free lock is not queued", file: "internal/node/lua/acquire.lua",
		old: "  if waits then\n    enqueue()\n  end\n  local first",
		new: "  local first",
		pkg: scripts, run: "TestRealRedisConforms/a_free_lock_goes_to_the_first_in_its_queue_when",
	},
	{
		name: "another's empty lock is given away", file: "internal/node/lua/acquire.lua",
		old: " and redis.call('PTTL', lock) == -2 then",
		new: " then",
		pkg: scripts, run: "TestRealRedisConforms/another's_lock_is_given",
	},
	{
		name: "a queue of another type is overlooked", file: "internal/node/lua/acquire.lua",
		old: "redis.call('ZCARD', queue) > 0 and",
		new: "type(redis.pcall('ZCARD', queue)) == 'number' and redis.call('ZCARD', queue) > 0 and",
		pkg: scripts, run: "TestRealRedisConforms/a_queue_of_another_type",
	},
	{
		name: "a counter goes forward before the queue is looked at", file: "internal/node/lua/acquire.lua",
		old: "if queue and not kept and redis.call('ZCARD', queue) > 0",
		new: "redis.call('SET', KEYS[2] or lock, '1')\nif queue and not kept and redis.call('ZCARD', queue) > 0",
		pkg: scripts, run: "TestRealRedisConforms/a_queue_of_another_type",
	},
	{
		name: "without fencing there is a queue under the guard", file: "internal/node/lua/acquire.lua",
		old: "if queue == lock then\n  queue = nil\nend",
		new: "if queue == lock then\n  queue = lock .. 'q'\nend",
		pkg: scripts, run: "TestRealRedisConforms/without_fencing_nobody",
	},
	{
		name: "read counts nobody who waits", file: "internal/node/lua/read.lua",
		old: "waiters = redis.call('ZCARD', KEYS[3])",
		new: "waiters = redis.call('EXISTS', KEYS[3])",
		pkg: scripts, run: "TestRealRedisConforms/read_tells_how_many",
	},
	{
		name: "under the guard the queue is no key", file: "internal/node/wire.go",
		old: "copy(keys[:], req.Keys)",
		new: "copy(keys[:2], req.Keys)",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_is_handed_on_under",
	},
	{
		name: "a marker that is another one does not keep from what is kept", file: "internal/node/lua/acquire.lua",
		old: "if found[2] ~= ARGV[14] then",
		new: "if found[2] ~= ARGV[14] and string.sub(found[1] or '', 33) ~= ' w ' then",
		pkg: scripts, run: "TestRealRedisConforms/a_lock_is_handed_on_under",
	},
	{
		name: "release believes a counter that is beyond all numbers", file: "internal/node/lua/release.lua",
		old: "if last and last > 9007199254740991 then",
		new: "if false then",
		pkg: scripts, run: "TestRealRedisConforms/a_release_leaves_a_counter",
	},
	{
		name: "the ear hears of one connection", file: "internal/node/ear.go",
		old: "\tfor n.ctx.Err() == nil {\n\t\terr := n.subscribe",
		new: "\tfor first := true; first && n.ctx.Err() == nil; first = false {\n\t\terr := n.subscribe",
		pkg: scripts, run: "TestTheEarComesBack$",
	},
	{
		name: "nobody hears that the ear is back", file: "internal/node/ear.go",
		old: "\t\t\tn.cfg.Heard(n.cfg.Index)\n",
		new: "\t\t\tn.once.Do(func() { n.cfg.Heard(n.cfg.Index) })\n",
		pkg: scripts, run: "TestTheEarComesBack$",
	},
	{
		name: "the ear is the worker's connection", file: "internal/node/node.go",
		old: "{ return n.keep(conn, 0) }",
		new: "{ return n.watch(conn) }",
		pkg: scripts, run: "TestTheEarComesBack$",
	},
	{
		name: "a deaf node is listened to", file: "internal/node/ear.go",
		old: "\t\tn.listens.Store(false)\n",
		new: "",
		pkg: scripts, run: "TestAnEarThatMayNotListenIsAWarning$",
	},
	{
		name: "an ear that may not listen is not told", file: "internal/node/ear.go",
		old: "\t\tn.judgeEar(err)\n",
		new: "\t\t_ = err\n",
		pkg: scripts, run: "TestAnEarThatMayNotListenIsAWarning$",
	},
	{
		name: "an ear that may not listen is told at the next check", file: "internal/node/ear.go",
		old: "\t\tn.Check()\n",
		new: "",
		pkg: scripts, run: "TestAnEarThatMayNotListenIsAWarning$/the_command/by_default",
	},
	{
		name: "an ear that was mended stays a warning", file: "internal/node/ear.go",
		old: "\t\t\tn.judgeEar(nil)\n",
		new: "",
		pkg: scripts, run: "TestAnEarThatMayNotListenIsAWarning$",
	},
	{
		name: "an ear that may not listen hides another warning", file: "internal/node/greet.go",
		old: "errors.Join(n.warning, deaf)",
		new: "deaf",
		pkg: scripts, run: "TestAnEarThatMayNotListenIsOneOfTwoWarnings$",
	},
	{
		name: "a message that is too short is a turn", file: "internal/node/ear.go",
		old: "if len(m.Message) > 1+TicketLen {",
		new: "if len(m.Message) > TicketLen {",
		pkg: scripts, run: "TestTheEarHearsTurnsAndNothingElse$",
	},
	{
		name: "the ear's connection is left to rueidis", file: "internal/node/node.go",
		old: "{ return n.keep(conn, 0) }",
		new: "{ return conn }",
		pkg: scripts, run: "TestCloseDoesNotWaitForAnEarWhoseServerHangs$",
	},
	{
		name: "the queue is the counter", file: "internal/node/keys.go",
		old: "queueTag = \"\\xffq\"",
		new: "queueTag = \"\\xfff\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the queue is a name", file: "internal/node/keys.go",
		old: "queueTag = \"\\xffq\"",
		new: "queueTag = \"qq\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the queue is without the prefix", file: "internal/node/keys.go",
		old: "\"}\" + prefix + queueTag + \"{\" + prefix + name + \"}\"",
		new: "\"}\" + queueTag + \"{\" + prefix + name + \"}\" + prefix",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the queue is on another shard", file: "internal/node/keys.go",
		old: "prefix + queueTag + \"{\" + prefix + name + \"}\"",
		new: "prefix + queueTag + \"[\" + prefix + name + \"]\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "what is kept is a stranger's", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == keptMark {",
		new: "if s[OwnerLen:] == keptMark && s == \"\" {",
		pkg: scripts, run: "FuzzParseValue$",
	},
	{
		name: "what begins like what is kept is kept", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == keptMark {",
		new: "if strings.HasPrefix(s[OwnerLen:], keptMark) {",
		pkg: scripts, run: "FuzzParseValue$",
	},
	{
		name: "taken without a place", file: "internal/node/wire.go",
		old: "case len(parts) == 3 && parts[0].IsString():",
		new: "case len(parts) == 3:",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "the place is not read", file: "internal/node/wire.go",
		old: "if r.Place, err = parts[2].AsInt64(); err != nil {",
		new: "if _, err = parts[2].AsInt64(); err != nil {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a state without a queue", file: "internal/node/wire.go",
		old: "if len(parts) != 4 {",
		new: "if len(parts) < 4 {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a counter is forgotten before the clock reaches it", file: "internal/node/lua/common.lua",
		old: "local used = math.max(now, counter)",
		new: "local used = now",
		pkg: scripts, run: "TestRealRedisConforms/a_counter_ahead",
	},
}
