package balance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// proc is a process with one member. It does on the model what the edges of package spread do.
type proc struct {
	w       *world
	group   string
	id      string
	ttl     time.Duration
	core    *Member
	dead    bool
	ending  bool // SIGTERM
	deaf    bool // it never gives a name away
	barred  bool // it never acquires a name
	stopped time.Duration
	cut     bool

	names    []string
	presence *hold
	holds    map[string]*hold // until their functions have returned
	running  map[string]int   // functions
	waits    map[string]*waiter
	slow     func(name string) time.Duration // how long a function takes to return
}

func (w *world) join(group string, ttl time.Duration, names []string) *proc {
	p := &proc{
		w: w, group: group, id: fmt.Sprintf("%s%d#%08x", group, len(w.procs), w.chance.Uint32()), ttl: ttl,
		holds: map[string]*hold{}, running: map[string]int{}, waits: map[string]*waiter{},
	}
	p.slow = func(string) time.Duration { return w.between(0, 5*time.Millisecond) }
	rules := Default(ttl)
	if w.opts.rules != nil {
		w.opts.rules(&rules)
	}
	p.core = New(p.id, rules, rand.New(rand.NewPCG(w.chance.Uint64(), 1)))
	w.procs = append(w.procs, p)
	p.list(names)
	p.appear()
	p.tick()
	w.disturbed(w.now)
	return p
}

// at runs do later: once the process runs again if it is stopped, and never if it is dead.
func (p *proc) at(d time.Duration, do func()) {
	p.w.after(d, func() {
		switch {
		case p.dead:
		case p.stopped > p.w.now:
			p.at(p.stopped-p.w.now+p.w.between(0, time.Millisecond), do)
		default:
			do()
		}
	})
}

// living reports whether the process can run its names: it is neither dead, ending nor stopped.
func (p *proc) living() bool { return !p.dead && !p.ending && p.stopped <= p.w.now }

// reaches reports whether the process reaches the nodes.
func (p *proc) reaches() bool { return !p.w.away && !p.cut }

func (p *proc) key(name string) *lock { return p.w.lock(p.group + "/" + name) }

func (p *proc) list(names []string) {
	p.names = names
	for _, name := range p.core.SetNames(p.w.now, names) {
		p.end(name)
	}
}

// appear acquires the presence. Each process has its own lock for it; the count looks at all of them.
func (p *proc) appear() {
	p.at(p.w.between(0, 500*time.Millisecond), func() {
		switch {
		case p.ending:
		case !p.reaches():
			p.appear()
		default:
			p.presence = p.w.grantTo(p, &lock{name: p.id})
			p.core.Presence(p.w.now, true)
			p.renewal(p.presence)
			p.expiry(p.presence)
		}
	})
}

// members counts the presences.
func (p *proc) members() (n int) {
	for _, other := range p.w.procs {
		if other.group == p.group && other.presence != nil &&
			(other.presence.expires > p.w.now || p.w.opts.ghosts && !other.presence.released) {
			n++
		}
	}
	if p.w.chance.Float64() < p.w.opts.wrongView {
		n += 1 - 2*p.w.chance.IntN(2)
	}
	return max(n, 0)
}

func (p *proc) tick() {
	p.at(p.core.Pause(p.w.now), func() {
		if p.ending {
			return
		}
		if !p.reaches() {
			p.tick()
			return
		}
		p.w.counts++
		names := p.core.Tick(p.w.now, p.members())
		p.w.looks += len(names)
		for _, name := range names {
			if p.holds[name] != nil {
				p.w.fail("%s looks at %s, for which it has a goroutine", p.id, name)
			}
		}
		p.at(p.w.latency(), func() {
			if p.ending {
				return
			}
			var looks []Look
			if p.reaches() {
				for _, name := range names {
					looks = append(looks, p.look(name))
				}
			}
			for _, c := range p.core.Looked(p.w.now, looks) {
				p.carryOut(c)
			}
			p.tick()
		})
	})
}

func (p *proc) look(name string) Look {
	l := p.key(name)
	s := Look{Name: name, Free: p.w.free(l), Waiters: p.w.waiters(l)}
	if !s.Free {
		s.Holder, s.TTL, s.Marked = l.holder.p.id, l.holder.expires-p.w.now, l.holder.asked == Mark
	}
	return s
}

