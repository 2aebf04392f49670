package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// digestOfServer has the server name a script: SHA-1 in this process would panic where only FIPS 140 is allowed.
var digestOfServer = rueidis.WithLoadSHA1(true)

// deleteOwner deletes what an owner has of a lock, and nothing of another owner: its lock, even if that was revoked
// ('x ') or detached ('d '), or its share of a lock that readers have ('s '), and the lock with the last of them. Waiters
// that were just woken have no share: they lack the 0 in place of a token. The second key is the set of the readers, or
// of the slots of a permit; such a set must show the slot as free, or waiters would not ask for it.
var deleteOwner = rueidis.NewLuaScript(`
local lock, set, owner, slot = KEYS[1], KEYS[2], ARGV[1] .. ' ', ARGV[2]
local held = redis.call('GETRANGE', lock, 0, 34)
if held == 's `+revokedReaders+` ' then
  local deleted, others = 0, false
  for _, member in ipairs(redis.call('ZRANGE', set, '0', '-1')) do
    if string.sub(member, 1, 35) == owner .. '0 ' then
      deleted = redis.call('ZREM', set, member)
    elseif string.sub(member, 33, 35) == ' 0 ' then
      others = true
    end
  end
  if deleted == 1 and not others then
    redis.call('DEL', lock, set)
  end
  return deleted
end
if string.sub(held, 1, 33) ~= owner and string.match(held, '^[xd] (.*)$') ~= owner then
  return 0
end
redis.call('DEL', lock)
if slot == '' then
  redis.call('DEL', set)
else
  redis.call('ZADD', set, 'XX', slot, slot)
end
return 1`, digestOfServer)

// breakLock deletes the keys of a dead owner of a lock, or of one of this number of permits, 0 for none. A majority of the
// nodes suffices.
func (p *program) breakLock(ctx context.Context, name, owner string, permits int) error {
	if !wire.IsOwner(owner) {
		return usagef("--dead %q: must be the owner that inspect shows, 32 hexadecimal digits", owner)
	}
	if problem := config.CheckName(name); problem != nil {
		return usagef("name %s: %s", problem.Value, problem.Bound)
	}
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	deleted, problems := 0, []error(nil)
	servers, prefix := p.connection.serversOf(m, name)
	for _, s := range servers {
		n, err := deleteOn(ctx, s, wire.LockKey(prefix, name), owner, permits)
		if deleted += n; err != nil {
			problems = append(problems, err)
		}
	}
	nodes := len(servers)
	if nodes-len(problems) > nodes/2 { // the name is free all the same
		for _, err := range problems {
			p.note("%v; keys left there are too few to hold the lock", err)
		}
		problems = nil
	}
	switch {
	case deleted == 0 && len(problems) == 0:
		return &exitError{code: exitConflict, text: "nothing was deleted: " + owner + " does not hold " + strconv.Quote(name) + "; inspect it again"}
	case deleted == 0:
		return errors.Join(problems...)
	}
	if err := p.broken(name, owner, deleted, nodes); err != nil {
		problems = append(problems, err)
	}
	kind := []quorumlock.AcquireOption(nil)
	if permits > 0 {
		kind = append(kind, quorumlock.Permits(permits))
	}
	if l, err := m.TryAcquire(ctx, name, kind...); err == nil { // wakes the waiters
		_ = l.Release(ctx)
	}
	return errors.Join(problems...)
}

// broken prints how many nodes had keys of an owner.
func (p *program) broken(name, owner string, deleted, nodes int) error {
	if p.connection.json {
		return p.printJSON(map[string]any{"name": name, "owner": owner, "deleted": deleted, "nodes": nodes})
	}
	p.line("deleted the keys of %s on %d of %d nodes", owner, deleted, nodes)
	return nil
}

// deleteOn deletes the keys of an owner on a server, and returns 1 if it had any.
func deleteOn(ctx context.Context, s server, lock, owner string, permits int) (deleted int, err error) {
	keys := []rueidis.LuaExec{{Keys: []string{lock, wire.ReadersKey(lock)}, Args: []string{owner, ""}}}
	if permits > 0 {
		keys = nil
		for k := range permits {
			keys = append(keys, rueidis.LuaExec{Keys: []string{wire.SlotKey(lock, k), wire.SlotsKey(lock)}, Args: []string{owner, strconv.Itoa(k)}})
		}
	}
	err = s.do(ctx, func(ctx context.Context, client rueidis.Client) error {
		// ExecMulti loads the script, as locks do: Exec would need the right to EVAL.
		for _, answer := range deleteOwner.ExecMulti(ctx, client, keys...) {
			n, err := answer.AsInt64()
			if err != nil {
				return err
			}
			deleted = max(deleted, int(n))
		}
		return nil
	})
	return deleted, err
}

// do does something on the server.
func (s server) do(ctx context.Context, what func(context.Context, rueidis.Client) error) error {
	if s.addr == "" {
		return &exitError{code: exitNoQuorum, text: s.String() + ": " + oneLine(cmp.Or(s.why, errNotAsked))}
	}
	option := s.option
	option.DisableCache, option.ForceSingleClient = true, true
	client, err := rueidis.NewClient(option)
	if err == nil {
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		err = what(ctx, client)
	}
	if err != nil {
		return &exitError{code: exitNoQuorum, text: s.String() + ": " + strings.TrimSpace(err.Error())}
	}
	return nil
}

// errNotAsked is the error of a group whose Sentinels or seeds have not answered yet.
var errNotAsked = errors.New("no majority of its Sentinels or seeds has answered yet")
