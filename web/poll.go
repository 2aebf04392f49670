package web

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// polls are shared by viewers, so that ten viewers cost the nodes no more than one. A poll runs in the goroutine of the
// viewer that needs it first.
type polls struct {
	now func() time.Time

	mu   sync.Mutex
	byOf map[string]*poll
}

// poll is a question to the nodes, with its last answer.
type poll struct {
	// turn has capacity 1: the viewer whose value is in it asks, and the others wait for their turn, and then find
	// the answer. Nothing is dropped, and it is never closed.
	turn  chan struct{}
	body  []byte    // JSON
	until time.Time // for how long it is good

	users int // guarded by polls.mu
}

// mostIdle bounds the unused polls, whose answers are good for a while.
const mostIdle = 16

// get returns the answer of ask as JSON, or the answer that another viewer got while that is good. It returns ctx's
// error if ctx ends before the answer.
func (s *polls) get(ctx context.Context, of string, ask func(context.Context) (answer any, good time.Duration)) ([]byte, error) {
	p := s.use(of)
	defer s.leave(p)
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.turn }()
	if s.now().Before(p.until) {
		return p.body, nil
	}
	answer, good := ask(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err() // the answer may be incomplete, for others too
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	p.body, p.until = body, s.now().Add(good)
	return body, nil
}

func (s *polls) use(of string) *poll {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byOf[of]
	if p == nil {
		p = &poll{turn: make(chan struct{}, 1)}
		s.byOf[of] = p
	}
	p.users++
	return p
}

// leave forgets answers that no one needs.
func (s *polls) leave(p *poll) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.users--
	idle, now := 0, s.now()
	for key, other := range s.byOf {
		if other.users > 0 {
			continue
		}
		if idle++; idle > mostIdle || !now.Before(other.until) { // only a user writes until
			delete(s.byOf, key)
		}
	}
}
