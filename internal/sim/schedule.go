package sim

import "time"

// epoch is the time of the wall clocks at the start of a run.
const epoch = 1_800_000_000 * time.Second

// simClock shows offset + t + rate·t at the true time t. It jumps only when the offset
// is changed.
type simClock struct {
	offset time.Duration
	rate   int64 // in millionths
}

// read returns the time that the clock shows at the true time t.
func (c *simClock) read(t time.Duration) time.Duration {
	return c.offset + t + t/1e6*time.Duration(c.rate) + t%1e6*time.Duration(c.rate)/1e6
}

// when returns the first true time at which the clock shows at least at, to within a
// nanosecond.
func (c *simClock) when(at time.Duration) time.Duration {
	d := at - c.offset
	if d <= 0 {
		return 0
	}
	t := d / time.Duration(1e6+c.rate) * 1e6 // slightly too early; the loop corrects it
	for {
		missing := at - c.read(t)
		if missing <= 0 {
			return t
		}
		t += max(1, missing*1e6/time.Duration(1e6+max(c.rate, 0)))
	}
}

// micros returns the number of µs in d, the unit of the scripts.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// kind of an event.
type kind uint8

const (
	evArrival    kind = iota + 1 // a message reaches its receiver
	evTimer                      // a client has something to do
	evPause                      // a client stops for a time
	evCrash                      // a client vanishes for a time
	evQuit                       // a client is closed, and starts again later
	evBegin                      // a client starts
	evCall                       // a caller of a client calls
	evLeave                      // a caller of a client gives up, if it still waits behind others
	evRemnants                   // the remnants of a lost lease are released
	evDown                       // a node stops for a time
	evUp                         // a node starts again
	evFlush                      // a node loses all data, but no connection
	evRedial                     // a client greets a node
	evStall                      // a node stalls for a time between two scripts
	evFreeze                     // a node stalls for a time inside its next script
	evTrim                       // a node drops registers
	evMoveLate                   // a register moves after its lock, by a planted bug
	evCut                        // a client and a node cannot reach each other for a time
	evDistance                   // messages between a client and a node take longer for a time
	evStep                       // a wall clock jumps
	evCommonStep                 // the wall clocks of a client and of some nodes jump by the same amount
	evBlip                       // a node's clock jumps ahead, and back before a client reads it
	evFailover                   // a server of a group becomes its master
	evNamed                      // a majority names that master
	evCopy                       // a server of a group gets the master's data
	evWatch                      // a client asks who the masters are
	evBlind                      // a client cannot ask that for a time
	evSave                       // a node writes its data to disk
	evCheck                      // a failed attempt must have left nothing
	evCalm                       // the faults stop
	evVerdict                    // by now a client must have got the lock
	evPoll                       // an observer begins to ask the nodes
	evLook                       // a node answers the observer
	evSeen                       // the observer has waited long enough
	evRevoke                     // an operator revokes the lease of a majority
	evMark                       // a node gets its request
	evMarked                     // the operator has waited long enough
	evRevoked                    // the lease must have ended
	evDetach                     // a holder detaches its lease
	evDetached                   // the holder has waited long enough
	evUse                        // a client uses a handle
	evMove                       // the key of a lock leaves a server
	evMoveBack                   // and the move of its slot is taken back
)

// event is something that happens at an instant. Which fields matter depends
// on the kind; messages use all of message.
type event struct {
	kind     kind
	finds    loss // evDown: what the restart finds
	oneWay   bool // evCut: only the requests, or only the answers
	admitted bool // evArrival: the node is free for this message now
	client   int8 // or -1
	node     int8 // or -1
	caller   int8 // evCall, evLeave; evCopy: the server
	duration time.Duration
	message
}

// slot of an event in the heap.
type slot struct {
	at    time.Duration
	order uint32 // of scheduling, to break ties
	index uint32 // into agenda.events
}

func (a *slot) before(b *slot) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// agenda holds the future events. Its memory is kept from run to run.
type agenda struct {
	heap    []slot
	planned []slot // scheduled before the run begins, the next one last; they would make the heap deep
	events  []event
	free    []uint32
	order   uint32
}

func (a *agenda) reset() {
	a.heap, a.planned, a.events, a.free, a.order = a.heap[:0], a.planned[:0], a.events[:0], a.free[:0], 0
}

func (a *agenda) empty() bool { return len(a.heap)+len(a.planned) == 0 }

// add adds an event.
func (a *agenda) add(at time.Duration, e *event) {
	var index uint32
	if n := len(a.free); n > 0 {
		index = a.free[n-1]
		a.free = a.free[:n-1]
		a.events[index] = *e
	} else {
		index = uint32(len(a.events))
		a.events = append(a.events, *e)
	}
	a.order++
	p := slot{at: at, order: a.order, index: index}
	a.heap = append(a.heap, p)
	i := len(a.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !p.before(&a.heap[parent]) {
			break
		}
		a.heap[i] = a.heap[parent]
		i = parent
	}
	a.heap[i] = p
}

// next removes the earliest event, and returns it with its instant.
func (a *agenda) next() (time.Duration, event) {
	if n := len(a.planned) - 1; n >= 0 && (len(a.heap) == 0 || a.planned[n].before(&a.heap[0])) {
		first := a.planned[n]
		a.planned = a.planned[:n]
		return a.take(first)
	}
	first := a.heap[0]
	last := len(a.heap) - 1
	p := a.heap[last]
	a.heap = a.heap[:last]
	i := 0
	for last > 0 {
		child := 2*i + 1
		if child >= last {
			break
		}
		if right := child + 1; right < last && a.heap[right].before(&a.heap[child]) {
			child = right
		}
		if !a.heap[child].before(&p) {
			break
		}
		a.heap[i] = a.heap[child]
		i = child
	}
	if last > 0 {
		a.heap[i] = p
	}
	return a.take(first)
}

func (a *agenda) take(p slot) (time.Duration, event) {
	a.free = append(a.free, p.index)
	return p.at, a.events[p.index]
}
