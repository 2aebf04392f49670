package election

import "errors"

// The causes of the end of Lead's context, in addition to the causes of [quorumlock.Manager.Lead].
// Run does not return them: it campaigns again.
var (
	// ErrYielded means that the leader yields to a candidate whose Preference is larger.
	ErrYielded = errors.New("election: yielded to a better candidate")
	// ErrUnhealthy means that the leader yields because its Health failed.
	ErrUnhealthy = errors.New("election: unhealthy")
)
