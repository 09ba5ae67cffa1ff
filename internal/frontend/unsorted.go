package frontend

import "sync"

// unsortedMax is the limit of remembered queries.
const unsortedMax = 1000

// unsortedQueries remembers the keys of queries whose partial responses cannot be merged: they
// are not sorted by labels, or have points of other parts. Such a query is not split again until
// its key is forgotten. A further query beyond unsortedMax makes it forget all keys.
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
