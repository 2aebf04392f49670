package quorumlocktest_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// record rewrites the golden files with the replies of a real Redis. Commit the
// result only if you understand each change.
var record = flag.String("record", "", "record testdata/resp*.txt from the Redis at this host:port or socket path")

// A golden file has one command a line, each followed by Redis's reply, indented. Words
// are bare, "quoted" as in Go or `raw`. A line with ... waits for one more reply to the
// last command. Replies are +status, -error, :1, "bulk", nil, ,1.5, [array], {map} or
// =verbatim.
func TestNodeAnswersLikeRedis(t *testing.T) {
	for _, protocol := range []string{"2", "3"} {
		t.Run("RESP"+protocol, func(t *testing.T) {
			golden := "testdata/resp" + protocol + ".txt"
			if *record != "" {
				compare(t, protocol, golden)
				return
			}
			synctest.Test(t, func(t *testing.T) { compare(t, protocol, golden) })
		})
	}
}

func compare(t *testing.T, protocol, golden string) {
	t.Helper()
	text, err := os.ReadFile(golden)
	require.NoError(t, err)

	var c net.Conn
	if *record != "" {
		network := "tcp"
		if strings.HasPrefix(*record, "/") {
			network = "unix"
		}
		c, err = net.Dial(network, *record)
	} else {
		cluster := quorumlocktest.Start(t, 1)
		c, err = cluster.Options()[0].DialCtxFn(t.Context(), "", nil, nil)
	}
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	require.NoError(t, send(c, []string{"HELLO", protocol}))
	_, err = show(r)
	require.NoError(t, err)

	var out strings.Builder
	reply := ""
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "" || line[0] == '#':
			fmt.Fprintln(&out, line)
		case line[0] != '\t':
			require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			if line != "..." {
				require.NoError(t, send(c, words(t, line)))
			}
			reply, err = show(r)
			require.NoError(t, err)
			fmt.Fprintf(&out, "%s\n\t%s\n", line, reply)
		case *record == "":
			assert.Equal(t, strings.TrimSpace(line), strings.TrimSpace(reply), "line %d", number)
		}
	}
	if *record != "" {
		require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o644))
	}
}

func send(w io.Writer, args []string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// show reads one reply and returns it in the notation of the golden file.
func show(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	n, _ := strconv.Atoi(rest)
	switch kind {
	case '$', '=', '*':
		if n < 0 {
			return "nil", nil
		}
		if kind == '*' {
			return list(r, n, "[]")
		}
		text := make([]byte, n+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return "", err
		}
		return strings.TrimPrefix(string(kind), "$") + strconv.Quote(string(text[:n])), nil
	case '>', '~':
		return list(r, n, "[]")
	case '%':
		return list(r, 2*n, "{}")
	case '_':
		return "nil", nil
	default:
		return string(kind) + rest, nil
	}
}

func list(r *bufio.Reader, n int, brackets string) (string, error) {
	items := make([]string, n)
	for i := range items {
		var err error
		if items[i], err = show(r); err != nil {
			return "", err
		}
	}
	return brackets[:1] + strings.Join(items, " ") + brackets[1:], nil
}

func words(t *testing.T, line string) (args []string) {
	t.Helper()
	for line = strings.TrimLeft(line, " "); line != ""; line = strings.TrimLeft(line, " ") {
		word, err := strconv.QuotedPrefix(line)
		if err == nil {
			arg, err := strconv.Unquote(word)
			require.NoError(t, err)
			args = append(args, arg)
		} else {
			word, _, _ = strings.Cut(line, " ")
			args = append(args, word)
		}
		line = line[len(word):]
	}
	return args
}
