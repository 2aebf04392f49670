package quorum

import "github.com/quorumlock/quorumlock/internal/clock"

// Release counts the answers to the release of a lease. It decides whether another client may have had the lock before:
// perhaps no renewal has asked the nodes since they lost their keys.
type Release struct {
	window Window[clock.Validity] // of the lease, which no longer changes
	at     clock.Validity
	// Nodes that have answered; that had the key until they deleted it; that had lost it before; and of these, the
	// nodes that have another owner's key.
	answered, ours, gone, taken Set
}

// Release returns the release of the lease at an instant, without answers. The machine has ended.
func (m *Machine) Release(at clock.Validity) Release { return Release{window: m.window, at: at} }

// Deleted records that a node has deleted the key.
func (r *Release) Deleted(node int) {
	r.answered, r.ours = r.answered.With(node), r.ours.With(node)
}

// Denied records an answer, received at now, that the node does not have the key, and whether another owner's is there.
// The answer proves nothing if the key may have ended by itself since the release.
func (r *Release) Denied(node int, taken bool, now clock.Validity) {
	r.answered = r.answered.With(node)
	if until := r.window[node]; until > r.at && until <= now {
		return
	}
	r.gone = r.gone.With(node)
	if taken && r.window[node] != 0 { // otherwise it is a competitor's, and was never ours
		r.taken = r.taken.With(node)
	}
}

// Unclear records an answer that shows nothing about the key.
func (r *Release) Unclear(node int) { r.answered = r.answered.With(node) }

// Lost reports whether another client may have had a majority before the release. A node without a clear
// answer counts as the holder knew it.
func (r *Release) Lost() bool { return r.free(r.kept()) }

// Kept reports whether the lease was certainly not lost, whatever the missing answers would show.
func (r *Release) Kept() bool { return !r.free(r.kept() & r.answered) }

// Reason returns why the lease was lost.
func (r *Release) Reason() Reason {
	if r.taken != 0 {
		return ReasonTaken
	}
	return ReasonMissing
}

// kept returns the nodes that had the key until the release, as far as is known.
func (r *Release) kept() (kept Set) {
	for i, until := range r.window {
		if until > r.at {
			kept = kept.With(i)
		}
	}
	return (kept | r.ours) &^ r.gone
}

// free reports whether the nodes without the key are a majority.
func (r *Release) free(kept Set) bool { return Margin(len(r.window), kept.Len()) < 0 }
