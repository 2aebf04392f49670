package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/child"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// runOptions are the flags of run.
type runOptions struct {
	ttl, wait, minHold, grace time.Duration
	waitGiven, graceGiven     bool
	holder                    string
	conflict                  int
	keepPassword, yields      bool
	shared                    bool
	permits                   int // 0 for none
}

// Bounds and defaults of run. A command takes time to end, so its lease must be longer than the library's shortest.
const (
	minRunTTL       = time.Second
	maxDefaultGrace = 10 * time.Second
	minMargin       = 50 * time.Millisecond
	maxMargin       = 500 * time.Millisecond
)

func (p *program) runCommand() *cobra.Command {
	o := runOptions{ttl: config.DefaultTTL, conflict: exitConflict}
	c := &cobra.Command{
		Use: "run NAME... [flags] -- COMMAND [ARG...]",

		SuggestFor: []string{"lock", "exec"},
		Short:      "Run a command while holding a lock",
		Long: `Run takes the lock NAME, runs COMMAND without a shell in a process group of
its own, and releases the lock when every process of that group has ended.
Several names are taken all or none, and never in a way that two commands wait
for each other.

With --shared, COMMAND runs under a shared lease, a read lock: any number of
readers have NAME together, and no writer has it at the same time. A run without
--shared waits for the readers that came before it, and the readers that come
after it wait for its end.

With --permits N, COMMAND runs under one of N permits of NAME: at most N such
commands run at once. QUORUMLOCK_SLOT has the number of the permit, 0 to N-1,
which no other command has at the same time. Give every run of NAME the same N.

COMMAND gets stdin, stdout and stderr as they are, and QUORUMLOCK_NAME,
QUORUMLOCK_TOKEN (the fencing token: pass it along with every write) and
QUORUMLOCK_OWNER in its environment (QUORUMLOCK_NAME_1, _2 and so on for several
names), and not the variables with the passwords of the servers. The signals
INT, TERM, HUP, QUIT, USR1 and USR2 go to the whole group. run does not repeat
a TERM that went to all processes below it. It repeats one that went only to
run and COMMAND, so signal run alone.

When the lock cannot be renewed, the group gets TERM while --grace is left of
the lease, and KILL shortly before its end: the group is dead before another
client can get the lock. Daemons and processes of another user (sudo) are out of
reach, and on other systems than Linux all that leave the group (setsid).

Run exits with the code of COMMAND, 128 and the number of the signal that ended
it, 75 when another client holds the lock (-E sets another code), 76 when the
lock was lost, and 69 when too few nodes answer.`,
		Example: `  quorumlock run nightly-report --wait 0 -- /usr/local/bin/report --all
  quorumlock run deploy --ttl 30s -- sh -c 'make && make deploy'
  quorumlock run --shared prices -- ./report
  quorumlock run --permits 4 encode -- ./encode`,
		Annotations: needsNodes,
		Args:        checkRunArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.waitGiven, o.graceGiven = cmd.Flags().Changed("wait"), cmd.Flags().Changed("grace")
			dash := cmd.ArgsLenAtDash()
			if err := o.checkKind(dash, cmd.Flags().Changed("permits")); err != nil {
				return err
			}
			if err := o.complete(args[dash]); err != nil {
				return err
			}
			return p.run(cmd.Context(), args[:dash], args[dash:], o)
		},
	}
	o.register(c.Flags())
	return c
}

func (o *runOptions) register(f *pflag.FlagSet) {
	f.Var(durationFlag{&o.ttl}, "ttl", "how long the lock outlives a holder that died,\n1s to 24h")
	f.Var(durationFlag{&o.wait}, "wait", "how long to wait for the lock, and for servers\nthat start later; 0 asks once\n(default: forever)")
	f.BoolVar(&o.shared, "shared", false, "take a shared lease, together with other\nreaders, which keeps writers out")
	f.IntVar(&o.permits, "permits", 0, "take one of `N` permits, 1 to 1024:\nN commands run at once")
	f.Var(durationFlag{&o.minHold}, "min-hold", "keep the name taken for at least this long")
	f.StringVar(&o.holder, "holder", "", "`LABEL` that others see\n(default: host, process id, command)")
	f.Var(durationFlag{&o.grace}, "grace", "what is left of the lease at TERM, at most\nhalf the TTL; 0 is KILL alone\n(default: a fifth of the TTL, at most 10s)")
	f.BoolVar(&o.keepPassword, "keep-password", false, "leave QUORUMLOCK_PASSWORD and\nQUORUMLOCK_SENTINEL_PASSWORD in the command's\nenvironment; quorumlock itself gets them")
	f.BoolVar(&o.yields, "release-when-asked", false, "stop the command when another client\nasks for the lock (ask-release)")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", o.conflict, "exit `CODE` when another holds the lock\n")
}

