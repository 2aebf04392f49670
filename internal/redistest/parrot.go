package redistest

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
)

// Parrot is a server that answers each command with the same reply.
type Parrot struct {
	mu      sync.Mutex
	replies map[string][]byte // by command
}

// Set sets the answer of a command.
func (p *Parrot) Set(command string, reply []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies[command] = reply
}

// Forget sets the answer of every command to OK, except for the handshake.
func (p *Parrot) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.replies, func(command string, _ []byte) bool { return command != "HELLO" })
}

// NewParrot returns a parrot with these replies.
func NewParrot(replies map[string][]byte) *Parrot { return &Parrot{replies: replies} }

// name returns the key under which a command's reply is set: scripts by their first
// operation, INFO by its section, SENTINEL by its subcommand.
func (*Parrot) name(words []string) string {
	switch command := strings.ToUpper(words[0]); command {
	case "EVALSHA":
		keys, _ := strconv.Atoi(words[2])
		if op := words[3+keys]; op == "acquire" || op == "release" { // of the lean script
			return command + " " + op
		}
		return command + " " + words[3+keys+6]
	case "INFO", "SENTINEL":
		return command + " " + words[1]
	default:
		return command
	}
}

// Serve answers the commands of one connection until it ends. Like a server, it continues to read while an answer waits
// to be read, because a client writes a whole batch before it reads.
func (p *Parrot) Serve(conn net.Conn) {
	answers := make(chan []byte, 16) // more than one batch; closed after the last read
	var written sync.WaitGroup
	written.Go(func() {
		for answer := range answers {
			_, _ = conn.Write(answer)
		}
	})
	defer written.Wait()
	defer close(answers)
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		answer, known := p.replies[p.name(words)]
		p.mu.Unlock()
		if !known {
			answer = []byte("+OK\r\n")
		}
		answers <- answer
	}
}

// readCommand reads one command in the format of clients.
func readCommand(in *bufio.Reader) (words []string, err error) {
	number := func(mark byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != mark {
			return 0, errors.Join(err, io.ErrUnexpectedEOF)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	for range n {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, err
}
