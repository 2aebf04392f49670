package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// module is the prefix of the paths of the repository's packages.
const module = "github.com/quorumlock/quorumlock"

// lab builds test binaries and runs them.
type lab struct {
	root    string // of the repository
	work    string // for overlays and binaries
	mutants []mutant
	slots   chan struct{} // capacity: how many work at a time
}

// newLab plants every mutant in its own copy of its file.
func newLab(root string, mutants []mutant, parallel int) (*lab, error) {
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	l := &lab{root: root, work: work, mutants: mutants, slots: make(chan struct{}, max(1, parallel))}
	var problems []error
	for i := range mutants {
		if err := l.overlay(i); err != nil {
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// findRoot returns the directory of go.work: overlays need the true paths.
func findRoot() (string, error) {
	file, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return "", err
	}
	if path := strings.TrimSpace(string(file)); filepath.IsAbs(path) {
		return filepath.Dir(path), nil
	}
	return "", errors.New("there is no go.work here: run it inside the repository")
}

func (l *lab) close() { _ = os.RemoveAll(l.work) }

// path returns the path of a file of mutant i.
func (l *lab) path(i int, what string) string {
	return filepath.Join(l.work, fmt.Sprintf("%d.%s", i, what))
}

func (l *lab) overlay(i int) error {
	m := &l.mutants[i]
	file := filepath.Join(l.root, m.file)
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	planted, err := m.plant(string(content))
	if err != nil {
		return err
	}
	copied := l.path(i, filepath.Base(m.file))
	if err := os.WriteFile(copied, []byte(planted), 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: copied}})
	if err != nil {
		return err
	}
	return os.WriteFile(l.path(i, "json"), overlay, 0o600)
}

