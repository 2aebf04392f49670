//go:build unix

package redistest

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDoOnAStoppedServerTimesOut(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	s.Stop()
	begin := time.Now()
	_, err := s.Do("PING")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.GreaterOrEqual(t, time.Since(begin), 5*time.Second)
	assert.Less(t, time.Since(begin), patience)
}

func TestDoReturnsEveryKindOfReply(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	assert.Equal(t, "OK", s.MustDo("SET", "k", "a\r\nb"))
	assert.Equal(t, "a\r\nb", s.MustDo("GET", "k"))
	assert.Equal(t, int64(1), s.MustDo("DEL", "k"))
	assert.Nil(t, s.MustDo("GET", "k"))
	assert.Equal(t, []any{int64(1), "a", nil, []any{}, &ReplyError{Text: "ERR mine"}},
		s.MustDo("EVAL", "return {1, 'a', false, {}, redis.error_reply('ERR mine')}", "0"))

	_, err := s.Do("NOSUCH")
	var refused *ReplyError
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Text, "ERR unknown command")
	_, err = s.Do()
	assert.Error(t, err)
}

func TestMustDoFailsTheTestOnAnError(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.MustDo("NOSUCH") }), "unknown command")
}