// checkKind checks the flags for the kind of lease under which the command runs.
func (o *runOptions) checkKind(names int, permits bool) error {
	switch {
	case o.shared && permits:
		return usagef("--shared and --permits together: a permit is not a read lock; leave one of them out")
	case o.shared && names > 1:
		return usagef("--shared with %d names: it takes one; leave --shared out, or let each command run the next, "+
			"in one order everywhere: quorumlock run --shared A -- quorumlock run --shared B -- COMMAND; a script between the two needs --keep-password", names)
	case permits && names > 1:
		return usagef("--permits with %d names: it takes one; let each command run the next, in one order everywhere; a script between the two needs --keep-password", names)
	case permits:
		return checkPermits(o.permits)
	}
	return nil
}

const noDash = "no -- on the command line: write quorumlock run NAME -- COMMAND [ARG...]"

func checkRunArgs(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0:
		return usagef(noDash)
	case dash < 1 || dash > quorum.MaxSeveral:
		return usagef("%d names before the --: give 1 to %d, as in quorumlock run NAME -- COMMAND [ARG...]", dash, quorum.MaxSeveral)
	case len(args) == dash:
		return usagef("no command after the --: write quorumlock run NAME -- COMMAND [ARG...]")
	}
	return nil
}

// complete fills in the defaults and checks the relations.
func (o *runOptions) complete(command string) error {
	if !o.graceGiven {
		o.grace = min(o.ttl/5, maxDefaultGrace)
	}
	if o.holder == "" {
		host, _ := os.Hostname()
		label := fmt.Sprintf("%s pid %d: %s", host, os.Getpid(), filepath.Base(command))
		o.holder = strings.ToValidUTF8(label[:min(len(label), config.MaxLabelLen)], "?") // the name of a file may be anything
	}
	switch {
	case o.ttl < minRunTTL || o.ttl > config.MaxTTL:
		return usagef("--ttl %v: must be %v to %v, because the command must end within the lease; 10s is the default",
			o.ttl, minRunTTL, config.MaxTTL)
	case o.grace > o.ttl/2:
		return usagef("--grace %v: must be at most half of --ttl %v, or the command would be stopped between two renewals; give %v or less, or a longer --ttl",
			o.grace, o.ttl, o.ttl/2)
	case o.minHold > config.MaxTTL:
		return usagef("--min-hold %v: must be at most %v", o.minHold, config.MaxTTL)
	case o.conflict < 0 || o.conflict > 255:
		return usagef("--conflict-exit-code %d: must be 0 to 255", o.conflict)
	}
	return nil
}

// margin is how long before the end of a lease the group gets KILL.
func margin(ttl time.Duration) time.Duration { return min(max(ttl/20, minMargin), maxMargin) }

// run takes the lock, runs the command, and releases.
func (p *program) run(ctx context.Context, names, argv []string, o runOptions) error {
	for _, name := range names {
		if name == "" || len(name) > config.MaxNameLen { // before a wait for servers
			return usagef("name of %d bytes: must have 1 to %d; use a short readable text", len(name), config.MaxNameLen)
		}
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, slices.Concat(ending(), passedOn(), jobControl())...)
	defer signal.Stop(signals)
	surviveClosedPipes()

	all, m, err := p.acquire(ctx, names, o, signals)
	if m != nil {
		defer closeManager(m)
	}
	if err != nil {
		return err
	}
	code, err := p.underLease(all, path, argv, o, signals)
	p.giveBack(all, o)
	if err != nil {
		return err
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// lookUp finds the command before the lock is taken, with the exit codes of env(1).
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", cannotRun(command, err)
	}
	return path, nil
}

