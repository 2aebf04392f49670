package cli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

// digestOfServer has the server name a script: SHA-1 in this process would panic where only FIPS 140 is allowed.
var digestOfServer = rueidis.WithLoadSHA1(true)

// deleteOwner deletes a lock of an owner, even if it was revoked ('x ') or detached ('d '), and no other lock.
var deleteOwner = rueidis.NewLuaScript(`
local held = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] + 1)
local form, shown = string.match(held, '^([xd] )(.*)$')
if string.sub(held, 1, #ARGV[1]) == ARGV[1] or form and shown == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`, digestOfServer)

// deleteReaders deletes readers of a lock, and the lock when no other reader is left: waiters that were just woken
// (' w ') have no lease. A lock whose readers were revoked has no others.
var deleteReaders = rueidis.NewLuaScript(`
local held = redis.call('GETRANGE', KEYS[1], 0, 34)
if held == 's `+revokedReaders+` ' then
  local deleted = 0
  for _, reader in ipairs(ARGV) do
    deleted = deleted + redis.call('ZREM', KEYS[2], reader)
  end
  for _, other in ipairs(redis.call('ZRANGE', KEYS[2], '0', '-1')) do
    if string.sub(other, -3) ~= ' w ' then
      return math.min(deleted, 1)
    end
  end
elseif held ~= 'x `+revokedReaders+` ' then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1`, digestOfServer)

// readersTag follows a lock's key in the key of the set of its readers.
const readersTag = "\xffs"

// victims are the holder of a lock, or its readers.
type victims struct {
	name    string
	owner   string
	shared  bool
	readers []string // all that any server has
}

// breakLock deletes the keys of a lock's holder, or of its readers.
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
		p.line("no answering node shows a holder of %s", strconv.Quote(name))
		return err
	}
	if s.Holder.Owner == "" && s.Readers == 0 {
		return &exitError{code: exitConflict, text: strconv.Quote(name) + " has a key without an owner, so another program made it: stop that program, and delete the key there"}
	}
	of := victims{name: name, owner: s.Holder.Owner, shared: s.Readers > 0 || s.Holder.Owner == revokedReaders}
	p.see(ctx, &of)
	deleted, problems := 0, []error(nil)
	for i := range p.connection.options {
		n, err := p.deleteOn(ctx, i, &of)
		if deleted += n; err != nil {
			problems = append(problems, err)
		}
	}
	if deleted == 0 && len(problems) == 0 {
		return &exitError{code: exitConflict, text: "nothing was deleted: the holder has changed, or its key is another program's; inspect it again"}
	}
	p.line("deleted the keys of %s on %d of %d nodes", called(s.Holder, s.Readers), deleted, len(s.Nodes))
	if l, err := m.TryAcquire(ctx, name); err == nil { // wakes the waiters
		_ = l.Release(ctx)
	}
	return errors.Join(problems...)
}

// see lists the readers to delete. It leaves out readers that come later, and readers on a server that does not answer:
// deleteOn returns its error.
func (p *program) see(ctx context.Context, of *victims) {
	if !of.shared {
		return
	}
	for i := range p.connection.options {
		_ = p.onServer(ctx, i, func(ctx context.Context, client rueidis.Client) error {
			readers, err := client.Do(ctx, client.B().Zrange().Key(p.connection.prefix+of.name+readersTag).Min("0").Max("-1").Build()).AsStrSlice()
			of.readers = append(of.readers, slices.DeleteFunc(readers, func(m string) bool { return strings.HasSuffix(m, " w ") })...)
			return err
		})
	}
}

// deleteOn deletes a lock on a server, and returns 1 if the victims held it.
func (p *program) deleteOn(ctx context.Context, i int, of *victims) (deleted int, err error) {
	key := p.connection.prefix + of.name
	script, exec := deleteOwner, rueidis.LuaExec{Keys: []string{key}, Args: []string{of.owner}}
	if of.shared {
		script, exec = deleteReaders, rueidis.LuaExec{Keys: []string{key, key + readersTag}, Args: of.readers}
	}
	err = p.onServer(ctx, i, func(ctx context.Context, client rueidis.Client) error {
		// ExecMulti loads the script, as locks do: Exec would need the right to EVAL.
		n, err := script.ExecMulti(ctx, client, exec)[0].AsInt64()
		deleted = int(n)
		return err
	})
	return deleted, err
}

// onServer does something on a server.
func (p *program) onServer(ctx context.Context, i int, do func(context.Context, rueidis.Client) error) error {
	option := p.connection.options[i]
	option.DisableCache, option.ForceSingleClient = true, true
	client, err := rueidis.NewClient(option)
	if err == nil {
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		err = do(ctx, client)
	}
	if err != nil {
		return &exitError{code: exitNoQuorum, text: p.connection.addr(i) + ": " + strings.TrimSpace(err.Error())}
	}
	return nil
}
