package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"

	"github.com/ferula-io/ferula/internal/profiles/store"
	instruments "github.com/ferula-io/ferula/metrics"
)

// pass is one reading of the sources of a view. It skips corrupt and unreadable sources and collects their errors,
// so that one pass finds all such sources.
type pass struct {
	sources []block.Source
	faults  map[block.Source]error
	wait    *bucketWait
}

// bucketWait is how long a query may still wait for failing reads of blocks in the bucket. Once the time is used up,
// further blocks in the bucket are skipped without a request.
type bucketWait struct{ left time.Duration }

// remote reports whether a source is read from a bucket.
type remote interface{ Remote() bool }

func isRemote(src block.Source) bool {
	r, ok := src.(remote)
	return ok && r.Remote()
}

// fault records the error of a corrupt or unreadable source. It returns false for other errors.
func (p *pass) fault(err error) bool {
	var bad *store.SourceError
	if !errors.As(err, &bad) || !errors.Is(err, profiles.ErrCorrupt) && !errors.Is(err, profiles.ErrUnavailable) {
		return false
	}
	if p.faults == nil {
		p.faults = map[block.Source]error{}
	}
	if p.faults[bad.Source] == nil {
		p.faults[bad.Source] = bad
	}
	return true
}

// faulty reports whether a source has failed in this pass.
func (p *pass) faulty(src block.Source) bool { return src != nil && p.faults[src] != nil }

// each calls f with every source. If f fails because a source is corrupt or unreadable, the source is recorded in
// p.faults, and each continues. It returns other errors, and the error of ctx.
func (p *pass) each(ctx context.Context, f func(src block.Source) error) error {
	for _, src := range p.sources {
		if err := ctx.Err(); err != nil {
			return err
		}
		away := isRemote(src)
		if away && p.wait.left <= 0 {
			p.fault(store.InSource(src, fmt.Errorf("%w: the bucket did not respond for other blocks", profiles.ErrUnavailable)))
			continue
		}
		began := time.Now()
		err := f(src)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !p.fault(store.InSource(src, err)) {
			return err
		}
		if away && errors.Is(err, profiles.ErrUnavailable) {
			p.wait.left -= time.Since(began)
		}
	}
	return nil
}

// once runs f over a view's sources. It is for functions that have added nothing of a source when the source fails. It
// returns the warnings of the response, or an error.
func (e *Engine) once(tenant string, view *store.View, f func(p *pass) error) ([]error, error) {
	p := &pass{sources: view.Sources, wait: &bucketWait{e.opts.Timeout / 4}}
	if err := f(p); err != nil {
		return nil, err
	}
	return e.partial(tenant, p.warnings(view.Warnings))
}

// without runs f over a view's sources until no source fails. After a pass in which sources have failed, f starts again
// without these sources. It is for functions that may have added a part of a source when the source fails.
func (e *Engine) without(ctx context.Context, tenant string, view *store.View, f func(p *pass) error) ([]error, error) {
	sources, warnings, wait := view.Sources, view.Warnings, &bucketWait{e.opts.Timeout / 4}
	for {
		p := &pass{sources: sources, wait: wait}
		err := f(p)
		if err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if len(p.faults) == 0 { // otherwise a faulty source may have caused the error
			if err != nil {
				return nil, err
			}
			return e.partial(tenant, warnings)
		}
		warnings = p.warnings(warnings)
		sources = slices.DeleteFunc(slices.Clone(sources), p.faulty)
	}
}

// warnings appends the faults of a pass to a copy of to, in the order of the sources.
func (p *pass) warnings(to []error) []error {
	to = to[:len(to):len(to)]
	for _, src := range p.sources {
		if err := p.faults[src]; err != nil {
			to = append(to, err)
		}
	}
	return to
}

// partial returns the warnings of a response. If there are warnings, it counts and logs a partial response. With
// FailPartial it then returns an error instead of the warnings.
func (e *Engine) partial(tenant string, warnings []error) ([]error, error) {
	if len(warnings) == 0 {
		return nil, nil
	}
	e.partialLog.note(tenant, warnings)
	if e.opts.FailPartial {
		err := warnings[0]
		if n := len(warnings) - 1; n > 0 {
			err = fmt.Errorf("%w (and %d more)", err, n)
		}
		return nil, fmt.Errorf("%w: the response would be partial: %w", profiles.ErrUnavailable, err)
	}
	return warnings, nil
}

const (
	logEvery  = time.Hour // interval of log lines about one source
	loggedMax = 1000      // sources in partialLog.logged
)

// partialLog counts partial responses. It logs a source that fails once every logEvery, not for
// every query.
type partialLog struct {
	logger *slog.Logger
	total  *instruments.Counter

	mu     sync.Mutex
	logged map[string]time.Time // time of the last line, by tenant and source
}

func newPartialLog(o Options) *partialLog {
	return &partialLog{logger: o.Logger, total: process.Counter(o.Metrics, "ferula_profiles_partial_responses_total",
		"Profile queries whose response lacked a block, or that failed because of a block."),
		logged: map[string]time.Time{}}
}

// note counts a partial response, and logs each of its warnings that is due.
func (l *partialLog) note(tenant string, warnings []error) {
	l.total.Inc()
	now := time.Now()
	for _, err := range warnings {
		key := err.Error()
		var bad *store.SourceError
		if errors.As(err, &bad) {
			key = bad.Source.Name()
		}
		if l.due(tenant+"/"+key, now) {
			l.logger.Warn("Profile query results are partial", "tenant", tenant, "err", err, "repeated_after", logEvery)
		}
	}
}

// due reports whether a line about a source is due, and records it as logged.
func (l *partialLog) due(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.logged[key]; ok && now.Sub(last) < logEvery {
		return false
	}
	if len(l.logged) >= loggedMax {
		clear(l.logged)
	}
	l.logged[key] = now
	return true
}