func (p *proc) carryOut(c Command) {
	w, l := p.w, p.key(c.Name)
	switch c.Kind {
	case Take:
		p.at(w.latency(), func() {
			alive := slices.ContainsFunc(l.queue, func(one *waiter) bool { return one.died == 0 })
			if p.reaches() && w.free(l) && w.now >= l.reserved && !alive && !p.ending && !p.barred {
				p.granted(l)
				return
			}
			p.ended(c.Name)
		})
	case Ask, Await:
		if c.Kind == Ask {
			w.asks++
		}
		if w.opts.noNumber && c.Kind == Ask {
			words := strings.Split(c.Text, " ")
			c.Text = words[0] + " " + words[1] + " 0 " + words[3]
		}
		if p.barred {
			return
		}
		one := &waiter{p: p}
		p.waits[c.Name] = one
		p.at(w.latency(), func() {
			if p.waits[c.Name] == one {
				l.queue = append(l.queue, one)
				w.hand(l)
			}
		})
		p.at(p.core.rules.AskAfter, func() {
			if c.Kind == Ask && p.waits[c.Name] == one && p.reaches() && !w.free(l) {
				l.holder.asked = c.Text
			}
		})
	case Leave:
		p.leave(c.Name)
	}
}

// leave ends a wait.
func (p *proc) leave(name string) {
	l, one := p.key(name), p.waits[name]
	if one == nil {
		return
	}
	delete(p.waits, name)
	p.w.after(p.w.latency(), func() {
		l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == one })
	})
	p.ended(name)
}

func (p *proc) ended(name string) { p.core.Ended(p.w.now, name) }

// granted begins a function.
func (p *proc) granted(l *lock) {
	w, name := p.w, strings.TrimPrefix(l.name, p.group+"/")
	delete(p.waits, name)
	h := w.grantTo(p, l)
	if p.running[name] > 0 {
		w.fail("%s runs %s twice", p.id, name)
	}
	p.holds[name] = h
	if !p.core.Granted(w.now, name) || p.ending {
		p.release(h)
		return
	}
	for _, other := range w.procs {
		// A function whose lease was lost may still run; its token is smaller.
		if before := other.holds[name]; other.group == p.group && before != nil && before != h && before.runs && !before.lost &&
			(before.valid > w.now || before.released) {
			w.fail("%s runs %s under a lease, and so does %s", other.id, name, p.id)
		}
	}
	if before := w.owner[l.name]; before != nil && before != p && before.living() {
		w.moves++
	}
	if since, given := w.gone[l.name]; given {
		w.gaps = append(w.gaps, w.now-since)
		delete(w.gone, l.name)
	}
	if since, dropped := w.dropped[l.name]; dropped {
		w.drops = append(w.drops, w.now-since)
		delete(w.dropped, l.name)
	}
	w.owner[l.name] = p
	h.runs = true
	p.running[name]++
	p.renewal(h)
	p.expiry(h)
}

// renewal renews a lease in time, and reports the waiters and the ask to its holder.
func (p *proc) renewal(h *hold) {
	p.at(p.ttl/3*9/10+p.w.between(0, p.ttl/15), func() { p.renew(h) })
}

func (p *proc) renew(h *hold) {
	w := p.w
	switch {
	case h.released || h.lost:
		return
	case w.now >= h.valid || !w.free(h.lock) && h.lock.holder != h:
		p.lose(h)
		return
	case !p.reaches():
		p.at(p.ttl/20, func() { p.renew(h) })
		return
	}
	h.lock.holder = h
	h.expires, h.valid = w.now+p.ttl, w.now+p.ttl*97/100-2*time.Millisecond
	p.renewal(h)
	waiters := w.waiters(h.lock)
	if shown := fmt.Sprint(waiters, h.asked); shown != h.shown && h != p.presence {
		h.shown = shown
		p.wanted(h, waiters)
	}
}

// wanted asks the core whether the name is given away.
func (p *proc) wanted(h *hold, waiters int) {
	w, name := p.w, strings.TrimPrefix(h.lock.name, p.group+"/")
	if h.released || h.lost || p.deaf {
		return
	}
	if w.opts.noWaiter {
		waiters = 1
	}
	asked := h.asked
	if _, ok := parseAsk(asked); ok && w.opts.alwaysConsent && !h.ending {
		asked = strings.Replace(asked, strings.Split(asked, " ")[1], "0", 1)
		if p.core.count[Running] < 2 {
			asked = ""
		}
	}
	switch p.core.Wanted(w.now, name, waiters, asked) {
	case Consent:
		w.gone[h.lock.name] = w.now
		p.end(name)
	case Remark:
		if p.reaches() {
			h.asked = Mark
		}
	}
}

// expiry reports a loss.
func (p *proc) expiry(h *hold) {
	until := h.valid
	p.at(until-p.w.now, func() {
		switch {
		case h.released || h.lost:
		case h.valid <= p.w.now:
			p.lose(h)
		default:
			p.expiry(h)
		}
	})
}