// cannotRun explains why a command does not run, with the exit codes of env(1).
func cannotRun(command string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &exitError{code: exitNotFound, text: strconv.Quote(command) + " is not found: give a path, or a command that is in PATH"}
	}
	return &exitError{code: exitCannotRun, text: fmt.Sprintf("%q cannot be executed: %s", command, oneLine(err))}
}

// underLease runs the command and returns the exit code when all of its processes
// have ended.
func (p *program) underLease(all taken, path string, argv []string, o runOptions, signals <-chan os.Signal) (int, error) {
	name := namesOf(all)
	if !all.Valid() {
		return 0, &exitError{code: exitLost, text: name + " was lost before the command began"}
	}
	note, flush := p.aside()
	defer flush()
	process, err := child.Start(child.Command{
		Path: path, Args: argv, Env: environment(all, o.keepPassword || isSelf(path)), Files: [3]*os.File{p.stdin, p.stdout, p.stderr},
	}, func(text string) { note("%s", text) })
	if err != nil {
		return 0, cannotRun(argv[0], err)
	}
	s := &supervisor{
		name: name, what: whatOf(all), nodes: len(p.connection.options), lease: heldBy(all), group: process,
		grace: o.grace, margin: margin(o.ttl), yields: o.yields, signals: signals, note: note,
	}
	lost := s.run()
	process.Close()
	exit := process.Exit()
	switch {
	case lost:
		return 0, &exitError{code: exitLost, text: fmt.Sprintf("%s was lost, or about to be: the command was stopped (%s)", name, describe(exit))}
	case exit.Signal != 0:
		return exitSignalBase + int(exit.Signal), nil
	}
	return exit.Code, nil
}

func describe(e child.Exit) string {
	if e.Signal != 0 {
		return "signal " + strconv.Itoa(int(e.Signal)) + ", " + e.Signal.String()
	}
	return "exit code " + strconv.Itoa(e.Code)
}

// isSelf reports whether a command is this program, which then nests locks and needs the servers.
func isSelf(path string) bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	mine, err := os.Stat(self)
	if err != nil {
		return false
	}
	its, err := os.Stat(path)
	return err == nil && os.SameFile(mine, its)
}

// environment returns our environment with additions for the command, and without the passwords of the servers, which a
// command under a lock does not need. An addition replaces what an outer run has set: most programs would read that.
func environment(all taken, keepPassword bool) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !keepPassword && (name == variable("password") || name == variable("sentinel-password"))
	})
	set := func(name, value string) {
		env = slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
		env = append(env, name+"="+value)
	}
	for i, l := range all.All() {
		number := ""
		if len(all.All()) > 1 {
			number = "_" + strconv.Itoa(i+1)
		}
		set("QUORUMLOCK_NAME"+number, l.Name())
		set("QUORUMLOCK_TOKEN"+number, strconv.FormatInt(l.Token(), 10))
		set("QUORUMLOCK_OWNER"+number, l.Owner())
		if l.Slot() >= 0 {
			set("QUORUMLOCK_SLOT", strconv.Itoa(l.Slot()))
		}
	}
	return env
}

// namesOf describes for people what run has taken.
func namesOf(all taken) string {
	var names []string
	for _, l := range all.All() {
		names = append(names, l.Name())
	}
	return whatOf(all) + quoted(names)
}

// quoted writes names for people.
func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return strings.Join(all, " with ")
}

// whatOf returns a prefix for a name of which run has only a shared lease or a permit.
func whatOf(all taken) string {
	one, ok := all.(single)
	switch {
	case !ok:
		return ""
	case one.Shared():
		return "the shared lease of "
	}
	return fmt.Sprintf("permit %d of ", one.Slot())
}

// giveBack releases the leases, which may have ended already. With --min-hold the nodes keep the name taken until then,
// without this process.
func (p *program) giveBack(all taken, o runOptions) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := all.Release(ctx)
	if errors.Is(err, quorumlock.ErrNoQuorum) {
		end := "the lock is free"
		if o.shared || o.permits > 0 {
			end = "it ends"
		}
		p.note("the release of %s is not confirmed, %s after %v at the latest: %s", namesOf(all), end, max(o.ttl, o.minHold), oneLine(err))
	}
	var lost *quorumlock.LostError
	if errors.As(err, &lost) {
		p.note("%s", oneLine(lost))
	}
}
