package frontend

import "sync"

// remembered is a map of at most max keys. When it is full, the next new key first clears it.
type remembered[K comparable, V any] struct {
	max    int
	mu     sync.Mutex
	values map[K]V
}

func (r *remembered[K, V]) get(key K) (value V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, ok = r.values[key]
	return value, ok
}

func (r *remembered[K, V]) put(key K, value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.values[key]; !ok && len(r.values) >= r.max || r.values == nil {
		r.values = map[K]V{}
	}
	r.values[key] = value
}
