package goredis

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

// defaultDialTimeout is the default of go-redis. It bounds a provider of credentials, and not the dial.
const defaultDialTimeout = 5 * time.Second

// common has the fields that the three kinds of options share.
type common struct {
	what            string // the type, for errors
	network         string // tcp or unix, for the dialer
	clientName      string
	dialer          func(ctx context.Context, network, addr string) (net.Conn, error)
	dialTimeout     time.Duration
	tls             *tls.Config
	protocol        int
	username        string
	password        string
	provider        func() (username, password string)
	providerContext func(context.Context) (username, password string, err error)
	streaming       auth.StreamingCredentialsProvider
	onConnect       bool
}

// apply sets the fields of a node.
func (c *common) apply(n *rueidis.ClientOption) error {
	switch {
	case c.onConnect:
		return refused(c.what+".OnConnect", "it gets a connection of go-redis, and could change the database or the user of one that grants locks")
	case c.streaming != nil:
		return invalid(c.what+".StreamingCredentialsProvider", "", "cannot be used here: nothing would end its subscription",
			"set CredentialsProviderContext to the result of goredis.Latest(provider)")
	case c.protocol > 3:
		return invalid(c.what+".Protocol", strconv.Itoa(c.protocol), "must be 2 or 3", "leave it 0, which is 3")
	}
	n.ClientName, n.TLSConfig, n.AlwaysRESP2 = c.clientName, c.tls, c.protocol == 2
	n.Username, n.Password = login(c.username, c.password)
	n.AuthCredentialsFn = c.credentials()
	if c.dialTimeout > 0 {
		n.Dialer.Timeout = c.dialTimeout
	}
	if dial, network := c.dialer, c.network; dial != nil {
		n.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, network, addr)
		}
	}
	return nil
}

// login returns what go-redis sends: a user without a password does not log in.
func login(username, password string) (string, string) {
	if password == "" {
		return "", ""
	}
	return username, password
}

// credentials returns nil if they are fixed.
func (c *common) credentials() func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	ask, simply, timeout := c.providerContext, c.provider, c.dialTimeout
	if timeout <= 0 {
		timeout = defaultDialTimeout
	}
	switch {
	case ask != nil:
		return func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			username, password, err := ask(ctx)
			username, password = login(username, password)
			return rueidis.AuthCredentials{Username: username, Password: password}, err
		}
	case simply != nil:
		return func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			username, password := login(simply())
			return rueidis.AuthCredentials{Username: username, Password: password}, nil
		}
	}
	return nil
}

// noReplicas refuses the fields that send commands to replicas.
func noReplicas(what string, fields map[string]bool) error {
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if fields[field] {
			return refused(what+"."+field, "it sends commands to replicas, and a replica cannot grant locks")
		}
	}
	return nil
}

func refused(field, why string) error {
	return invalid(field, "", "cannot be used here: "+why, "give a copy of the options without it")
}

func invalid(what, value, bound, fix string) error {
	return &quorumlock.InvalidError{What: what, Value: value, Bound: bound, Fix: fix}
}

func none(err error) (rueidis.ClientOption, error) { return rueidis.ClientOption{}, err }
