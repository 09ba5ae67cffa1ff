package query

import (
	"bytes"
	"context"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// each calls f with every series that a request selects, once for each source that has the series. As in Prometheus,
// the range selects sources (blocks) and not rows.
func (e *Engine) each(ctx context.Context, req *profiles.LabelsRequest,
	f func(src block.Source, s *block.Series)) ([]error, error) {
	minNS, maxNS := int64(0), int64(math.MaxInt64)
	if req.StartMS != 0 || req.EndMS != 0 {
		var err error
		if minNS, maxNS, err = span(req.StartMS, req.EndMS); err != nil {
			return nil, err
		}
	}
	ctx, view, done, err := e.view(ctx, req.Tenant, req.StartMS, req.EndMS, minNS, maxNS)
	if err != nil {
		return nil, err
	}
	defer done()
	return e.once(req.Tenant, view, func(p *pass) error {
		return p.each(ctx, func(src block.Source) error {
			series, err := src.Series()
			if err != nil {
				return err
			}
			for i := range series {
				if len(req.AnyOf) == 0 || slices.ContainsFunc(req.AnyOf, func(m []*labels.Matcher) bool {
					return matches(series[i].Labels, m)
				}) {
					f(src, &series[i])
				}
			}
			return nil
		})
	})
}

// ProfileTypes returns the profile types, sorted.
func (e *Engine) ProfileTypes(ctx context.Context, req *profiles.LabelsRequest) ([]profiles.Type, []error, error) {
	found := map[profiles.Type]bool{}
	warnings, err := e.each(ctx, req, func(src block.Source, s *block.Series) { found[src.Types()[s.Type]] = true })
	types := slices.SortedFunc(maps.Keys(found), func(a, b profiles.Type) int {
		return bytes.Compare([]byte(a.String()), []byte(b.String()))
	})
	return types, warnings, err
}

// LabelNames returns the label names, sorted.
func (e *Engine) LabelNames(ctx context.Context, req *profiles.LabelsRequest) ([]string, []error, error) {
	found := map[string]bool{}
	warnings, err := e.each(ctx, req, func(_ block.Source, s *block.Series) {
		for name := range labelenc.All(s.Labels) {
			if !found[string(name)] {
				found[string(name)] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found)), warnings, err
}

// LabelValues returns the values of the label req.LabelFor, sorted.
func (e *Engine) LabelValues(ctx context.Context, req *profiles.LabelsRequest) ([]string, []error, error) {
	found := map[string]bool{}
	warnings, err := e.each(ctx, req, func(_ block.Source, s *block.Series) {
		if v := labelenc.Value(s.Labels, req.LabelFor); len(v) > 0 && !found[string(v)] {
			found[string(v)] = true
		}
	})
	return slices.Sorted(maps.Keys(found)), warnings, err
}

// Series returns the distinct label sets, encoded and sorted. They have only the labels of
// req.Names; all labels if that is empty.
func (e *Engine) Series(ctx context.Context, req *profiles.LabelsRequest) ([][]byte, []error, error) {
	found := map[string]bool{}
	var cut []byte
	warnings, err := e.each(ctx, req, func(_ block.Source, s *block.Series) {
		cut = cut[:0]
		for set := s.Labels; len(set) > 0; {
			name, _, rest, err := labelenc.Next(set)
			if err != nil {
				return
			}
			if len(req.Names) == 0 || slices.Contains(req.Names, string(name)) {
				cut = append(cut, set[:len(set)-len(rest)]...)
			}
			set = rest
		}
		if len(cut) > 0 && !found[string(cut)] {
			found[string(cut)] = true
		}
	})
	sets := make([][]byte, 0, len(found))
	for set := range found {
		sets = append(sets, []byte(set))
	}
	slices.SortFunc(sets, labelenc.Compare)
	return sets, warnings, err
}

// Analyze returns the amount of data that a query of profiles of all types would read.
func (e *Engine) Analyze(ctx context.Context, req *profiles.LabelsRequest) (a profiles.Analysis, warnings []error,
	err error) {
	found, seen := map[string]bool{}, map[block.Source]bool{}
	warnings, err = e.each(ctx, req, func(src block.Source, s *block.Series) {
		found[string(s.Labels)] = true
		if seen[src] {
			return
		}
		seen[src] = true
		if b, ok := src.(interface {
			Meta() block.Meta
			IndexBytes() int64
			SymbolsBytes() int64
		}); ok {
			meta := b.Meta()
			a.Blocks, a.Profiles = a.Blocks+1, a.Profiles+int(meta.Profiles)
			a.IndexBytes, a.RowsBytes, a.SymbolsBytes = a.IndexBytes+b.IndexBytes(), a.RowsBytes+int64(meta.RowsBytes),
				a.SymbolsBytes+b.SymbolsBytes()
			return
		}
		a.Profiles += src.Rows()
	})
	a.Series = len(found)
	return a, warnings, err
}
