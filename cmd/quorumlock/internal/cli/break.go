package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

// deleteOwner deletes a lock of an owner, also one that was revoked ('x ') or detached ('d '), and of nobody else.
var deleteOwner = rueidis.NewLuaScript(`
local held = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] + 1)
local form, shown = string.match(held, '^([xd] )(.*)$')
if string.sub(held, 1, #ARGV[1]) == ARGV[1] or form and shown == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)

// breakLock deletes the keys of a lock's holder.
func (p *program) breakLock(ctx context.Context, name string) error {
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	s, err := m.Inspect(ctx, name)
	if err != nil && !errors.Is(err, quorumlock.ErrNoQuorum) {
		return err
	}
	if s.Votes == 0 {
		p.printf("no node that answers has a holder of %s\n", printable(strconv.Quote(name)))
		return err
	}
	deleted, problems := 0, []error(nil)
	for i := range p.connection.options {
		n, err := p.deleteOn(ctx, i, name, s.Holder.Owner)
		if deleted += n; err != nil {
			problems = append(problems, err)
		}
	}
	p.printf("deleted the keys of %s on %d of %d nodes\n", printable(called(s.Holder, s.Readers)), deleted, len(s.Nodes))
	if l, err := m.TryAcquire(ctx, name); err == nil { // wakes those who wait
		_ = l.Release(ctx)
	}
	return errors.Join(problems...)
}

// deleteOn deletes the lock of an owner on a server.
func (p *program) deleteOn(ctx context.Context, i int, name, owner string) (int, error) {
	option := p.connection.options[i]
	option.DisableCache, option.ForceSingleClient = true, true
	client, err := rueidis.NewClient(option)
	if err != nil {
		return 0, &exitError{code: exitNoQuorum, text: p.connection.addr(i) + ": " + strings.TrimSpace(err.Error())}
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	// ExecMulti loads the script, as locks do: Exec would need the right to EVAL.
	n, err := deleteOwner.ExecMulti(ctx, client, rueidis.LuaExec{Keys: []string{p.connection.prefix + name}, Args: []string{owner}})[0].AsInt64()
	if err != nil {
		return 0, &exitError{code: exitNoQuorum, text: p.connection.addr(i) + ": " + err.Error()}
	}
	return int(n), nil
}
