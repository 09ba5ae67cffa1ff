package remoteread

import (
	"fmt"
	"io"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/series"
)

// sampleSource is a response of samples, from a server that cannot stream chunks. The first next decodes it as a whole,
// by Prometheus' client, which sorts the series. Each series is encoded as chunks when it is read.
type sampleSource struct {
	body     io.Closer
	from     io.Reader
	bytesMax int64  // of the response, compressed and decoded
	flag     string // names the flag that raises bytesMax, for errors

	series.Set
}

func (s *sampleSource) next() error {
	if s.Set == nil {
		result, err := decodeSamples(s.from, s.bytesMax, s.flag)
		if err == nil {
			err = checkSamples(result)
		}
		if err != nil {
			return err
		}
		s.Set = series.FromChunkSeriesSet(storage.NewSeriesSetToChunkSet(remote.FromQueryResult(true, result)))
	}
	if s.Next() {
		return nil
	}
	if err := s.Err(); err != nil { // the response is in memory: only its labels or values can be the reason
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return io.EOF
}

// decodeSamples decodes the only result of a response. It estimates the size of the decoded result first: two bytes can
// become a hundred.
func decodeSamples(from io.Reader, bytesMax int64, flag string) (*prompb.QueryResult, error) {
	tooLarge := func(what string, n int64) error {
		return fmt.Errorf("%w: the response has %d bytes%s, the limit is %d%s", ErrLimit, n, what, bytesMax, flag)
	}
	compressed, err := io.ReadAll(io.LimitReader(from, bytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("read a response of samples: %w", err)
	}
	if int64(len(compressed)) > bytesMax {
		return nil, fmt.Errorf("%w: the response has more than %d bytes%s", ErrLimit, bytesMax, flag)
	}
	size, err := snappy.DecodedLen(compressed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if int64(size) > bytesMax {
		return nil, tooLarge(" when decompressed", int64(size))
	}
	plain, err := snappy.Decode(nil, compressed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	encoded, err := onlyResult(plain)
	if err != nil {
		return nil, err
	}
	// A result has its series in the field in which a remote write request has them.
	cost, err := remotewrite.CostV1(encoded, bytesMax)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if cost.Bytes > bytesMax {
		return nil, tooLarge(" or more when decoded", cost.Bytes)
	}
	result := &prompb.QueryResult{}
	if err := result.Unmarshal(encoded); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return result, nil
}

// checkSamples returns an error unless labels are sorted by name, samples by time, and histograms are valid:
// Prometheus' client and its encoder of chunks take them as they are.
func checkSamples(result *prompb.QueryResult) error {
	for _, one := range result.Timeseries {
		for i := 1; i < len(one.Labels); i++ {
			if one.Labels[i-1].Name >= one.Labels[i].Name {
				return fmt.Errorf("%w: label %q follows %q", ErrCorrupt, one.Labels[i].Name, one.Labels[i-1].Name)
			}
		}
		for i := 1; i < len(one.Samples); i++ {
			if before, t := one.Samples[i-1].Timestamp, one.Samples[i].Timestamp; t <= before {
				return fmt.Errorf("%w: series %v: a sample at %d follows one at %d", ErrCorrupt, one.Labels, t, before)
			}
		}
		for i := range one.Histograms {
			h := &one.Histograms[i]
			if i > 0 && h.Timestamp <= one.Histograms[i-1].Timestamp {
				return fmt.Errorf("%w: series %v: a histogram at %d follows one at %d", ErrCorrupt, one.Labels,
					h.Timestamp, one.Histograms[i-1].Timestamp)
			}
			if err := validate(h); err != nil {
				return fmt.Errorf("%w: series %v: histogram at %d: %w", ErrCorrupt, one.Labels, h.Timestamp, err)
			}
		}
	}
	return nil
}

func validate(h *prompb.Histogram) error {
	if h.IsFloatHistogram() {
		return h.ToFloatHistogram().Validate()
	}
	return h.ToIntHistogram().Validate()
}

// ahead implements source: the next series is unknown.
func (*sampleSource) ahead() []byte { return nil }

func (s *sampleSource) close() error { return s.body.Close() }
