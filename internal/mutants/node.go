package main

// The cases of internal/node/conformance, on a real Redis.
const cases = "TestRealRedisConforms/RESP3/"

const (
	script      = "internal/node/apply.lua"
	lanes       = "internal/node/queue.go"
	batching    = "internal/node/batch.go"
	worker      = "internal/node/node.go"
	greeting    = "internal/node/greet.go"
	requests    = "internal/node/request.go"
	replies     = "internal/node/reply.go"
	retrying    = "internal/node/orphans.go"
	subscribing = "internal/node/subscriber.go"
)

// nodeScript are the bugs of the script that every operation runs through.
var nodeScript = []mutant{
	// Registers.
	{
		name: "a register moves down to the proposal", file: script,
		old: "call('ZADD', registers, 'GT', 'CH', t, lock)", new: "call('ZADD', registers, 'CH', t, lock)",
		pkg: scripts, run: cases + "a_register_at_or_above",
	},
	{
		name: "a register that stands at the proposal is taken for moved", file: script,
		old: "    if target <= from then", new: "    if target < from then",
		pkg: scripts, run: cases + "a_register_at_or_above",
	},
	{
		name: "a register moves as far as a client likes", file: script,
		old: "or t + 0 > furthest or call", new: "or call",
		pkg: scripts, run: cases + "a_register_moves_no_further",
	},
	{
		name: "a waiter's register moves as far as it likes", file: script,
		old: "local target = math.min(t, now + cap)", new: "local target = t",
		pkg: scripts, run: cases + "a_register_moves_no_further",
	},
	{
		name: "the only node does not move beyond its register", file: script,
		old: "target = math.max(target, from + 1)", new: "target = math.max(target, from)",
		pkg: scripts, run: cases + "the_only_node_moves",
	},
	{
		name: "a grant looks at no base", file: script,
		old: "waits or t + 0 <= base or", new: "waits or",
		pkg: scripts, run: cases + "every_register_counts_as_the_base",
	},
	{
		name: "a raise looks at no base", file: script,
		old: "return math.max(tonumber(call('ZSCORE', KEYS[1], lock) or 0), base)", new: "return tonumber(call('ZSCORE', KEYS[1], lock) or 0)",
		pkg: scripts, run: cases + "every_register_counts_as_the_base",
	},
	{
		name: "registers in scientific notation", file: script,
		old: "local text = string.format('%.0f', target)", new: "local text = tostring(target)",
		pkg: scripts, run: cases + "a_waiter_is_answered|a_register_moves_no_further",
	},
	{
		name: "the value shows the proposal where the register stopped at the cap", file: script,
		old: "    if target ~= t then\n      local owner", new: "    if target == 0 then\n      local owner",
		pkg: scripts, run: cases + "a_register_moves_no_further",
	},
	{
		name: "a lock that was asked for again moves its register", file: script,
		old: "        return cap and { shown, shown > 0 and shown - 1 or f.register(lock), 0 } or 1",
		new: "        return f.move(lock, value, t)",
		pkg: scripts, run: cases + "asking_again",
	},
	{
		name: "a repeated acquire is taken by itself", file: script,
		old: "if not ours and not reserved then\n        return f.taken", new: "if not reserved then\n        return f.taken",
		pkg: scripts, run: cases + "asking_again",
	},
	{
		name: "raise for any owner", file: script,
		old: "if votes and string.sub(held, 1, 33) == owner and", new: "if votes and",
		pkg: scripts, run: cases + "raise_is_refused",
	},
	{
		name: "raise takes a reservation for a lease", file: script,
		old: "== owner and string.sub(held, 33) ~= ' w ' then", new: "== owner then",
		pkg: scripts, run: cases + "a_reservation_is_no_lease",
	},
	{
		name: "raise sets, even down", file: script,
		old: "      if register < tonumber(t) then", new: "      if register ~= tonumber(t) then",
		pkg: scripts, run: cases + "raise_moves",
	},
	{
		name: "raise confirms a register that stands at the token", file: script,
		old: "      if register < tonumber(t) then", new: "      if register <= tonumber(t) then",
		pkg: scripts, run: cases + "raise_moves",
	},
	{
		name: "raise leaves the old token in the value", file: script,
		old: "        call('SET', lock, owner .. t .. ' ' .. metadata, 'XX', 'KEEPTTL')\n", new: "",
		pkg: scripts, run: cases + "raise_moves",
	},
	{
		name: "raise prolongs the lock for ever", file: script,
		old: "owner .. t .. ' ' .. metadata, 'XX', 'KEEPTTL')", new: "owner .. t .. ' ' .. metadata, 'XX')",
		pkg: scripts, run: cases + "raise_moves",
	},
	{
		name: "registers are forgotten and the base stays", file: script,
		old: "    f.rebase(tonumber(old[#old]))\n", new: "",
		pkg: scripts, run: cases + "forget_drops",
	},
	{
		name: "the base is raised to the lowest of what is forgotten", file: script,
		old: "f.rebase(tonumber(old[#old]))", new: "f.rebase(tonumber(old[2]))",
		pkg: scripts, run: cases + "forget_drops",
	},
	{
		name: "registers are forgotten although the base cannot be raised", file: script,
		old: "    if base == 1 / 0 then\n      return 0 --", new: "    if false then\n      return 0 --",
		pkg: scripts, run: cases + "forget_with_nothing",
	},
	{
		name: "forget drops all at once", file: script,
		old: "'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES'", new: "'BYSCORE', 'LIMIT', '0', '-1', 'WITHSCORES'",
		pkg: scripts, run: cases + "forget_drops",
	},
	{
		name: "the base goes back", file: script,
		old: "    if to > base or base == 1 / 0 then", new: "    if true then",
		pkg: scripts, run: cases + "the_base_never|a_marker_of_another_process",
	},
	{
		name: "a base that is no number counts as none", file: script,
		old: "  base = 1 / 0 -- no number", new: "  base = 0 -- no number",
		pkg: scripts, run: cases + "an_acquisition_that_fails",
	},
	{
		name: "an acquisition that fails leaves its lock", file: script,
		old: "        redis.pcall('DEL', made) --", new: "        redis.pcall('EXISTS', made) --",
		pkg: scripts, run: cases + "an_acquisition_that_fails",
	},
	{
		name: "what fails deletes the lock of an earlier operation", file: script,
		old: "      made = nil\n    elseif op == 'release' then", new: "    elseif op == 'release' then",
		pkg: scripts, run: cases + "a_key_of_another_type_costs",
	},

	// Leases.
	{
		name: "an error ends the other operations of its call", file: script,
		old: "  until ok\n  if details", new: "  until true\n  if details",
		pkg: scripts, run: cases + "a_key_of_another_type_costs",
	},
	{
		name: "an operation that failed runs again", file: script,
		old: "    key = i + 1\n    local reply", new: "    local reply\n    key = i + 1 - (op == 'heal' and 1 or 0)",
		pkg: scripts, run: cases + "a_key_of_another_type_costs",
	},
	{
		name: "acquire at any time", file: script,
		old: "local late, t = now > ARGV[at + 3] + offset, ARGV[at + 4]", new: "local late, t = false, ARGV[at + 4]",
		pkg: scripts, run: cases + "a_request_that_is_too_late",
	},
	{
		name: "a repeated acquire at any time", file: script,
		old: "      elseif late then\n        return 0\n      elseif ours", new: "      elseif ours",
		pkg: scripts, run: cases + "asking_again_too_late",
	},
	{
		name: "acquire over another's lock that is empty", file: script,
		old: "if held ~= '' or call('EXISTS', lock) == 1 then\n      local reserved", new: "if held ~= '' then\n      local reserved",
		pkg: scripts, run: cases + "another_client's_lock_is_taken",
	},
	{
		name: "a lock lives so long from when the script gets to it", file: script,
		old: "simple and call('SET', lock, a, 'NX', 'PXAT', after(b)) then", new: "simple and call('SET', lock, a, 'NX', 'PX', b) then",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack$/acquire",
	},
	{
		name: "heal brings back what expired in a frozen script", file: script,
		old: "      elseif string.sub(held, 1, 33) == string.sub(a, 1, 33) then\n        call('PEXPIREAT', lock, after(b))",
		new: "      elseif string.sub(held, 1, 33) == string.sub(a, 1, 33) then\n        call('SET', lock, held, 'PX', b)",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack$/heal$",
	},
	{
		name: "a healed lock lives so long from when the script gets to it", file: script,
		old: "reply = call('SET', lock, a, 'NX', 'PXAT', after(b)) and 1 or -1", new: "reply = call('SET', lock, a, 'NX', 'PX', b) and 1 or -1",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack$/heal_of",
	},
	{
		name: "extend brings back what expired in a frozen script", file: script,
		old: "        call('PEXPIREAT', lock, after(b))\n        reply = same", new: "        call('SET', lock, held, 'PX', b)\n        reply = same",
		pkg: scripts, run: "TestAServerThatWasFrozenInAScriptBringsNoLockBack$/extend",
	},
	{
		name: "extend prolongs a lock that is older than it can be", file: script,
		old: "elseif now > ARGV[2] + offset + b * 1000 then", new: "elseif false then",
		pkg: scripts, run: cases + "extend_does_not_bring_back|TestAnExtendThatTookLonger",
	},
	{
		name: "extend of any owner", file: script,
		old: "elseif not same and string.sub(held, 1, 33) ~= string.sub(a, 1, 33) then", new: "elseif held == '' then",
		pkg: scripts, run: cases + "extend_never_creates",
	},
	{
		name: "extend confirms a lease whose token the node does not show", file: script,
		old: "reply = same and votes and 1 or 2", new: "reply = votes and 1 or 2",
		pkg: scripts, run: cases + "extend_answers_when_the_token",
	},
	{
		name: "extend compares a token by how it begins", file: requests,
		old: "return value[:OwnerLen+1+n+1]", new: "return value[:OwnerLen+1+n]",
		pkg: scripts, run: "TestProofIsOwnerAndToken$|FuzzValueRoundTrip$",
	},
	{
		name: "extend proves a token on other data", file: script,
		old: "reply = same and votes and 1 or 2", new: "reply = same and 1 or 2",
		pkg: scripts, run: cases + "the_marker_of_other_data",
	},
	{
		name: "extend prolongs a reservation", file: script,
		old: "      if reserved then\n        reply = 0", new: "      if false then\n        reply = 0",
		pkg: scripts, run: cases + "extend_never_creates|a_reservation_is_no_lease",
	},
	{
		name: "heal at any time", file: script,
		old: "      if now > ARGV[at + 3] + offset then\n        reply = 0\n      elseif held == ''", new: "      if held == ''",
		pkg: scripts, run: cases + "heal_does_nothing",
	},
	{
		name: "heal takes another's lock", file: script,
		old: "      elseif string.sub(held, 1, 33) == string.sub(a, 1, 33) then\n        call('PEXPIREAT'", new: "      elseif true then\n        call('PEXPIREAT'",
		pkg: scripts, run: cases + "heal_does_nothing",
	},
	{
		name: "release of any owner", file: script,
		old: "local held = call('GETRANGE', lock, '0', '32')\n      local ours = held == a\n      if ours then\n        call('DEL', lock)\n      end\n      if hint",
		new: "local held = call('GETRANGE', lock, '0', '32')\n      local ours = held ~= ''\n      if ours then\n        call('DEL', lock)\n      end\n      if hint",
		pkg: scripts, run: cases + "release_leaves",
	},
	{
		name: "without fencing registers are moved", file: script,
		old: "    if not cap then\n      return 1\n    end\n    t = tonumber(t)", new: "    cap = cap or 0\n    t = tonumber(t)",
		pkg: scripts, run: cases + "without_fencing",
	},

	// Queues and reservations.
	{
		name: "a release tells no waiter", file: script,
		old: "      if hint then\n        reply = rare().hand", new: "      if false then\n        reply = rare().hand",
		pkg: scripts, run: cases + "a_release_reserves",
	},
	{
		name: "the hint is forgotten before the queue", file: script,
		old: "call('SET', KEYS[3], '1', 'PXAT', stop)", new: "call('SET', KEYS[3], '1', 'PXAT', after('50000'))",
		pkg: scripts, run: cases + "the_queue_and_the_hint",
	},
	{
		name: "a ticket that comes in a call does not count in it", file: script,
		old: "    hint = '1'\n", new: "",
		pkg: scripts, run: cases + "without_the_hint",
	},
	{
		name: "a waiter that nobody can wake queues", file: script,
		old: "if late or not string.find(ARGV[6], 's', 1, true) then", new: "if late then",
		pkg: scripts, run: cases + "a_waiter_that_the_node_cannot_wake",
	},
	{
		name: "a waiter that nobody can wake keeps its place", file: script,
		old: "place ~= '' and string.find(ARGV[6], 's', 1, true)", new: "place ~= ''",
		pkg: scripts, run: cases + "a_waiter_that_the_node_cannot_wake",
	},
	{
		name: "a queue has no end", file: script,
		old: "    call('PEXPIREAT', lock .. '\\255q', stop)\n", new: "",
		pkg: scripts, run: cases + "the_queue_and_the_hint",
	},
	{
		name: "a place is that of the last ask", file: script,
		old: "'NX', place, ticket)", new: "place + now % 1000, ticket)",
		pkg: scripts, run: cases + "a_waiter_is_queued_once",
	},
	{
		name: "a dead head keeps the lock", file: script,
		old: "if grace and f.publish('r', first, lock) > 0 then", new: "if grace and f.publish('r', first, lock) >= 0 then",
		pkg: scripts, run: cases + "waiters_that_do_not_listen",
	},
	{
		name: "a script drops dead tickets without end", file: script,
		old: "for _ = 1, 64 do", new: "for _ = 1, 640 do",
		pkg: scripts, run: cases + "a_script_skips_64",
	},
	{
		name: "a granted waiter stays in the queue", file: script,
		old: "    if ticket then\n      call('ZREM', lock .. '\\255q', ticket)\n    end\n    return f.move", new: "    return f.move",
		pkg: scripts, run: cases + "a_waiter_that_is_granted",
	},
	{
		name: "a reservation is for anybody", file: script,
		old: "if not ours and not reserved then\n        return f.taken", new: "if not ours and not reserved and string.sub(held, 33) ~= ' w ' then\n        return f.taken",
		pkg: scripts, run: cases + "a_reservation_is_refused",
	},
	{
		name: "pass deletes a lease", file: script,
		old: "    local held = call('GETRANGE', lock, '0', '35')\n    if held == string.sub(ticket, 1, 32) .. ' w ' then\n      call('DEL', lock)",
		new: "    local held = call('GETRANGE', lock, '0', '35')\n    if string.sub(held, 1, 32) == string.sub(ticket, 1, 32) then\n      call('DEL', lock)",
		pkg: scripts, run: cases + "pass_never|a_message_that_anybody",
	},
	{
		name: "pass looks at the beginning of a value", file: script,
		old: "    call('ZREM', lock .. '\\255q', ticket)\n    local held = call('GETRANGE', lock, '0', '35')", new: "    call('ZREM', lock .. '\\255q', ticket)\n    local held = call('GETRANGE', lock, '0', '34')",
		pkg: scripts, run: cases + "pass_never",
	},
	{
		name: "recall empties the queue of a lock that is taken", file: script,
		old: "reply = call('EXISTS', lock) == 0 and rare().recall(lock) or 0", new: "reply = rare().recall(lock)",
		pkg: scripts, run: cases + "recall_does_nothing",
	},
	{
		name: "recall wakes nobody", file: script,
		old: "        f.publish('a', ticket, lock)\n", new: "",
		pkg: scripts, run: cases + "recall_empties",
	},
	{
		name: "an asker that waits out a reservation waits for the next", file: script,
		old: "      if mode == 'l' then", new: "      if mode == 'L' then",
		pkg: scripts, run: cases + "an_asker_that_has_waited",
	},
	{
		name: "a free lock goes to whoever asks", file: script,
		old: "        simple = call('EXISTS', lock .. '\\255q') == 0\n", new: "",
		pkg: scripts, run: cases + "a_free_lock_is_reserved",
	},
	{
		name: "a waiter that yields goes first", file: script,
		old: "    if stays and not is('y') then", new: "    if stays then",
		pkg: scripts, run: cases + "a_waiter_that_yields",
	},
	{
		name: "a waiter gets a second turn", file: script,
		old: "      return -1 -- reserved for it meanwhile", new: "      stays = true -- reserved for it meanwhile",
		pkg: scripts, run: cases + "a_waiter_that_goes_on",
	},
	{
		name: "the next waiter of the same process is not served", file: script,
		old: "local asker = not is('e') and ticket or nil", new: "local asker = ticket",
		pkg: scripts, run: cases + "the_next_waiter",
	},
	{
		name: "a lock that is left free is reserved", file: script,
		old: "    if free and is('f') then", new: "    if free and is('F') then",
		pkg: scripts, run: cases + "a_lock_that_is_left_free",
	},

	// The guard.
	{
		name: "no look at the marker", file: script,
		old: "local votes = ARGV[3] == '' or ARGV[3] == marker", new: "local votes = true",
		pkg: scripts, run: cases + "the_marker_of_other_data|the_restart_guard_sees",
	},
	{
		name: "a missing marker passes", file: script,
		old: "local votes = ARGV[3] == '' or ARGV[3] == marker", new: "local votes = ARGV[3] == '' or not marker or ARGV[3] == marker",
		pkg: scripts, run: cases + "the_marker_of_other_data|the_restart_guard_sees",
	},
	{
		name: "raise on other data", file: script,
		old: "if votes and string.sub(held, 1, 33) == owner", new: "if string.sub(held, 1, 33) == owner",
		pkg: scripts, run: cases + "the_marker_of_other_data",
	},
	{
		name: "a restart is not noticed", file: script,
		old: "(agreed ~= longest or old == run and force ~= '1') then", new: "(agreed ~= longest or force ~= '1') then",
		pkg: scripts, run: cases + "a_marker_of_another_process|the_restart_guard_quarantines",
	},
	{
		name: "a forced quarantine is none", file: script,
		old: "old == run and force ~= '1') then", new: "old == run) then",
		pkg: scripts, run: cases + "a_forced_quarantine",
	},
	{
		name: "a quarantine leaves the base", file: script,
		old: "    f.rebase(stop)\n", new: "",
		pkg: scripts, run: cases + "a_marker_of_another_process|registers_count_as",
	},
	{
		name: "the base is the start of the quarantine", file: script,
		old: "    f.rebase(stop)\n", new: "    f.rebase(now)\n",
		pkg: scripts, run: cases + "a_marker_of_another_process|registers_count_as",
	},
	{
		name: "trusted markers are all the same", file: script,
		old: "longest .. ' ' .. nonce", new: "longest .. ' ' .. (stop == 0 and 'trusted' or nonce)",
		pkg: scripts, run: cases + "every_marker_is_new",
	},
	{
		name: "trust in a node that is not empty", file: script,
		old: "trust == '1' and call('DBSIZE') == 0 then", new: "trust == '1' then",
		pkg: scripts, run: cases + "every_marker_is_new|the_restart_guard_trusts",
	},
	{
		name: "a user without a right does not learn which", file: script,
		old: "        text = text .. ' +' .. command\n", new: "",
		pkg: scripts, run: "TestEveryRightThatTheScriptMissesIsNamed$",
	},
}