func (p *proc) lose(h *hold) {
	h.lost = true
	if h == p.presence {
		p.core.Presence(p.w.now, false)
		p.presence = nil
		p.appear()
		return
	}
	name := strings.TrimPrefix(h.lock.name, p.group+"/")
	p.core.Lost(p.w.now, name)
	if !h.ending {
		p.returns(name, h)
	}
	if p.w.opts.endsAtLoss {
		delete(p.holds, name)
		p.ended(name)
	}
}

// end ends a function, or a wait.
func (p *proc) end(name string) {
	h := p.holds[name]
	if h == nil {
		p.leave(name)
		return
	}
	if h.ending || h.lost {
		return
	}
	if p.w.opts.releaseEarly {
		p.release(h)
	}
	p.returns(name, h)
}

// returns makes the function return after a while, and then releases the lease.
func (p *proc) returns(name string, h *hold) {
	h.ending = true
	slow := p.slow(name)
	if slow > time.Second {
		p.w.disturbed(p.w.now + slow)
	}
	p.mark(p.core.rules.MarkAfter, name, h)
	p.at(slow, func() {
		h.runs = false
		p.running[name]--
		if _, given := p.w.gone[h.lock.name]; given {
			p.w.gone[h.lock.name] = p.w.now
		} else if p.ending {
			p.w.dropped[h.lock.name] = p.w.now
		}
		p.release(h)
	})
}

// mark reports repeatedly that the function of a name still runs.
func (p *proc) mark(after time.Duration, name string, h *hold) {
	p.at(after, func() {
		if p.holds[name] == h {
			p.wanted(h, p.w.waiters(h.lock))
			p.mark(p.core.rules.MarkEvery, name, h)
		}
	})
}

// release gives a lease back when its function has returned.
func (p *proc) release(h *hold) {
	w := p.w
	if !h.lost && !h.released && p.reaches() && h.lock.holder == h {
		h.lock.holder = nil
		p.w.after(w.latency(), func() { w.hand(h.lock) })
	}
	h.released = true
	if h.runs {
		return
	}
	name := strings.TrimPrefix(h.lock.name, p.group+"/")
	if p.holds[name] == h {
		delete(p.holds, name)
		p.ended(name)
		if p.ending && len(p.holds) == 0 {
			p.dead = true
		}
	}
}

// kill is SIGKILL.
func (p *proc) kill() {
	p.dead = true
	for _, h := range p.holds {
		h.runs = false
	}
	for _, one := range p.waits {
		one.died = p.w.now
	}
	p.w.disturbed(p.w.now)
}

// term is SIGTERM: the presence first, then the functions.
func (p *proc) term() {
	p.ending = true
	if p.presence != nil {
		p.presence.released, p.presence.expires = true, 0
	}
	for _, name := range p.core.SetNames(p.w.now, nil) {
		p.end(name)
	}
	p.dead = p.dead || len(p.holds) == 0
	p.w.disturbed(p.w.now)
}

// stop is SIGSTOP, and SIGCONT in a while.
func (p *proc) stop(d time.Duration) {
	p.stopped = p.w.now + d
	p.w.disturbed(p.stopped)
}

// counts returns how many names each living member runs.
func (w *world) runs(group string) (runs []int) {
	for _, p := range w.procs {
		if p.dead || p.ending || p.group != group {
			continue
		}
		n := 0
		for _, h := range p.holds {
			if h.runs && !h.ending && !h.lost && h.valid > w.now {
				n++
			}
		}
		runs = append(runs, n)
	}
	return runs
}

var errUneven = errors.New("uneven")

// even returns why a group is not even.
func (w *world) even(group string, names []string) error {
	runs := w.runs(group)
	if len(runs) == 0 {
		return nil
	}
	all := 0
	for _, n := range runs {
		all += n
	}
	if all != len(names) {
		return fmt.Errorf("%d of %d names run: %v", all, len(names), runs)
	}
	if slices.Max(runs)-slices.Min(runs) > 1 {
		return fmt.Errorf("%w: %v", errUneven, runs)
	}
	return nil
}

// settle returns how long it takes from the last disturbance until the group is even and stays so for two seconds.
func (w *world) settle(group string, names func() []string, most time.Duration) (took time.Duration, err error) {
	w.disturbed(w.now)
	for since := time.Duration(-1); ; w.run(100 * time.Millisecond) {
		if err = w.even(group, names()); err != nil {
			since = -1
		} else if since < 0 {
			since = w.now
		}
		if since >= 0 && w.now-since >= 2*time.Second && w.now > w.disturbs {
			return max(since-w.disturbs, 0), nil
		}
		if w.now-w.disturbs > most {
			return most, err
		}
	}
}

func list(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%05d", i))
	}
	return names
}
