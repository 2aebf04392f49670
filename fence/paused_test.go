//go:build unix

package fence_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fence"
	"github.com/quorumlock/quorumlock/fence/internal/pgtest"
	"github.com/quorumlock/quorumlock/fence/redisfence"
	"github.com/quorumlock/quorumlock/fence/sqlfence"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A holder that runs as a process of its own finds the lock's nodes and the data
// by these environment variables.
const (
	envNodes    = "FENCE_HOLDER_NODES"
	envPostgres = "FENCE_HOLDER_POSTGRES"
	envRedis    = "FENCE_HOLDER_REDIS"
)

const leaseTTL = 500 * time.Millisecond

func TestMain(m *testing.M) {
	if os.Getenv(envNodes) != "" {
		if err := holder(context.Background()); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(pgtest.Main(m))
}

// writer writes value as the state of the resource "job", with a token.
type writer func(ctx context.Context, token int64, value string) error

// openPostgres returns a writer to a database, and the database to close.
func openPostgres(dsn string) (writer, *sql.DB, error) {
	fences, err := sqlfence.New(sqlfence.Postgres)
	if err != nil {
		return nil, nil, err
	}
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, token int64, value string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fences.Check(ctx, tx, "job", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE job SET state = $1`, value); err != nil {
			return err
		}
		return tx.Commit()
	}, db, nil
}

// openRedis returns a writer to a Redis, and the client to close.
func openRedis(addr string) (writer, rueidis.Client, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return nil, nil, err
	}
	fences, err := redisfence.New(client)
	if err != nil {
		return nil, client, err
	}
	return func(ctx context.Context, token int64, value string) error {
		return fences.Set(ctx, "job", token, value)
	}, client, nil
}

// holder is process A. It takes the lock, writes, and reports that. On command it
// writes again without a look at its lease, like a process that was paused between
// its last look and its write.
func holder(ctx context.Context) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs(strings.Split(os.Getenv(envNodes), ",")...), quorumlock.WithTTL(leaseTTL))
	if err != nil {
		return err
	}
	lease, err := m.Acquire(ctx, "job")
	if err != nil {
		return err
	}
	toPostgres, _, err := openPostgres(os.Getenv(envPostgres))
	if err != nil {
		return err
	}
	toRedis, _, err := openRedis(os.Getenv(envRedis))
	if err != nil {
		return err
	}
	for _, write := range []writer{toPostgres, toRedis} {
		if err := write(ctx, lease.Token(), "begun by A"); err != nil {
			return err
		}
	}
	fmt.Println("token", lease.Token())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for _, write := range []writer{toPostgres, toRedis} {
		var stale *fence.StaleError
		if err := write(ctx, lease.Token(), "overwritten by A"); !errors.As(err, &stale) {
			return fmt.Errorf("the late write was not refused: %w", err)
		}
		fmt.Println("refused", stale.Token, stale.Seen)
	}
	return nil
}

// process is a running holder.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

func startHolder(t *testing.T, environment ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	p.cmd.Env = append(os.Environ(), environment...)
	p.cmd.Stderr = os.Stderr
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewReader(stdout)
	require.NoError(t, p.cmd.Start())
	return p
}

func (p *process) scan(t *testing.T, format string, values ...any) {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscanf(line, format, values...)
	require.NoError(t, err, line)
}

// A signal stops the process of holder A until its lease has ended and B has
// written. Then A continues, and writes before it looks at its lease.
func TestTheLateWriteOfAProcessThatWasPausedIsRefused(t *testing.T) {
	ctx := t.Context()
	dsn := pgtest.Start(t)
	nodes := redistest.Addrs(redistest.Start(t, 3))
	data := redistest.Start(t, 1)[0]
	toPostgres, db, err := openPostgres(dsn)
	require.NoError(t, err)
	defer func() { assert.NoError(t, db.Close()) }()
	fences, err := sqlfence.New(sqlfence.Postgres)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, fences.DDL()+`; CREATE TABLE job (state TEXT); INSERT INTO job VALUES ('new')`)
	require.NoError(t, err)
	toRedis, client, err := openRedis(data.Addr())
	require.NoError(t, err)
	defer client.Close()

	a := startHolder(t, envNodes+"="+strings.Join(nodes, ","), envPostgres+"="+dsn, envRedis+"="+data.Addr())
	var tokenOfA int64
	a.scan(t, "token %d", &tokenOfA)
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))

	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...), quorumlock.WithTTL(leaseTTL))
	require.NoError(t, err)
	defer func() { assert.NoError(t, m.Close(context.WithoutCancel(ctx))) }()
	b, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	require.Greater(t, b.Token(), tokenOfA)
	for _, write := range []writer{toPostgres, toRedis} {
		require.NoError(t, write(ctx, b.Token(), "written by B"))
	}

	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	_, err = io.WriteString(a.stdin, "go on\n")
	require.NoError(t, err)
	for range 2 {
		var token, seen int64
		a.scan(t, "refused %d %d", &token, &seen)
		assert.Equal(t, tokenOfA, token)
		assert.Equal(t, b.Token(), seen)
	}
	require.NoError(t, a.cmd.Wait())
	var state string
	require.NoError(t, db.QueryRowContext(ctx, `SELECT state FROM job`).Scan(&state))
	assert.Equal(t, "written by B", state)
	assert.Equal(t, "written by B", data.MustDo("GET", "job"))
}
