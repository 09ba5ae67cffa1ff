package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// listRequest is a request to /labels or /label/<name>/values.
type listRequest struct {
	limit    int
	matchers [][]*labels.Matcher
	querier  storage.Querier
}

// openList parses a list request and opens its querier, which the caller must close.
func (a *API) openList(r *http.Request) (listRequest, *apiError) {
	limit, apiErr := parseLimit(r)
	if apiErr != nil {
		return listRequest{}, apiErr
	}
	start, end, apiErr := a.metadataRange(r)
	if apiErr != nil {
		return listRequest{}, apiErr
	}
	sets, err := a.parseMatchers(r)
	if err != nil {
		return listRequest{}, badData(err)
	}
	from, apiErr := a.queryable(r, purpose{})
	if apiErr != nil {
		return listRequest{}, apiErr
	}
	querier, err := from.Querier(milliseconds(start), milliseconds(end))
	if err != nil {
		return listRequest{}, queryError(err)
	}
	return listRequest{limit: limit, matchers: sets, querier: querier}, nil
}

type listFunc func(ctx context.Context, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error)

// list returns the sorted union of the lists for every matcher set, at most limit elements. The querier is closed after
// the response is written, or with an error.
func (l listRequest) list(ctx context.Context, read listFunc) (response, *apiError) {
	sets := l.matchers
	if len(sets) == 0 {
		sets = [][]*labels.Matcher{nil}
	}
	var (
		found    []string
		warnings annotations.Annotations
	)
	hints := &storage.LabelHints{Limit: hintLimit(l.limit)}
	for _, set := range sets {
		values, w, err := read(ctx, hints, set...)
		if err != nil {
			_ = l.querier.Close()
			return response{}, queryError(err)
		}
		warnings.Merge(w)
		found = append(found, values...)
	}
	slices.Sort(found)
	found = slices.Compact(found)
	if l.limit > 0 && len(found) > l.limit {
		found = found[:l.limit]
		warnings = warnings.Add(errTruncated)
	}
	// Label values may alias the memory-mapped index. The querier stays open until they
	// are written.
	return response{
		write:       func(s *stream) { s.strings(found) },
		annotations: &responseAnnotations{list: warnings},
		release:     func() { _ = l.querier.Close() },
	}, nil
}

func (a *API) labelNames(r *http.Request) (response, *apiError) {
	l, apiErr := a.openList(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	return l.list(r.Context(), l.querier.LabelNames)
}

func (a *API) labelValues(r *http.Request) (response, *apiError) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return response{}, badData(fmt.Errorf("invalid label name: %q", name))
	}
	l, apiErr := a.openList(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	return l.list(r.Context(), func(ctx context.Context, hints *storage.LabelHints,
		ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
		return l.querier.LabelValues(ctx, name, hints, ms...)
	})
}

// series streams the matching label sets. They are written while the index is read, so
// that an error after the first full buffer aborts the connection.
func (a *API) series(r *http.Request) (response, *apiError) {
	if len(r.Form["match[]"]) == 0 {
		return response{}, badData(errors.New("no match[] parameter provided"))
	}
	limit, apiErr := parseLimit(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	start, end, apiErr := a.metadataRange(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	sets, err := a.parseMatchers(r)
	if err != nil {
		return response{}, invalidParameter("match[]", err)
	}
	if slices.ContainsFunc(sets, func(set []*labels.Matcher) bool { return len(set) == 0 }) { // stores refuse it
		return response{}, invalidParameter("match[]", errors.New("match[] must contain at least one matcher"))
	}
	from, apiErr := a.queryable(r, purpose{dedup: true})
	if apiErr != nil {
		return response{}, apiErr
	}
	q, err := from.Querier(milliseconds(start), milliseconds(end))
	if err != nil {
		return response{}, queryError(err)
	}
	set := selectSeries(r.Context(), q, sets, &storage.SelectHints{
		Start: milliseconds(start),
		End:   milliseconds(end),
		Func:  "series", // no PromQL function: as in Prometheus, it permits the storage to omit samples
		Limit: hintLimit(limit),
	})
	notes := &responseAnnotations{list: set.Warnings()}
	return response{
		write:       func(s *stream) { s.seriesSet(r.Context(), set, limit, notes) },
		annotations: notes,
		release:     func() { _ = q.Close() },
	}, nil
}

// selectSeries selects the series of each matcher set and merges them. Several sets are
// selected in label order, which the merge needs. The series of a single set stay in the
// storage's order, as in Prometheus.
func selectSeries(ctx context.Context, q storage.Querier, sets [][]*labels.Matcher,
	hints *storage.SelectHints) storage.SeriesSet {
	if len(sets) == 1 {
		return q.Select(ctx, false, hints, sets[0]...)
	}
	parts := make([]storage.SeriesSet, 0, len(sets))
	for _, matchers := range sets {
		parts = append(parts, q.Select(ctx, true, hints, matchers...))
	}
	return storage.NewMergeSeriesSet(parts, 0, storage.ChainedSeriesMerge)
}

func (s *stream) seriesSet(ctx context.Context, set storage.SeriesSet, limit int, notes *responseAnnotations) {
	s.raw("[")
	for i := 0; set.Next(); i++ {
		if limit > 0 && i == limit {
			notes.list.Add(errTruncated)
			s.raw("]")
			return
		}
		s.comma(i)
		s.labels(set.At().Labels())
		if !s.flushIfFull() {
			return
		}
		if i%128 == 127 && ctx.Err() != nil {
			s.fail(ctx.Err())
			return
		}
	}
	if err := set.Err(); err != nil {
		s.fail(err)
		return
	}
	s.raw("]")
}
