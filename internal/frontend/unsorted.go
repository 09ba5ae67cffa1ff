package frontend

import "sync"

// unsortedMax bounds how many queries are remembered.
const unsortedMax = 1000

// unsortedQueries remembers which queries a downstream answers in an order that
// is not that of labels. They are not cut again until the process ends, or until
// too many others have come.
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
