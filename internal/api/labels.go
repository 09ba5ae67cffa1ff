package api

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

// listRequest is what /labels and /label/<name>/values have in common.
type listRequest struct {
	limit    int
	matchers [][]*labels.Matcher
	querier  storage.Querier
}

// openList parses a list request and opens its querier, which the caller closes.
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

type lookup func(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error)

// list unites what look finds for every matcher set, sorted, at most limit.
func (l listRequest) list(ctx context.Context, look lookup) (answer, *apiError) {
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
		values, w, err := look(ctx, hints, set...)
		if err != nil {
			return answer{}, queryError(err)
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
	// Label values may alias the index's mapping, so the querier stays open
	// until they are written.
	return answer{
		write:   func(s *stream) { s.strings(found) },
		notes:   &notes{list: warnings},
		release: func() { _ = l.querier.Close() },
	}, nil
}

func (a *API) labelNames(r *http.Request) (answer, *apiError) {
	l, apiErr := a.openList(r)
	if apiErr != nil {
		return answer{}, apiErr
	}
	return closeOnError(l.querier)(l.list(r.Context(), l.querier.LabelNames))
}

func (a *API) labelValues(r *http.Request) (answer, *apiError) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return answer{}, badData(fmt.Errorf("invalid label name: %q", name))
	}
	l, apiErr := a.openList(r)
	if apiErr != nil {
		return answer{}, apiErr
	}
	return closeOnError(l.querier)(l.list(r.Context(), func(ctx context.Context, hints *storage.LabelHints, ms ...*labels.Matcher) ([]string, annotations.Annotations, error) {
		return l.querier.LabelValues(ctx, name, hints, ms...)
	}))
}

// closeOnError closes a querier whose answer will not be written.
func closeOnError(q storage.Querier) func(answer, *apiError) (answer, *apiError) {
	return func(ans answer, apiErr *apiError) (answer, *apiError) {
		if apiErr != nil {
			_ = q.Close()
		}
		return ans, apiErr
	}
}

// series streams the label sets that match: they are written while the index is
// read, so an error after the first full buffer cuts the connection.
func (a *API) series(r *http.Request) (answer, *apiError) {
	if len(r.Form["match[]"]) == 0 {
		return answer{}, badData(errors.New("no match[] parameter provided"))
	}
	limit, apiErr := parseLimit(r)
	if apiErr != nil {
		return answer{}, apiErr
	}
	start, end, apiErr := a.metadataRange(r)
	if apiErr != nil {
		return answer{}, apiErr
	}
	sets, err := a.parseMatchers(r)
	if err != nil {
		return answer{}, invalidParameter("match[]", err)
	}
	from, apiErr := a.queryable(r, purpose{dedup: true})
	if apiErr != nil {
		return answer{}, apiErr
	}
	q, err := from.Querier(milliseconds(start), milliseconds(end))
	if err != nil {
		return answer{}, queryError(err)
	}
	set := selectSeries(r.Context(), q, sets, &storage.SelectHints{
		Start: milliseconds(start),
		End:   milliseconds(end),
		Func:  "series", // no such function: it says that samples are not needed
		Limit: hintLimit(limit),
	})
	n := &notes{list: set.Warnings()}
	return answer{
		write:   func(s *stream) { s.seriesSet(r.Context(), set, limit, n) },
		notes:   n,
		release: func() { _ = q.Close() },
	}, nil
}

// selectSeries merges several matcher sets, for which each must come sorted; one
// alone is left in the storage's order, as Prometheus does.
func selectSeries(ctx context.Context, q storage.Querier, sets [][]*labels.Matcher, hints *storage.SelectHints) storage.SeriesSet {
	if len(sets) == 1 {
		return q.Select(ctx, false, hints, sets[0]...)
	}
	parts := make([]storage.SeriesSet, 0, len(sets))
	for _, matchers := range sets {
		parts = append(parts, q.Select(ctx, true, hints, matchers...))
	}
	return storage.NewMergeSeriesSet(parts, 0, storage.ChainedSeriesMerge)
}

func (s *stream) seriesSet(ctx context.Context, set storage.SeriesSet, limit int, n *notes) {
	s.raw("[")
	for i := 0; set.Next(); i++ {
		if limit > 0 && i == limit {
			n.list.Add(errTruncated)
			s.raw("]")
			return
		}
		s.comma(i)
		s.labels(set.At().Labels())
		if !s.room() {
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
