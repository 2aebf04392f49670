package quorumlocktest

import (
	"crypto/sha1" // Redis names scripts by this digest
	_ "embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// script is a Lua script in the form for miniredis. The process has its own store of
// scripts, under the digests of the sources that clients sent.
type script struct {
	digest   string
	text     string
	readOnly bool // declared by its shebang
}

//go:embed prelude.lua
var preludeSource string

// prelude is put before each script, in its first line.
var prelude = func() string {
	var b strings.Builder
	for line := range strings.Lines(preludeSource) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
			b.WriteString(line + " ")
		}
	}
	return b.String()
}()

func newScript(source string) script {
	var digest [sha1.Size]byte
	unenforced(func() { digest = sha1.Sum([]byte(source)) })
	s := script{digest: hex.EncodeToString(digest[:])}
	if strings.HasPrefix(source, "#!") { // miniredis does not support the shebang
		head, _, _ := strings.Cut(source, "\n")
		s.readOnly = strings.Contains(head, "no-writes")
		source = source[len(head):]
	}
	s.text = prelude + source
	return s
}

// eval runs EVAL and its variants. It stores every script that compiles, even if the
// script fails.
func (p *process) eval(s *session, cmd string, args []string) []byte {
	lua, known := p.scripts[strings.ToLower(args[0])]
	switch {
	case !strings.HasPrefix(cmd, "EVALSHA"):
		lua = newScript(args[0])
	case !known:
		return errorReply("NOSCRIPT No matching script. Please use EVAL.")
	}
	p.readOnly = lua.readOnly || strings.HasSuffix(cmd, "_RO")
	defer func() { p.readOnly = false }()
	reply := lua.correct(p.dispatch(s, "EVAL", append([]string{lua.text}, args[1:]...)...))
	if !strings.HasPrefix(string(reply), "-ERR Error compiling script") {
		p.scripts[lua.digest] = lua
	}
	return reply
}

// script answers SCRIPT LOAD, EXISTS and FLUSH from the store.
func (p *process) script(s *session, sub string, args []string) []byte {
	switch {
	case sub == "LOAD" && len(args) == 2:
		lua := newScript(args[1])
		if _, known := p.scripts[lua.digest]; known { // miniredis would parse it again
			return []byte(bulk(lua.digest))
		}
		reply := p.dispatch(s, "SCRIPT", "LOAD", lua.text)
		if reply[0] != '$' {
			return lua.correct(reply)
		}
		p.scripts[lua.digest] = lua
		return []byte(bulk(lua.digest))
	case sub == "EXISTS" && len(args) > 1:
		reply := fmt.Appendf(nil, "*%d\r\n", len(args)-1)
		for _, digest := range args[1:] {
			n := 0
			if _, known := p.scripts[strings.ToLower(digest)]; known {
				n = 1
			}
			reply = fmt.Appendf(reply, ":%d\r\n", n)
		}
		return reply
	}
	reply := p.dispatch(s, "SCRIPT", args...)
	if sub == "FLUSH" && reply[0] == '+' {
		clear(p.scripts)
	}
	return reply
}

var (
	// scriptFailure is how miniredis reports any error in a running script.
	scriptFailure = regexp.MustCompile(`^-ERR Error compiling script \(new function\): (?::(\d+): )?(.*?) stack traceback:\s+(.*)\r\n$`)
	scriptSuffix  = regexp.MustCompile(` script: [0-9a-f]{40}, &c\.?$`)
	errorCode     = regexp.MustCompile(`^[A-Z]+ `)
	mainChunk     = regexp.MustCompile(`:(\d+): in main chunk`)

	// syntaxError is the error of a script that does not compile. Its column counts the
	// prelude.
	syntaxError = regexp.MustCompile(`(?:<string>|user_script) line:(\d+)\(column:\d+\) near '(.*)':\s+syntax error ?`)
)

// correct turns miniredis's report of an error in a script into the report of Redis. The error
// of a command keeps its code, an error of the script itself gets ERR, and both name the
// line.
func (s script) correct(reply []byte) []byte {
	m := scriptFailure.FindStringSubmatch(string(reply))
	if m == nil {
		return syntaxError.ReplaceAll(reply, []byte("user_script:$1: unexpected symbol near '$2'"))
	}
	line, text, trace := m[1], scriptSuffix.ReplaceAllString(m[2], ""), m[3]
	if chunk := mainChunk.FindStringSubmatch(trace); chunk != nil && (line == "" || strings.HasPrefix(text, "Script attempted")) {
		line = chunk[1]
	}
	switch {
	case !strings.HasPrefix(trace, "[G]: in function 'call'"):
		text = "ERR user_script:" + line + ": " + text
	case strings.HasPrefix(text, "ERR wrong number of arguments"):
		text = "ERR Wrong number of args calling Redis command from script"
	case !errorCode.MatchString(text):
		text = "ERR " + text
	}
	return errorReply(fmt.Sprintf("%s script: %s, on @user_script:%s.", text, s.digest, line))
}
