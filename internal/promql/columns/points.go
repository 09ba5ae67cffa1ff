package columns

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
)

// errGiveUp ends an evaluation: Prometheus' engine must evaluate the query. Its text is the
// reported reason.
type errGiveUp string

func (e errGiveUp) Error() string { return "not evaluated by columns: " + string(e) }

// errNeedSamples ends an evaluation from encoded chunks: the samples must be read through
// Prometheus' iterators, which merge overlapping chunks.
var errNeedSamples = errors.New("chunks that only Prometheus' iterators can read")

// errReadTwice reports a bug of this package.
var errReadTwice = errors.New("a selector is read that was not selected, or for the second time")

// source reads the series of selectors from the storage. sel returns the series of one selector.
type source interface {
	// Of a chunk that cover does not need it reads no samples; nil: it reads all chunks.
	sel(ctx context.Context, s *selector, cover *cover) pointsSet
	close() error
}

// pointsSet is a stream of series, in the order in which Prometheus' engine gets them.
type pointsSet interface {
	next() bool
	labels() (labels.Labels, error)
	// points appends the samples of the current series from mint to maxt (ms, inclusive), stale markers included. It may
	// append samples outside that range, too.
	points(to *decoded, mint, maxt int64) error
	// series returns the current series after points returned errHistograms.
	series() storage.Series
	err() error
	warnings() annotations.Annotations
}

// pointsMax is the limit of points of a series that are decoded at once. A chunk of a constant value has four
// samples per byte, so a small series may have very many points. A series with more than pointsMax points is read
// through its iterator, window by window, like a series with histograms.
const pointsMax = 4 << 20

// samplesSource reads series through storage.Querier. It supports every storage and all samples.
//
// Like Prometheus' engine it calls Select for all selectors before it reads the first series, so that remote
// endpoints are requested concurrently. Some of these endpoints allow no later selection.
type samplesSource struct {
	querier  storage.Querier
	selected map[*parser.VectorSelector]pointsSet
}

func newSamplesSource(ev *evaluation, querier storage.Querier, all []selector) samplesSource {
	s := samplesSource{querier, make(map[*parser.VectorSelector]pointsSet, len(all))}
	floats, _ := querier.(series.FloatsSelector)
	for i := range all {
		of := &all[i]
		if floats != nil {
			need := series.Needs{Steps: of.steps}
			if of.window != nil {
				need.Summaries = of.cover(ev, of.window.perSeries(ev)).summaries()
			}
			set := floats.SelectFloats(ev.ctx, need, of.hints, of.vs.LabelMatchers...)
			s.selected[of.vs] = &floatsSet{samplesSet: samplesSet{SeriesSet: set}, floats: set}
			continue
		}
		s.selected[of.vs] = &samplesSet{SeriesSet: querier.Select(ev.ctx, false, of.hints, of.vs.LabelMatchers...)}
	}
	return s
}

func (s samplesSource) close() error { return s.querier.Close() }

// sel implements source. It returns the series of the selection that newSamplesSource has made.
func (s samplesSource) sel(_ context.Context, of *selector, c *cover) pointsSet {
	set := s.selected[of.vs]
	if set == nil {
		return &samplesSet{SeriesSet: storage.ErrSeriesSet(errReadTwice)}
	}
	delete(s.selected, of.vs)
	if set, ok := set.(*floatsSet); ok {
		set.cover = c
	}
	return set
}

// floatsSet is a samplesSet that decodes all samples of a series in one call.
type floatsSet struct {
	samplesSet
	floats series.FloatsSet
	cover  *cover
}

func (s *floatsSet) points(to *decoded, mint, maxt int64) error {
	return appendFloats(to, s.floats.AtFloats(), s.cover, mint, maxt)
}

// appendFloats appends the samples of a series, or returns errHistograms. Of chunks that are summaries where c needs
// samples, Prometheus' engine reads the samples.
func appendFloats(to *decoded, from series.Floats, c *cover, mint, maxt int64) error {
	if chunks := from.Summarized(); chunks != nil {
		for i := range chunks {
			if one := &chunks[i]; one.Encoding == series.Summarized && (c == nil || !c.enough(one)) {
				return errGiveUp("summaries")
			}
		}
		err := c.decode(to, chunks, mint, maxt)
		if errors.Is(err, errNeedSamples) {
			err = errGiveUp("summaries")
		}
		return err
	}
	var ok bool
	var err error
	if to.points, ok, err = from.AppendFloats(to.points, mint, maxt); err == nil && !ok {
		err = errHistograms
	}
	return err
}

// samplesSet reads the samples of a series through the iterator of the series.
type samplesSet struct {
	storage.SeriesSet
	current storage.Series
	iter    chunkenc.Iterator
}

func (s *samplesSet) next() bool {
	if !s.Next() {
		return false
	}
	s.current = s.At()
	return true
}

func (s *samplesSet) labels() (labels.Labels, error) { return s.current.Labels(), nil }

func (s *samplesSet) points(to *decoded, mint, maxt int64) error {
	s.iter = s.current.Iterator(s.iter)
	for kind := s.iter.Seek(mint); kind != chunkenc.ValNone; kind = s.iter.Next() {
		if kind != chunkenc.ValFloat || len(to.points) == pointsMax {
			return errHistograms
		}
		t, f := s.iter.At()
		if t > maxt {
			break
		}
		to.points = append(to.points, promql.FPoint{T: t, F: f})
	}
	return s.iter.Err()
}

func (s *samplesSet) series() storage.Series { return s.current }

func (s *samplesSet) err() error { return expanding(s.Err()) }

// expanding returns Prometheus' error for a selection that failed.
func expanding(err error) error {
	if err != nil {
		return fmt.Errorf("expanding series: %w", err)
	}
	return nil
}

func (s *samplesSet) warnings() annotations.Annotations { return s.Warnings() }
