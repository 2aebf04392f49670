package goredis

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9/auth"
)

// Latest subscribes to a streaming provider, such as one for tokens of Entra ID or IAM, and
// returns its newest credentials as a CredentialsProviderContext: for the options that go to
// Nodes, Sentinel, ClusterSlot or Cluster, in place of StreamingCredentialsProvider. They are read
// for each new connection. A server that closes connections whose token has expired gets a new one
// with the newest token; the leases stay.
//
// If the provider reports an error, the credentials before it stay: the server decides whether they
// are still good. Call unsubscribe after the Manager is closed. Latest returns the error of the
// subscription, and ErrInvalid if it has no credentials. The function is safe for concurrent use.
func Latest(provider auth.StreamingCredentialsProvider) (
	credentials func(context.Context) (username, password string, err error), unsubscribe auth.UnsubscribeFunc, err error,
) {
	l := &latest{}
	first, unsubscribe, err := provider.Subscribe(l)
	if err != nil {
		return nil, nil, err
	}
	if l.first(first) {
		return l.get, unsubscribe, nil
	}
	if unsubscribe != nil {
		err = unsubscribe()
	}
	return nil, nil, errors.Join(invalid("StreamingCredentialsProvider", "", "has no credentials at its subscription", "let Subscribe return them"), err)
}

// latest is a listener that keeps the newest credentials.
type latest struct {
	mu      sync.Mutex // guards current
	current auth.Credentials
}

// first keeps the credentials that Subscribe has returned, unless newer ones have come in the meantime. It
// reports whether there are any.
func (l *latest) first(c auth.Credentials) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		l.current = c
	}
	return l.current != nil
}

// OnNext implements auth.CredentialsListener.
func (l *latest) OnNext(c auth.Credentials) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = c
}

// OnError implements auth.CredentialsListener.
func (l *latest) OnError(error) {}

func (l *latest) get(context.Context) (username, password string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	username, password = l.current.BasicAuth()
	return username, password, nil
}
