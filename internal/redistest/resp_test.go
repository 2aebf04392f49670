package redistest

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScannerFindsTheEndOfEveryValueHoweverItIsCut(t *testing.T) {
	t.Parallel()
	values := []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n",
		"$5\r\na\r\n$b\r\n", "$0\r\n\r\n", "$-1\r\n", "!3\r\nERR\r\n", "=7\r\ntxt:abc\r\n",
		"*0\r\n", "*-1\r\n", "*2\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n", "~1\r\n:1\r\n",
		"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", ">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
		"|1\r\n+ttl\r\n:3\r\n*1\r\n+OK\r\n",
	}
	stream := []byte(strings.Join(values, ""))
	for size := 1; size <= len(stream); size++ {
		var s scanner
		var got []string
		var kinds strings.Builder
		value := ""
		for rest := stream; len(rest) > 0; {
			piece := rest[:min(size, len(rest))]
			rest = rest[len(piece):]
			for len(piece) > 0 {
				n, done, err := s.scan(piece)
				require.NoError(t, err)
				value += string(piece[:n])
				piece = piece[n:]
				if done {
					got = append(got, value)
					kinds.WriteByte(s.kind)
					value = ""
				}
			}
		}
		require.Equal(t, values, got, "in pieces of %d bytes", size)
		require.Equal(t, "+-:_#,($$$!=***~%>*", kinds.String(), "in pieces of %d bytes", size)
		require.True(t, s.between())
	}
}

func TestScannerCollectsTheWordsOfCommands(t *testing.T) {
	t.Parallel()
	commands := [][]string{{"SET", "k", "a\r\nb"}, {"PING"}, {"ECHO", ""}}
	var stream []byte
	for _, cmd := range commands {
		stream = append(stream, encodeCommand(cmd)...)
	}
	s := scanner{commands: true}
	var got [][]string
	for _, b := range stream {
		_, done, err := s.scan([]byte{b})
		require.NoError(t, err)
		if done {
			got = append(got, s.args)
		}
	}
	assert.Equal(t, commands, got)
}

func TestScannerRefusesWhatIsNoRESP(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"\x16\x03\x01", "GET / HTTP/1.1\r\n", "+OK\n", "\r\n", "$x\r\n", "$?\r\n"} {
		var s scanner
		_, _, err := s.scan([]byte(stream))
		assert.ErrorIs(t, err, errNotRESP, "%q", stream)
	}
	for _, stream := range []string{"+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*1\r\n", "$1\r\na\r\n"} {
		s := scanner{commands: true}
		var err error
		for b := []byte(stream); len(b) > 0 && err == nil; {
			var n int
			n, _, err = s.scan(b)
			b = b[n:]
		}
		assert.ErrorIs(t, err, errNotRESP, "%q as a command", stream)
	}
}

func TestReadReplyRefusesWhatIsNoRESP2(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"\r\n", "+OK\n", "%1\r\n", "$x\r\n", "*1\r\n?\r\n"} {
		_, err := readReply(bufio.NewReader(strings.NewReader(stream)))
		assert.ErrorIs(t, err, errNotRESP, "%q", stream)
	}
}
