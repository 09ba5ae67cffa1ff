package tsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// Estimate returns an upper bound of the series and samples of a selection, from postings and the time ranges of
// chunks; it reads no chunk. mint and maxt are inclusive, in ms. A series counts once for each block and for the head.
// A float chunk is taken to have twice as many samples as the TSDB aims at, where it cuts a chunk at the latest. Chunks
// of native histograms can have more. Samples that are out of order count once they are in a block.
func (s *Store) Estimate(ctx context.Context, mint, maxt int64,
	matchers ...*labels.Matcher) (found, samples int64, err error) {
	db := s.db.Load()
	if db == nil {
		return 0, 0, ErrNotReady
	}
	perChunk := 2 * int64(cmp.Or(s.opts.SamplesPerChunk, tsdb.DefaultSamplesPerChunk))
	// The head first: what it loses to a block afterwards counts twice instead of never.
	ix, err := tsdb.NewRangeHead(db.Head(), mint, maxt).Index()
	if err != nil {
		return 0, 0, err
	}
	found, inRange, err := overlapping(ctx, ix, mint, maxt, matchers)
	if err != nil {
		return 0, 0, fmt.Errorf("head: %w", err)
	}
	samples = inRange * perChunk
	for _, b := range db.Blocks() {
		if !b.OverlapsClosedInterval(mint, maxt) {
			continue
		}
		var inBlock int64
		ix, err := b.Index()
		if errors.Is(err, tsdb.ErrClosing) { // deleted since; a block that replaces it is in a later list
			return s.Estimate(ctx, mint, maxt, matchers...)
		}
		if err == nil {
			inBlock, inRange, err = overlapping(ctx, ix, mint, maxt, matchers)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("block %s: %w", b, err)
		}
		found += inBlock
		samples += min(inRange*perChunk, int64(b.Meta().Stats.NumSamples))
	}
	return found, samples, nil
}

// overlapping counts the series of an index that match and have chunks in the range, and these chunks. It closes the
// index.
func overlapping(ctx context.Context, ix tsdb.IndexReader, mint, maxt int64,
	matchers []*labels.Matcher) (found, inRange int64, err error) {
	defer func() { err = errors.Join(err, ix.Close()) }()
	postings, err := tsdb.PostingsForMatchers(ctx, ix, matchers...)
	if err != nil {
		return 0, 0, err
	}
	var metas []chunks.Meta
	var builder labels.ScratchBuilder
	for seen := 1; postings.Next(); seen++ {
		if seen%1024 == 0 && ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
		switch err := ix.Series(postings.At(), &builder, &metas); {
		case errors.Is(err, storage.ErrNotFound): // the head has removed it
			continue
		case err != nil:
			return 0, 0, err
		}
		before := inRange
		for _, c := range metas {
			if c.OverlapsClosedInterval(mint, maxt) {
				inRange++
			}
		}
		if inRange > before {
			found++
		}
	}
	return found, inRange, postings.Err()
}
