package frontend

import "sync"

// unsortedMax is the limit of remembered queries.
const unsortedMax = 1000

// unsortedQueries remembers the keys of queries that cannot be split: the responses of their parts
// are not sorted by labels, or have points of other parts. When unsortedMax keys are remembered,
// the next new key first clears the list.
type unsortedQueries struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

func newUnsortedQueries() *unsortedQueries {
	return &unsortedQueries{keys: map[string]struct{}{}}
}

func (u *unsortedQueries) isUnsorted(key string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.keys[key]
	return ok
}

func (u *unsortedQueries) remember(key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.keys) >= unsortedMax {
		clear(u.keys)
	}
	u.keys[key] = struct{}{}
}
