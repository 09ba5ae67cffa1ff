package columns

// Eager lets an engine use workers at once, for one or two series at a time.
func Eager(e *Engine) *Engine {
	e.alone, e.stepsAlone, e.together = 1, 1, 2
	return e
}

// Summarizing lets an engine ask for summaries however short the windows are.
func Summarizing(e *Engine) *Engine {
	e.gapLeastMS = 1
	return e
}
