package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/pflag"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/node"
)

// connection has the settings that all commands need to reach the nodes, and to print.
type connection struct {
	nodes                  string
	prefix                 string
	username               string
	password, passwordFile string
	sentinelUser           string
	sentinelPassword       string
	tls                    bool
	ca, cert, key, server  string
	nodeTimeout            time.Duration
	guard, window          time.Duration
	noColor, json, rollout bool

	// By complete, for each node.
	options []rueidis.ClientOption
	groups  []string // the nodes that are failover groups
	cluster bool     // the one node is a whole cluster
}

func (c *connection) register(f *pflag.FlagSet) {
	f.StringVar(&c.nodes, "nodes", "127.0.0.1:6379", "comma-separated `HOST:PORT` of Redis masters,\nor paths of Unix sockets;\n"+
		"a failover group is sentinel:SET@SENTINELS\nor slot:{TAG}@NODES: HOST:PORT+HOST:PORT+…;\na whole cluster is cluster:NODES\n")
	f.StringVar(&c.prefix, "prefix", config.DefaultPrefix, "`TEXT` that all keys begin with\n")
	f.StringVar(&c.username, "username", "", "`USER` of the nodes")
	f.StringVar(&c.password, "password", "", "`PASSWORD` of the user; the process list shows\nit, a variable or a file does not")
	f.StringVar(&c.passwordFile, "password-file", "", "`FILE` whose first line is the password")
	f.StringVar(&c.sentinelUser, "sentinel-username", "", "`USER` of the Sentinels")
	f.StringVar(&c.sentinelPassword, "sentinel-password", "", "password of the Sentinels, as `TEXT`")
	f.BoolVar(&c.tls, "tls", false, "speak TLS; the flags below imply it")
	f.StringVar(&c.ca, "tls-ca", "", "`FILE` of the only authority to trust")
	f.StringVar(&c.cert, "tls-cert", "", "`FILE` of the client's certificate")
	f.StringVar(&c.key, "tls-key", "", "`FILE` of the client's key")
	f.StringVar(&c.server, "tls-server-name", "", "`NAME` in the certificates of the nodes")
	f.Var(durationFlag{&c.nodeTimeout}, "node-timeout", "how long one node may take to answer\n(default: a tenth of the TTL, 20ms to 500ms,\nlonger for far nodes)")
	f.Var(durationFlag{&c.guard}, "restart-guard", "keep nodes that lost their data from voting\nfor this `DURATION`, the same for all clients")
	f.BoolVar(&c.rollout, "guard-rollout", false, "admit clients without --restart-guard\nwhile it is rolled out to all")
	f.Var(durationFlag{&c.window}, "failover-window", "leases of a group continue for this `TIME`\nwhile its Sentinels do not answer, such as 5s")
	f.BoolVar(&c.noColor, "no-color", false, "print no colours, as the variable NO_COLOR does")
	f.BoolVar(&c.json, "json", false, "print JSON: an object, or one a line")
}

// durationFlag is a duration whose error shows how to write one.
type durationFlag struct{ d *time.Duration }

func (f durationFlag) String() string {
	if f.d == nil || *f.d == 0 {
		return ""
	}
	return f.d.String()
}
func (durationFlag) Type() string { return "duration" }
func (f durationFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration of 0 or more: write a number and a unit, such as 500ms, 10s or 2m", s)
	}
	*f.d = d
	return nil
}

// complete takes settings without a flag from the environment, and checks them.
func (c *connection) complete(flags *pflag.FlagSet) error {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(connection).register(own)
	var err error
	own.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value := os.Getenv(name) // an empty variable counts as none
		if err != nil || value == "" || flags.Changed(f.Name) {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = usagef("%s in the environment: %s", name, oneLine(e))
		}
	})
	if err != nil {
		return err
	}
	if c.options, err = c.clients(); err != nil {
		return err
	}
	return nil
}

