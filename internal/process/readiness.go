package process

import (
	"net/http"
	"strconv"
	"sync/atomic"
)

// Readiness is the readiness state of a process.
type Readiness struct {
	state atomic.Int32
	Note  func() string // further lines of the readiness response; set before serving, may be nil
}

const (
	stateNotReady int32 = iota
	stateReady
	stateStopping
)

// Ready makes the process ready, unless it is stopping.
func (g *Readiness) Ready() { g.state.CompareAndSwap(stateNotReady, stateReady) }

// Waiting makes a ready process not ready.
func (g *Readiness) Waiting() { g.state.CompareAndSwap(stateReady, stateNotReady) }

// Stopping makes the process not ready for good.
func (g *Readiness) Stopping() { g.state.Store(stateStopping) }

// IsReady reports whether the process is ready.
func (g *Readiness) IsReady() bool { return g.state.Load() == stateReady }

// Wrap responds with status 503 unless the process is ready.
func (g *Readiness) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		state := g.state.Load()
		if state == stateReady {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Prometheus-Stopping", strconv.FormatBool(state == stateStopping))
		http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
	})
}
