package quorumlock

import (
	"container/heap"
	"time"
)

// holdHeap orders holds by their next wake. It has a copy of each wake, because reading
// it from the hold costs a cache miss.
type holdHeap []scheduled

type scheduled struct {
	wake time.Duration
	hold *hold
}

// file puts a hold into the heap under its wake, or moves it there.
func (h *holdHeap) file(one *hold, wake time.Duration) {
	one.wake.Store(int64(wake))
	if one.index < 0 { // heap.Push would allocate
		one.index = len(*h)
		*h = append(*h, scheduled{hold: one})
	}
	(*h)[one.index].wake = wake
	heap.Fix(h, one.index)
}

// remove removes a hold.
func (h *holdHeap) remove(one *hold) {
	heap.Remove(h, one.index)
	one.wake.Store(0)
}

func (h holdHeap) Len() int { return len(h) }

func (h holdHeap) Less(i, j int) bool { return h[i].wake < h[j].wake }

func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].hold.index, h[j].hold.index = i, j
}

// Push is part of heap.Interface; file does not use it.
func (h *holdHeap) Push(x any) {
	one := x.(scheduled)
	one.hold.index = len(*h)
	*h = append(*h, one)
}

// Pop is part of heap.Interface.
func (h *holdHeap) Pop() any {
	last := len(*h) - 1
	one := (*h)[last].hold
	(*h)[last] = scheduled{}
	*h = (*h)[:last]
	one.index = -1
	return one
}
