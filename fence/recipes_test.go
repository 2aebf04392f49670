//go:build unix

package fence_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	_ "github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fence"
	"github.com/quorumlock/quorumlock/fence/internal/pgtest"
	"github.com/quorumlock/quorumlock/fence/sqlfence"
)

// The recipes of docs/fencing.md that have no package are tested here, each in its simplest form.

// store writes a value with a token, by one of the recipes, and returns a StaleError for a token
// below the highest that it has seen.
type store interface {
	write(ctx context.Context, token int64) error
	read(t *testing.T) (token int64)
}

// checkStore writes with all tokens at the same time, each several times, and then with a stale one.
func checkStore(t *testing.T, s store) {
	t.Helper()
	const first, count = int64(1_795_344_466_720_373), 8
	var tokens []int64
	for i := range int64(count) {
		tokens = append(tokens, first+i, first+i)
	}
	rand.Shuffle(len(tokens), func(i, k int) { tokens[i], tokens[k] = tokens[k], tokens[i] })
	var writers sync.WaitGroup
	for _, token := range tokens {
		writers.Go(func() {
			if err := s.write(t.Context(), token); err != nil {
				assert.ErrorIs(t, err, fence.ErrStale)
			}
		})
	}
	writers.Wait()
	last := first + count - 1
	assert.Equal(t, last, s.read(t), "the write with the largest token stays")
	require.ErrorIs(t, s.write(t.Context(), last-1), fence.ErrStale)
	require.NoError(t, s.write(t.Context(), last), "several writes of one holder")
	assert.Equal(t, last, s.read(t))
}

// column keeps the token in a column of the row that the lock guards.
type column struct{ db *sql.DB }

func (c column) write(ctx context.Context, token int64) error {
	result, err := c.db.ExecContext(ctx, `UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2`, token, token, 1)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	return &fence.StaleError{Resource: "account", Token: token}
}

func (c column) read(t *testing.T) (token int64) {
	t.Helper()
	require.NoError(t, c.db.QueryRowContext(t.Context(), `SELECT balance FROM account WHERE id = 1`).Scan(&token))
	return token
}

func TestTheTokenInAColumnOfTheRowRefusesStaleWrites(t *testing.T) {
	for driver, start := range map[string]func(*testing.T) string{"postgres": startPostgres, "sqlite3": sqliteFile} {
		t.Run(driver, func(t *testing.T) {
			db, err := sql.Open(driver, start(t))
			require.NoError(t, err)
			defer func() { assert.NoError(t, db.Close()) }()
			_, err = db.ExecContext(t.Context(), `CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL)`)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), `INSERT INTO account VALUES (1, 0, 0)`)
			require.NoError(t, err)
			checkStore(t, column{db})
		})
	}
}

// startPostgres returns the data source name of an empty database; without PostgreSQL it skips the test.
func startPostgres(t *testing.T) string { t.Helper(); return pgtest.Start(t) }

func sqliteFile(t *testing.T) string {
	t.Helper()
	return "file:" + filepath.Join(t.TempDir(), "data.db") + "?_busy_timeout=20000&_journal_mode=WAL&_synchronous=OFF&_txlock=immediate"
}

// api is a client of an HTTP API that checks the header Fencing-Token in the transaction of the write.
type api struct{ url string }

func (a api) write(ctx context.Context, token int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, a.url, bytes.NewBufferString(strconv.FormatInt(token, 10)))
	if err != nil {
		return err
	}
	request.Header.Set("Fencing-Token", strconv.FormatInt(token, 10))
	_, status, body, err := send(request)
	switch {
	case err != nil:
		return err
	case status == http.StatusPreconditionFailed:
		return &fence.StaleError{Resource: a.url, Token: token}
	case status != http.StatusNoContent:
		return fmt.Errorf("status %d: %s", status, body)
	}
	return nil
}

func (a api) read(t *testing.T) int64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url, nil)
	require.NoError(t, err)
	_, _, body, err := send(request)
	require.NoError(t, err)
	token, err := strconv.ParseInt(body, 10, 64)
	require.NoError(t, err)
	return token
}

// send returns the header, the status and the body of the answer.
func send(request *http.Request) (http.Header, int, string, error) {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.Header, response.StatusCode, string(body), err
}

// put stores the body of a request if its token is not stale.
func put(db *sql.DB, fences *sqlfence.Fence, r *http.Request) error {
	token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(r.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fences.Check(r.Context(), tx, r.URL.Path, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(r.Context(), `UPDATE invoice SET text = ?`, string(body)); err != nil {
		return err
	}
	return tx.Commit()
}

func TestAnAPIThatChecksTheTokenInItsTransactionRefusesStaleWrites(t *testing.T) {
	db, err := sql.Open("sqlite3", sqliteFile(t))
	require.NoError(t, err)
	defer func() { assert.NoError(t, db.Close()) }()
	fences, err := sqlfence.New(sqlfence.SQLite)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), fences.DDL()+`; CREATE TABLE invoice (text TEXT); INSERT INTO invoice VALUES ('')`)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			var text string
			assert.NoError(t, db.QueryRowContext(r.Context(), `SELECT text FROM invoice`).Scan(&text))
			_, _ = io.WriteString(w, text)
			return
		}
		var stale *sqlfence.StaleError
		switch err := put(db, fences, r); {
		case errors.As(err, &stale):
			http.Error(w, strconv.FormatInt(stale.Seen, 10), http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	checkStore(t, api{server.URL + "/invoices/2026-11"})
}

// object is a client of an object store with ETags. It keeps the token in the metadata.
type object struct {
	url     string
	between func() // runs after each read and before the write
}

func (o object) get(ctx context.Context) (etag string, token int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return "", 0, err
	}
	header, status, _, err := send(request)
	if err != nil || status == http.StatusNotFound {
		return "", 0, err
	}
	token, err = strconv.ParseInt(header.Get("X-Meta-Token"), 10, 64)
	return header.Get("ETag"), token, err
}