// variable returns the name of the variable of a flag.
func variable(flag string) string {
	return "QUORUMLOCK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// clients returns the options of a client for each node.
func (c *connection) clients() ([]rueidis.ClientOption, error) {
	if c.password != "" && c.passwordFile != "" {
		return nil, usagef("--password and --password-file: give one of them")
	}
	if _, err := c.readPassword(); err != nil { // now, and again for each connection
		return nil, usagef("%v", err)
	}
	secure, err := c.tlsConfig()
	if err != nil {
		return nil, usagef("%v", err)
	}
	nodes := strings.Split(c.nodes, ",")
	if i := slices.IndexFunc(nodes, isURL); i >= 0 { // before any part is shown: a password may have a comma
		return nil, usagef("--nodes: node %d is a URL or has a user or password in it: write HOST:PORT, such as redis-a:6379, "+
			"and give the user with --username, the password with --password-file or QUORUMLOCK_PASSWORD, and --tls for rediss://", i)
	}
	var options []rueidis.ClientOption
	for i, text := range nodes {
		option, err := c.node(i, strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		option.Username, option.Password, option.DialCtxFn = c.username, c.password, c.dial
		if c.passwordFile != "" {
			option.AuthCredentialsFn = c.credentials
		}
		if secure != nil && !node.IsSocket(option.InitAddress[0]) {
			option.TLSConfig = secure.Clone()
		}
		if option.Sentinel.MasterSet != "" {
			option.Sentinel.Username, option.Sentinel.Password = c.sentinelUser, c.sentinelPassword
			option.Sentinel.TLSConfig = option.TLSConfig
		}
		options = append(options, option)
	}
	if c.window > 0 && c.window >= c.guard {
		return nil, usagef("--failover-window %v: must be below --restart-guard (%v) by at least the longest TTL; give every client the same two values", c.window, c.guard)
	}
	if c.cluster && len(options) > 1 {
		return nil, usagef("--nodes: a whole cluster stands alone: list no other node, because the servers of a cluster are not independent")
	}
	if len(options) > config.MaxNodes {
		return nil, usagef("--nodes lists %d nodes: at most %d are allowed; list 3 or 5", len(options), config.MaxNodes)
	}
	return options, nil
}

// isURL reports whether a part of --nodes is a URL, or has credentials before its address.
func isURL(text string) bool {
	text = strings.TrimSpace(text)
	if node.IsSocket(text) { // its path may have an @
		return false
	}
	if kind, rest, _ := strings.Cut(text, ":"); kind == "sentinel" || kind == "slot" {
		_, text, _ = strings.Cut(rest, "@")
		return strings.Contains(rest, "//") || strings.Contains(text, "@")
	}
	return strings.Contains(text, "://") || strings.Contains(text, "@")
}

// node returns the option of node i of --nodes.
func (c *connection) node(i int, text string) (rueidis.ClientOption, error) {
	kind, rest, _ := strings.Cut(text, ":")
	name, list, group := strings.Cut(rest, "@")
	whole := kind == "cluster" && strings.ContainsAny(rest, ":+") // otherwise it is the name of a host
	switch {
	case whole:
		c.cluster, list = true, rest
	case !group || kind != "sentinel" && kind != "slot":
		return quorumlock.Addrs(text)[0], checkAddress(i, text)
	}
	addrs := strings.Split(list, "+")
	for _, addr := range addrs {
		if err := checkAddress(i, addr); err != nil {
			return rueidis.ClientOption{}, err
		}
	}
	c.groups = append(c.groups, text)
	if whole {
		return rueidis.ClientOption{InitAddress: addrs}, nil
	}
	if kind == "sentinel" {
		return quorumlock.Sentinel(name, addrs...), nil
	}
	return quorumlock.ClusterSlot(name, addrs...), nil
}

// onlyServers refuses failover groups, for doctor, which checks each server by its address.
func (c *connection) onlyServers() error {
	if len(c.groups) == 0 {
		return nil
	}
	group, fix := c.groups[0], "give it the address of the master"
	switch {
	case c.cluster:
		fix = "give it the address of one of its masters, and a --prefix that begins with the tag of a bucket there, " +
			"see https://github.com/quorumlock/quorumlock/blob/main/docs/cluster.md#grow-and-move-slots"
	case strings.HasPrefix(group, "slot:"):
		fix += " of the slot, and a --prefix that begins with its {TAG}"
	}
	return usagef("--nodes: %s is a failover group, and doctor speaks to one server of each node: %s", group, fix)
}

// checkAddress refuses a text that is not an address, and does not show it: it may have a password in it.
func checkAddress(i int, addr string) error {
	if node.IsSocket(addr) {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	encoded := strings.Contains(host, "%") && !strings.Contains(host, ":") // an IPv6 address may have a zone
	if err == nil && host != "" && !encoded {
		if n, err := strconv.Atoi(port); err == nil && n > 0 && n < 1<<16 {
			return nil
		}
	}
	hint := ""
	if strings.Count(addr, ":") > 1 {
		hint = "; an IPv6 address needs brackets: [::1]:6379"
	}
	return usagef("--nodes: node %d is not HOST:PORT with a port of 1 to 65535: write, for example, "+
		"redis-a:6379,redis-b:6379,redis-c:6379 or /run/redis.sock%s", i, hint)
}

// readPassword returns the present password.
func (c *connection) readPassword() (string, error) {
	if c.passwordFile == "" {
		return c.password, nil
	}
	text, err := os.ReadFile(c.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--password-file: %w: name a file that this user may read", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	if line == "" { // otherwise this would be another user, the default one
		return "", fmt.Errorf("--password-file: the first line of %s is empty: write the password there", c.passwordFile)
	}
	return line, nil
}

// credentials returns the credentials for a new connection: they may change while a command runs.
func (c *connection) credentials(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	password, err := c.readPassword()
	return rueidis.AuthCredentials{Username: c.username, Password: password}, err
}

// dial makes a new connection, with the present certificates of the files.
func (c *connection) dial(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	if config != nil {
		var err error
		if config, err = c.tlsConfig(); err != nil {
			return nil, err
		}
	}
	return node.Dial(ctx, addr, d, config)
}

func (c *connection) tlsConfig() (*tls.Config, error) {
	if !c.tls && c.ca == "" && c.cert == "" && c.key == "" && c.server == "" {
		return nil, nil // without a configuration there is no TLS, as in rueidis
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.server}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w: name a file that this user may read", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca: %s holds no certificate: give a file in PEM form", c.ca)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, errors.New("--tls-cert and --tls-key: give both or none")
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert %s and --tls-key %s: %w: give a certificate and its key in PEM form", c.cert, c.key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// manager returns a Manager over the nodes. It logs nothing unless the options have a logger.
func (c *connection) manager(ctx context.Context, opts ...quorumlock.Option) (*quorumlock.Manager, error) {
	// A command itself prints what the library would log, in a line for a person.
	opts = append([]quorumlock.Option{quorumlock.WithPrefix(c.prefix), quorumlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	if c.nodeTimeout > 0 {
		opts = append(opts, quorumlock.WithNodeTimeout(c.nodeTimeout))
	}
	if c.guard > 0 {
		opts = append(opts, quorumlock.WithRestartGuard(c.guard))
	}
	if c.rollout {
		opts = append(opts, quorumlock.WithGuardRollout())
	}
	if ttl := c.guard - c.window; c.guard > 0 && ttl < config.DefaultTTL {
		opts = append([]quorumlock.Option{quorumlock.WithTTL(ttl)}, opts...) // for a command without a TTL, such as inspect
	}
	if c.window > 0 {
		opts = append(opts, quorumlock.WithFailover(c.window))
	}
	if c.cluster {
		return quorumlock.NewCluster(ctx, c.options[0], opts...)
	}
	return quorumlock.New(ctx, slices.Clone(c.options), opts...)
}

// closeTimeout bounds how long a Manager may take to release what it holds.
const closeTimeout = 3 * time.Second

// closeManager ends a Manager independently of the command's context.
func closeManager(m *quorumlock.Manager) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = m.Close(ctx)
}

// addr returns the address of a node as it was given.
func (c *connection) addr(i int) string { return c.options[i].InitAddress[0] }

// quorum returns how many nodes make a majority.
func (c *connection) quorum() int { return len(c.options)/2 + 1 }