// build compiles the tests of a package. Vet is left out, because it would find some of the bugs and the tests are on
// trial. The binary runs once and is never debugged: without symbols and optimisation, it compiles in half the time.
func (l *lab) build(ctx context.Context, pkg, binary string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-gcflags=" + module + "/...=-N -l", "-o", binary}, flags...)
	command := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	command.Dir = l.root
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

// healthyBinary returns the path of a package's tests without any bug.
func (l *lab) healthyBinary(pkg string) string {
	return filepath.Join(l.work, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// make makes the binary of one mutant. A script is a text in the binary, so a bug in it needs no build: it is planted
// there.
func (l *lab) make(ctx context.Context, i int, binary string) error {
	m := &l.mutants[i]
	if !strings.HasSuffix(m.file, ".lua") {
		return l.build(ctx, m.pkg, binary, "-overlay", l.path(i, "json"))
	}
	script, err := os.ReadFile(filepath.Join(l.root, m.file))
	if err != nil {
		return err
	}
	planted, err := os.ReadFile(l.path(i, filepath.Base(m.file)))
	if err != nil {
		return err
	}
	healthy, err := os.ReadFile(l.healthyBinary(m.pkg))
	if err != nil {
		return err
	}
	if planted, err = fit(planted, len(script)); err != nil {
		return err
	}
	if n := bytes.Count(healthy, script); n != 1 {
		return fmt.Errorf("the script is %d times in the binary, not once", n)
	}
	return os.WriteFile(binary, bytes.Replace(healthy, script, planted, 1), 0o700) //nolint:gosec // G306: it is run
}

// fit gives a script a length. It removes text, but no line, from the comment at its beginning, or adds space at its
// end.
func fit(script []byte, length int) ([]byte, error) {
	for i := 0; len(script) > length; {
		rest := script[i:]
		if !bytes.HasPrefix(rest, []byte("--")) {
			return nil, errors.New("the comment at the top of the script is too short to make room for the bug")
		}
		text := rest[2:bytes.IndexByte(rest, '\n')]
		over := min(len(text), len(script)-length)
		script = slices.Delete(script, i+2, i+2+over)
		i += bytes.IndexByte(script[i:], '\n') + 1
	}
	return append(script, bytes.Repeat([]byte(" "), length-len(script))...), nil
}

// test runs the named tests of a binary, in the directory of their package.
func (l *lab) test(ctx context.Context, pkg, binary, run string) (output string, err error) {
	for {
		command := exec.CommandContext(ctx, binary,
			"-test.run", run, "-test.v", "-test.failfast", "-test.timeout", "60s")
		command.Dir = filepath.Join(l.root, pkg)
		command.Env = append(os.Environ(), "QUORUMLOCK_NIGHTLY=1") // complete, see make test-nightly
		text, err := command.CombinedOutput()
		// If another goroutine has forked a process, that process has the binary open for writing until it executes its
		// own.
		if !errors.Is(err, syscall.ETXTBSY) {
			return string(text), err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// prepare runs the tests on trial without any bug: they must pass.
func (l *lab) prepare(ctx context.Context) error {
	tests := map[string][]string{} // by package
	for _, m := range l.mutants {
		known := false
		for _, run := range tests[m.pkg] {
			known = known || run == m.run
		}
		if !known {
			tests[m.pkg] = append(tests[m.pkg], m.run)
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	for pkg, runs := range tests {
		all.Go(func() {
			l.slots <- struct{}{}
			defer func() { <-l.slots }()
			err := l.healthy(ctx, pkg, runs)
			mu.Lock()
			defer mu.Unlock()
			problems = append(problems, err)
		})
	}
	all.Wait()
	return errors.Join(problems...)
}

func (l *lab) healthy(ctx context.Context, pkg string, runs []string) error {
	binary := l.healthyBinary(pkg)
	if err := l.build(ctx, pkg, binary); err != nil {
		return fmt.Errorf("the tests of %s do not build: %w", pkg, err)
	}
	for _, run := range runs {
		output, err := l.test(ctx, pkg, binary, run)
		if err != nil {
			return fmt.Errorf("-run %q of %s fails without any mutant: %w\n%s", run, pkg, err, output)
		}
		if !strings.Contains(output, "--- PASS: ") || strings.Contains(output, "no tests to run") {
			return fmt.Errorf("-run %q of %s names no test", run, pkg)
		}
	}
	return nil
}

// verdict is the result of one mutant.
type verdict struct {
	row
	output string
}

// judge tries all mutants. The channels are in their order.
func (l *lab) judge(ctx context.Context) []chan verdict {
	results := make([]chan verdict, len(l.mutants))
	for i := range results {
		results[i] = make(chan verdict, 1)
	}
	go func() {
		for i := range results {
			l.slots <- struct{}{}
			go func() {
				defer func() { <-l.slots }()
				results[i] <- l.try(ctx, i)
			}()
		}
	}()
	return results
}

// try builds one mutant and runs its tests.
func (l *lab) try(ctx context.Context, i int) verdict {
	m := &l.mutants[i]
	v := verdict{row: row{name: m.name, where: m.file}}
	binary := l.path(i, "test")
	defer func() { _ = os.Remove(binary) }()
	if err := l.make(ctx, i, binary); err != nil {
		v.verdict, v.output = "DOES NOT COMPILE", err.Error()
		return v
	}
	output, err := l.test(ctx, m.pkg, binary, m.run)
	v.output = output
	switch {
	case err == nil:
		v.verdict = "SURVIVED"
	case failed(output) == "":
		v.verdict = "BROKEN: no test has failed, and still: " + err.Error()
	default:
		v.by, v.verdict = failed(output), caught
	}
	return v
}

var (
	failure = regexp.MustCompile(`(?m)^( *)--- FAIL: (\S+)`)
	hanging = regexp.MustCompile(`(?s)panic: test timed out.*running tests:\s+(\S+)`)
	behind  = regexp.MustCompile(`panic: (?:Fail|Log) in goroutine after (\S+) has completed`)
)

// failed returns the first failed test, or the part of it that failed; "" if none has.
func failed(output string) string {
	found := failure.FindAllStringSubmatch(output, -1)
	if found == nil {
		if hangs := hanging.FindStringSubmatch(output); hangs != nil {
			return hangs[1] + " (hangs)"
		}
		if late := behind.FindStringSubmatch(output); late != nil { // the test that it was waiting for
			return late[1]
		}
		return ""
	}
	deepest := found[0]
	for _, f := range found[1:] {
		if len(f[1]) <= len(deepest[1]) {
			break
		}
		deepest = f
	}
	return deepest[2]
}