func (o object) write(ctx context.Context, token int64) error {
	for {
		etag, seen, err := o.get(ctx)
		if err != nil {
			return err
		}
		if seen > token {
			return &fence.StaleError{Resource: o.url, Token: token, Seen: seen}
		}
		o.between()
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, o.url, bytes.NewBufferString("state"))
		if err != nil {
			return err
		}
		if etag == "" {
			request.Header.Set("If-None-Match", "*")
		} else {
			request.Header.Set("If-Match", etag)
		}
		request.Header.Set("X-Meta-Token", strconv.FormatInt(token, 10))
		if _, status, _, err := send(request); err != nil || status == http.StatusOK {
			return err
		}
	}
}

func (o object) read(t *testing.T) int64 {
	t.Helper()
	_, token, err := o.get(t.Context())
	require.NoError(t, err)
	return token
}

func TestAConditionalWriteToAnObjectWithItsTokenRefusesStaleWrites(t *testing.T) {
	var mu sync.Mutex
	var version int
	var token string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		etag := fmt.Sprintf(`"%d"`, version)
		switch none, match := r.Header.Get("If-None-Match"), r.Header.Get("If-Match"); {
		case r.Method == http.MethodGet && version == 0:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodGet:
			w.Header().Set("ETag", etag)
			w.Header().Set("X-Meta-Token", token)
		case none == "*" && version > 0, match != "" && match != etag:
			w.WriteHeader(http.StatusPreconditionFailed)
		default:
			version, token = version+1, r.Header.Get("X-Meta-Token")
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	o := object{server.URL, func() {}}
	checkStore(t, o)

	before := o.read(t)
	paused := object{server.URL, func() { require.NoError(t, o.write(t.Context(), before+2)) }}
	require.ErrorIs(t, paused.write(t.Context(), before+1), fence.ErrStale)
	assert.Equal(t, before+2, o.read(t), "the later holder wrote between the read and the write of the former one")
}

// files keeps the token in the names of files: readers take the largest.
type files struct{ dir string }

func (f files) write(_ context.Context, token int64) error {
	return replace(filepath.Join(f.dir, fmt.Sprintf("state.%016d", token)), token)
}

// replace renames a complete file into place. After an error the old file stays: a torn one must not take its name.
func replace(name string, token int64) error {
	temporary, err := os.CreateTemp(filepath.Dir(name), "new")
	if err != nil {
		return err
	}
	_, err = temporary.WriteString(strconv.FormatInt(token, 10))
	if err == nil {
		err = temporary.Sync()
	}
	if err := errors.Join(err, temporary.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return os.Rename(temporary.Name(), name)
}

func (f files) read(t *testing.T) int64 {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(f.dir, "state.*"))
	require.NoError(t, err)
	return number(t, slices.Max(names))
}

// number returns the number that a file contains.
func number(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	n, err := strconv.ParseInt(string(text), 10, 64)
	require.NoError(t, err)
	return n
}

func TestReadersOfFilesWithTokensInTheirNamesSkipStaleOnes(t *testing.T) {
	f := files{t.TempDir()}
	for _, token := range []int64{33, 1_795_344_466_720_373, 34} {
		require.NoError(t, f.write(t.Context(), token))
	}
	assert.EqualValues(t, 1_795_344_466_720_373, f.read(t))
}

// flocked is a file of one host, with its token in another file, behind a lock of the kernel.
type flocked struct{ dir string }

func (f flocked) write(_ context.Context, token int64) error {
	lock, err := os.OpenFile(filepath.Join(f.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // this unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if text, err := os.ReadFile(filepath.Join(f.dir, "token")); err == nil {
		seen, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return err
		}
		if seen > token {
			return &fence.StaleError{Resource: f.dir, Token: token, Seen: seen}
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range []string{"token", "state"} { // the token first: a crash in between must not lower it
		if err := replace(filepath.Join(f.dir, name), token); err != nil {
			return err
		}
	}
	return nil
}

func (f flocked) read(t *testing.T) int64 {
	t.Helper()
	return number(t, filepath.Join(f.dir, "state"))
}

func TestAFileBehindALockOfTheKernelRefusesStaleWrites(t *testing.T) {
	checkStore(t, flocked{t.TempDir()})
}

func TestAFileWithoutATokenIsAnErrorAndNotStale(t *testing.T) {
	f := flocked{t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "token"), []byte("?"), 0o600))
	err := f.write(t.Context(), 33)
	require.ErrorIs(t, err, strconv.ErrSyntax)
	require.NotErrorIs(t, err, fence.ErrStale)
}
