package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock"
)

// onePerKey lets one request with a key through at a time, on all hosts together.
//
// It answers in place of the handler: 400 without a usable key, the status of conflicts
// while another request with the key is served, and 503 while too few nodes answer. The
// last two have Retry-After.
type onePerKey struct {
	manager *quorumlock.Manager
	// prefix and the key form the name to lock.
	prefix string
	// key returns the key of a request, "" for a request that has none. Put the tenant into
	// it, or one tenant can block the other by using its keys.
	key func(*http.Request) string
	// wait is how long a request waits for the one before it; 0 asks once.
	wait time.Duration
	// conflict is 409 (Conflict) for an Idempotency-Key, as the draft of the IETF says, and
	// 423 (Locked) for a resource.
	conflict int
}

// wrap returns the handler behind the lock. The handler's context is the context of the request,
// and also ends when the lease is lost: the handler must stop then, because another
// request may begin. token returns the fencing token of its context, for each write.
//
// The lock keeps two requests with one key from running at the same time, while handlers stop
// with their leases. A store that checks the token refuses a handler that does not. The lock does
// not remember the first request: the handler looks up whether the key has been served before.
func (o onePerKey) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := o.key(r)
		if problem := o.problem(key); problem != "" {
			http.Error(w, "the key "+problem, http.StatusBadRequest)
			return
		}
		served := false
		err := o.manager.Do(r.Context(), o.prefix+key, func(ctx context.Context, lease *quorumlock.Lease) error {
			served = true
			next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, tokenKey{}, lease.Token())))
			return nil
		}, quorumlock.WithWait(o.wait))
		if !served { // otherwise an error is a lost lease, and the handler has answered
			o.refuse(w, err)
		}
	})
}

// problem says why a key cannot be part of a name, "" if it can.
func (o onePerKey) problem(key string) string {
	longest := 512 - len(o.prefix) // a name has at most 512 bytes
	switch {
	case key == "":
		return "is missing"
	case len(key) > longest:
		return fmt.Sprintf("is longer than %d bytes", longest)
	case !utf8.ValidString(key):
		return "is not UTF-8"
	default:
		return ""
	}
}

// refuse answers a request that did not get the lock.
func (o onePerKey) refuse(w http.ResponseWriter, err error) {
	var held *quorumlock.HeldError
	var few *quorumlock.QuorumError
	switch {
	case errors.Is(err, quorumlock.ErrInvalid): // the key is checked: the server's own settings
		http.Error(w, "the server has an invalid setting", http.StatusInternalServerError)
	case errors.As(err, &held):
		// The end of the holder's keys does not say when it is done: try again soon.
		retryAfter(w, time.Second)
		http.Error(w, "another request with this key is being served", o.conflict)
	case errors.As(err, &few):
		retryAfter(w, max(few.RetryAfter, 2*time.Second))
		http.Error(w, "the lock service does not answer", http.StatusServiceUnavailable)
	default: // the client is gone, the Manager is closed, or the lease ended at once
		retryAfter(w, 2*time.Second)
		http.Error(w, "the request was not served", http.StatusServiceUnavailable)
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
