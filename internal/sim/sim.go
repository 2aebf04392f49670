package sim

// Runner plays runs one after the other and reuses their memory.
type Runner struct{ w *world }

// NewRunner returns a runner. It is not safe for concurrent use.
func NewRunner() *Runner { return &Runner{newWorld()} }

// Run plays one run.
func (r *Runner) Run(p Params) Result { return r.w.run(p) }
