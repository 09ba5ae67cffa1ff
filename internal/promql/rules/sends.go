package rules

import (
	"context"
	"net/http"
	"sync"

	"github.com/ferula-io/ferula/internal/version"
)

// sends sends the requests of Prometheus' notifier to Alertmanagers. Two things are missing in the notifier. When it
// stops, it does not wait for a running request, so the alerts of this request could be lost: wait waits for running
// requests. And it allows every request of a queue the whole timeout, so that a shutdown could take minutes: cancel
// ends all requests.
type sends struct {
	ctx    context.Context // canceled when requests must end
	cancel context.CancelFunc

	mu      sync.Mutex
	idle    *sync.Cond // no request is running
	running int
}

func (s *sends) init() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.idle = sync.NewCond(&s.mu)
}

// do sends a request for the notifier. The response's body is small and read by the caller.
func (s *sends) do(ctx context.Context, client *http.Client, req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.running++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running--; s.running == 0 {
			s.idle.Broadcast()
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	req.Header.Set("User-Agent", version.UserAgent())
	//lint:ignore gosec the address is of an Alertmanager in the configuration
	resp, err := client.Do(req.WithContext(ctx)) // the notifier closes the body
	if err != nil {
		cancel()
		return nil, err
	}
	return resp, nil
}

// wait waits until no request is running.
func (s *sends) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running > 0 {
		s.idle.Wait()
	}
}
