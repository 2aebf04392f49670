package main

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock"
)

// onePerKey lets one request with a key through at a time, on all hosts together.
//
// It answers in place of the handler: 400 without a usable key, the status of conflicts
// while another request with the key is served, and 503 while too few nodes answer. The
// last two have Retry-After.
type onePerKey struct {
	manager *quorumlock.Manager
	// key returns the name to lock, "" for a request that has none. Put the tenant into
	// it, or one tenant can block the other by using its keys.
	key func(*http.Request) string
	// wait is how long a request waits for the one before it; 0 asks once.
	wait time.Duration
	// conflict is 409 (Conflict) for an Idempotency-Key, as the draft of the IETF says, and
	// 423 (Locked) for a resource.
	conflict int
}

// wrap returns the handler behind the lock. The handler's context is that of the request,
// and also ends when the lease is lost: the handler has to stop then, because another
// request may begin. token returns the fencing token of its context, for each write.
//
// The lock keeps two requests with one key from running at the same time. It does not
// remember the first one: the handler looks up whether the key has been served before.
func (o onePerKey) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, err := o.manager.Acquire(r.Context(), o.key(r), quorumlock.WithWait(o.wait))
		if err != nil {
			o.refuse(w, err)
			return
		}
		ctx, cancel := lease.WithContext(r.Context())
		defer func() { // also if the handler panics, as with http.ErrAbortHandler
			cancel()
			// Not with the request's context: if the client is gone, Release would not wait for
			// the nodes. An error means that the lease was lost, which the handler has seen, or
			// that keys stay until they expire.
			_ = lease.Release(context.WithoutCancel(ctx))
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, tokenKey{}, lease.Token())))
	})
}

// refuse answers a request that did not get the lock.
func (o onePerKey) refuse(w http.ResponseWriter, err error) {
	var held *quorumlock.HeldError
	var few *quorumlock.QuorumError
	switch {
	case errors.Is(err, quorumlock.ErrInvalid): // no key, one that is too long, or no UTF-8
		http.Error(w, "a key of 1 to 512 bytes is missing", http.StatusBadRequest)
	case errors.As(err, &held):
		// When the holder's keys end is no estimate of when it is done: try again soon.
		retryAfter(w, time.Second)
		http.Error(w, "another request with this key is being served", o.conflict)
	case errors.As(err, &few):
		retryAfter(w, max(few.RetryAfter, 2*time.Second))
		http.Error(w, "the lock service does not answer", http.StatusServiceUnavailable)
	default: // the client is gone, or the Manager is closed
		retryAfter(w, 2*time.Second)
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
	}
}

func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
}

type tokenKey struct{} // of the fencing token in a request's context

// token returns the fencing token of a request, 0 outside of wrap.
func token(ctx context.Context) int64 {
	t, _ := ctx.Value(tokenKey{}).(int64)
	return t
}
