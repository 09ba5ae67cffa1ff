package tsdb

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	// seriesPerStripe is the number of series up to which Go keeps a map in one group, without a table: an append by
	// reference then takes a third less CPU. With 16 it costs as much as with 64.
	seriesPerStripe = 8
	stripesMin      = 1 << 10 // 250 KB
	stripesMax      = 1 << 20 // for 8 million series; the stripes take 250 MB, the series 8 GB
	// guessedSeriesMax limits a guess by the configuration or the log: its stripes take 28 MB.
	guessedSeriesMax = 1 << 20
	// loggedBytesPerSeries is the size of the log for a series after about thirty samples.
	loggedBytesPerSeries = 200
)

// stripes returns the number of stripes of the head, which is set before the log is read and cannot change later. The
// newest block tells how many series the head has, up to two hours ago. Without blocks the size of the log and
// ExpectedSeries are guesses: too many stripes take memory, too few take CPU until the next start.
func (s *Store) stripes() int {
	series := newestBlockSeries(s.opts.Dir)
	if series == 0 {
		var logged int64
		for _, bytes := range s.logBytes() {
			logged += bytes
		}
		series = min(guessedSeriesMax, max(uint64(s.opts.ExpectedSeries), uint64(logged/loggedBytesPerSeries)))
	}
	stripes := stripesMin
	for stripes < stripesMax && uint64(stripes)*seriesPerStripe < series {
		stripes *= 2
	}
	return stripes
}

// newestBlockSeries returns the number of series of the block that ends last; 0 if there is no block.
func newestBlockSeries(dir string) (series uint64) {
	entries, _ := os.ReadDir(dir) // there is no database yet, or tsdb.Open returns the error
	var newest int64
	for _, e := range entries {
		var meta tsdb.BlockMeta
		if _, err := ulid.ParseStrict(e.Name()); err != nil {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name(), "meta.json"))
		if err != nil || json.Unmarshal(content, &meta) != nil || meta.MaxTime < newest {
			continue // tsdb.Open reports a block that cannot be read
		}
		if meta.MaxTime > newest {
			newest, series = meta.MaxTime, 0
		}
		series = max(series, meta.Stats.NumSeries)
	}
	return series
}
