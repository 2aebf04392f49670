// Package errs makes errors with several causes and errors with durations.
package errs

import (
	"context"
	"errors"
	"strings"
	"time"
)

// ErrReleased is the end of a lease by its release.
var ErrReleased = errors.New("quorumlock: lease released")

// several is an error with several causes. It prints on one line: log pipelines split at line
// feeds, which errors.Join puts between its errors.
type several struct {
	text string
	errs []error
}

// Join returns an error that is all of errs.
func Join(errs ...error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return &several{text: strings.Join(texts, "; "), errs: errs}
}

// Error returns the text.
func (e *several) Error() string { return e.text }

// Unwrap returns the causes.
func (e *several) Unwrap() []error { return e.errs }

// Several returns an error with this text that is all of errs.
func Several(text string, errs ...error) error { return &several{text: text, errs: errs} }

// Ended returns an error that is err, if there is one, and the end of ctx. It is ctx.Err() and its cause, or the cause
// alone if that wraps ctx.Err(). what names what ended with ctx.
func Ended(ctx context.Context, err error, what string) error {
	errs := []error{ctx.Err()}
	text := what + ": " + ctx.Err().Error()
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		errs = append(errs, cause)
		text += " (" + cause.Error() + ")"
	} else if cause != ctx.Err() { //nolint:errorlint // a cause that wraps it says more
		errs[0], text = cause, what+": "+cause.Error()
	}
	if err != nil {
		errs, text = append([]error{err}, errs...), err.Error()+"; "+text
	}
	return &several{text: text, errs: errs}
}

// Waited is Ended for a call that waited. err names the call already, if there is one.
func Waited(ctx context.Context, err error, call string) error {
	if err != nil {
		call = "stopped waiting"
	}
	return Ended(ctx, err, call)
}

// Readable cuts a duration to three digits or so.
func Readable(d time.Duration) string {
	unit := time.Millisecond
	switch {
	case d < 10*time.Millisecond:
		unit = 10 * time.Microsecond
	case d >= time.Minute:
		unit = time.Second
	case d >= 10*time.Second:
		unit = 100 * time.Millisecond
	case d >= time.Second:
		unit = 10 * time.Millisecond
	}
	return d.Truncate(unit).String()
}