// nodeWorker are the bugs of a node's worker.
var nodeWorker = []mutant{
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
		old: "i < len(n.lanes.acquire) && size < batchBytes", new: "i < len(n.lanes.acquire) && len(n.batch) < MaxLocks",
		pkg: scripts, run: "TestABatchHasNoMostNumberOfRequests$",
	},
	{
		name: "a batch is as large as it gets", file: lanes,
		old: "i < len(n.lanes.acquire) && size < batchBytes", new: "i < len(n.lanes.acquire)",
		pkg: scripts, run: "TestABatchHasAMostSize$",
	},
	{
		name: "a script has no end", file: batching,
		old: "c.locks > 0 && c.locks+locks > MaxLocks", new: "false",
		pkg: scripts, run: "TestScriptsAreCutAtTheMostOperations$",
	},
	{
		name: "a script is one operation too long", file: batching,
		old: "c.locks > 0 && c.locks+locks > MaxLocks", new: "c.locks > 0 && c.locks+locks > MaxLocks+1",
		pkg: scripts, run: "TestScriptsAreCutAtTheMostOperations$",
	},
	{
		name: "an expired request is sent", file: lanes,
		old: "\tcase req.Expires <= now:\n\t\tout.expired", new: "\tcase false:\n\t\tout.expired",
		pkg: scripts, run: "TestARequestThatHasExpiredIsNotSent$",
	},
	{
		name: "a reservation lapses on all nodes at once", file: requests,
		old: "\tif r.lapsed&node == 0 {", new: "\tif r.lapsed == 0 {",
		pkg: scripts, run: "TestAReservationLapsesOnEachNodeAlone$",
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
		name: "more answers than operations", file: batching,
		old: "if len(all.codes) != operations || ", new: "if ",
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
		old: "\t\t\t\tr.Status = failure\n", new: "\t\t\t\tr.Status = Unknown\n",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a life that no duration can hold", file: replies,
		old: "min(max(ms, -2), math.MaxInt64/2/int64(time.Millisecond))", new: "max(ms, -2)",
		pkg: scripts, run: "FuzzReplies$",
	},

	// Connections, orphans and Close.
	{
		name: "a vote over a connection that was not greeted", file: batching,
		old: "changed: n.dialed.Load() != n.greeted,", new: "changed: false,",
		pkg: scripts, run: "TestAVoteOverAConnectionThatWasNotGreetedDoesNotCount$",
	},
	{
		name: "a lock that is made behind its release stays", file: batching,
		old: "\t\tn.orphans.add(e.req, n.voidAt(e.req, s.steady, s.at))\n", new: "",
		pkg: scripts, run: "TestALockThatIsMadeBehindItsReleaseIsReleasedAgain$",
	},
	{
		name: "a heal that is made behind its release stays", file: requests,
		old: "\t\tfor i := 1; i < len(r.args); i += 4 {\n\t\t\tf(r.args[i][:OwnerLen])\n\t\t}\n\tdefault:", new: "\tdefault:",
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
		old: "\t\t\tdelete(n.orphans, owner) // one retry is enough\n", new: "",
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
		old: "if now == seen && !resting {", new: "if now == seen {",
		pkg: scripts, run: "TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade$",
	},
	{
		name: "Close takes a retried release for one that was not answered", file: worker,
		old: "\t\tinTime = n.settled\n", new: "\t\tinTime = false\n",
		pkg: scripts, run: "TestCloseIsInTimeWhenOnlyASecondReleaseIsMissing$",
	},
	{
		name: "Close waits for ever", file: worker,
		old: "\t\t\tif now == seen && !resting {\n\t\t\t\treturn false\n\t\t\t}\n", new: "\t\t\t_ = resting\n",
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
	{
		name: "a check comes before a heal", file: worker,
		old: "\t\tif checkNow {\n\t\t\tn.checkAt = 0\n\t\t}\n", new: "",
		pkg: scripts, run: "TestACheckComesBehindTheRequestsInTheLanes$",
	},

	// Guard and quarantine.
	{
		name: "votes of a node in quarantine", file: lanes,
		old: "\tcase quarantined:\n\t\tout.quarantined", new: "\tcase false:\n\t\tout.quarantined",
		pkg: scripts, run: cases + "the_restart_guard_quarantines",
	},
	{
		name: "raises on a node in quarantine", file: lanes,
		old: "\tcase req.Kind == Raise && quarantined:", new: "\tcase false:",
		pkg: scripts, run: cases + "a_quarantined_node_votes_for_nothing",
	},
	{
		name: "raises on a node that is withheld", file: lanes,
		old: "\tcase req.Kind == Raise && n.withheld != nil:", new: "\tcase false:",
		pkg: scripts, run: cases + "a_guard_that_cannot_do_its_work",
	},
	{
		name: "votes of a node that is withheld", file: lanes,
		old: "\tcase n.withheld != nil:\n\t\tout.withheld", new: "\tcase false:\n\t\tout.withheld",
		pkg: scripts, run: cases + "a_guard_that_cannot_do_its_work",
	},
	{
		name: "a quarantine binds only the client that started it", file: greeting,
		old: "\tif left := n.quarantineLeft(stop); left > 0 {", new: "\tif left := n.quarantineLeft(stop); left > 0 && n.marker == \"\" {",
		pkg: scripts, run: cases + "a_quarantine_that_one_client_starts",
	},
	{
		name: "trust in an empty node covers a flush", file: greeting,
		old: "n.cfg.Trust && n.marker == \"\"", new: "n.cfg.Trust",
		pkg: scripts, run: cases + "the_restart_guard_trusts_nothing",
	},
	{
		name: "a newcomer's trust covers a flush", file: greeting,
		old: "marker != n.marker && stop == 0 && agreed == longest {", new: "false {",
		pkg: scripts, run: cases + "a_client_sees_a_flush|TestAFlushBetween",
	},
	{
		name: "clients with other longest leases are let in", file: greeting,
		old: "\tif agreed != longest {", new: "\tif false {",
		pkg: scripts, run: cases + "clients_with_different",
	},
	{
		name: "a guard that cannot work refuses the node as a whole", file: greeting,
		old: "\twithheld, err = n.guard(ctx)\n\t}\n", new: "\twithheld, err = n.guard(ctx)\n\t}\n\tif err == nil {\n\t\terr, withheld = withheld, nil\n\t}\n",
		pkg: scripts, run: cases + "a_guard_that_cannot_do_its_work",
	},
	{
		name: "a subscriber that may not subscribe lets waiters queue", file: "internal/node/subscriber.go",
		old: "\t\tn.subscribed.Store(false)\n", new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
}

// nodeEdges are the bugs of connections, keys, the subscriber and what judges a node.
var nodeEdges = []mutant{
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
		name: "the subscriber's connection is the worker's", file: "internal/node/connection.go",
		old: "{ return n.register(conn, 0) }", new: "{ return n.watch(conn) }",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "the subscriber's connection is left to rueidis", file: "internal/node/connection.go",
		old: "{ return n.register(conn, 0) }", new: "{ return conn }",
		pkg: scripts, run: "TestCloseDoesNotWaitForASubscriberWhoseServerHangs$",
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
	{
		name: "a node that is withheld is greeted again like any other", file: greeting,
		old: "\t\t\tn.checkAt = n.now + mendEvery\n", new: "",
		pkg: virtual, run: "TestAGuardThatCannotDoItsWorkCostsVotesAndNoLease$",
	},
	{
		name: "votes of a node whose clock was stepped", file: batching,
		old: "case r.Status == Granted && n.quarantineReason != nil:", new: "case r.Status == Taken && n.quarantineReason != nil:",
		pkg: virtual, run: "TestAVoteThatShowsASteppedClockDoesNotCount$",
	},
	{
		name: "a step binds only the client that has seen it", file: "internal/node/offset.go",
		old: "n.clockSuspect, n.suspectSince = n.cfg.Guard > 0, steady", new: "n.suspectSince = steady",
		pkg: virtual, run: "TestAStepThatOneClientFindsBindsTheOthersUnderTheGuard$",
	},

	// Keys.
	{
		name: "a name meets a companion key", file: "internal/node/keys.go",
		old: "registerTag = \"\\xffr\"", new: "registerTag = \"r\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the queue is the registers", file: "internal/node/keys.go",
		old: "queueTag    = \"\\xffq\"", new: "queueTag    = \"\\xffr\"",
		pkg: scripts, run: "FuzzKeys$|" + cases + "a_waiter_is_queued_once",
	},
	{
		name: "the base is the hint", file: "internal/node/keys.go",
		old: "baseTag     = \"\\xffb\"", new: "baseTag     = \"\\xffh\"",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "the hint is without the prefix", file: "internal/node/keys.go",
		old: "return prefix + hintTag", new: "return hintTag + prefix",
		pkg: scripts, run: "FuzzKeys$",
	},
	{
		name: "a reservation is a stranger's value", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == reservedMark {", new: "if s[OwnerLen:] == reservedMark && s == \"\" {",
		pkg: scripts, run: "FuzzParseValue$",
	},
	{
		name: "a value that begins like a reservation is one", file: "internal/node/keys.go",
		old: "if s[OwnerLen:] == reservedMark {", new: "if strings.HasPrefix(s[OwnerLen:], reservedMark) {",
		pkg: scripts, run: "FuzzParseValue$",
	},

	// The subscriber.
	{
		name: "a node subscribes once", file: subscribing,
		old: "\tfor n.ctx.Err() == nil {\n\t\terr := n.receive", new: "\tfor first := true; first && n.ctx.Err() == nil; first = false {\n\t\terr := n.receive",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "nobody hears that the subscriber is back", file: subscribing,
		old: "\t\t\tn.cfg.OnSubscribed(n.cfg.Index)\n", new: "\t\t\tif n.subscribed.Load() {\n\t\t\t\tn.cfg.OnSubscribed(n.cfg.Index)\n\t\t\t}\n",
		pkg: scripts, run: "TestTheSubscriberComesBack$",
	},
	{
		name: "a node claims to be subscribed", file: batching,
		old: "\tif n.subscribed.Load() {\n", new: "\tif true {\n",
		pkg: scripts, run: cases + "a_node_wakes_nobody_before",
	},
	{
		name: "a refusal of the subscriber is no warning", file: subscribing,
		old: "\t\tn.judgeSubscriber(err)\n", new: "\t\t_ = err\n",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
	{
		name: "a refusal of the subscriber is a warning at the next check", file: subscribing,
		old: "\t\tn.Check()\n", new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$/the_command/by_default",
	},
	{
		name: "a subscriber that was mended stays a warning", file: subscribing,
		old: "\t\t\tn.judgeSubscriber(nil)\n", new: "",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsAWarning$",
	},
	{
		name: "a refusal of the subscriber hides another warning", file: greeting,
		old: "errors.Join(n.warning, doubt)", new: "doubt",
		pkg: scripts, run: "TestASubscriberThatMayNotSubscribeIsOneOfTwoWarnings$",
	},
	{
		name: "a message that is too short wakes a waiter", file: subscribing,
		old: "if len(m.Message) > 1+TicketLen {", new: "if len(m.Message) > TicketLen {",
		pkg: scripts, run: cases + "a_message_with_any_kind",
	},

	// What a server says of itself.
	{
		name: "an acquisition is taken without a position", file: replies,
		old: "\tcase len(parts) != 3:\n\t\treturn errReply\n", new: "\tcase len(parts) < 2:\n\t\treturn errReply\n\tcase len(parts) == 2:\n\t\tr.Status = Taken\n\t\treturn nil\n",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "the position is not read", file: replies,
		old: "\t\tif r.Position, err = integerOf(&parts[2]); err == nil {", new: "\t\tif _, err = integerOf(&parts[2]); err == nil {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a state with more parts than there are", file: replies,
		old: "\tif len(parts) != 4 {", new: "\tif len(parts) < 4 {",
		pkg: scripts, run: "FuzzReplies$",
	},
	{
		name: "a marker that is nobody's", file: greeting,
		old: " || marker == \"\" { // \"\" stands", new: " { // \"\" stands",
		pkg: scripts, run: "FuzzGreeting$",
	},
}
