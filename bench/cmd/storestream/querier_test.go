package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
)

// fileOf writes a file of series with two chunks each.
func fileOf(t *testing.T, n int) (path string, list []streams.Series) {
	t.Helper()
	for i := range n {
		s := streams.Series{Labels: []streams.Label{{Name: "__name__", Value: "up"}, {Name: "instance", Value: fmt.Sprintf("%05d", i)}}}
		for c := range int64(2) {
			chunk := chunkenc.NewXORChunk()
			app, err := chunk.Appender()
			if err != nil {
				t.Fatal(err)
			}
			for j := range int64(10) {
				app.Append(0, c*1000+j*15, float64(i)+float64(j)/7)
			}
			s.Chunks = append(s.Chunks, streams.Chunk{MinMS: c * 1000, MaxMS: c*1000 + 9*15, Encoding: byte(chunk.Encoding()), Data: chunk.Bytes()})
		}
		list = append(list, s)
	}
	path = filepath.Join(t.TempDir(), "series")
	if err := streams.Write(path, list); err != nil {
		t.Fatal(err)
	}
	return path, list
}

func digestOf(list []streams.Series) string {
	d := streams.Digest{Hash: sha256.New()}
	for _, s := range list {
		for _, l := range s.Labels {
			d.Label(l.Name, l.Value)
		}
		for _, c := range s.Chunks {
			d.Chunk(c.MinMS, c.MaxMS, c.Encoding, c.Data)
		}
		d.End()
	}
	return d.String()
}

func TestWorker_TheQuerierHoldsWhatTheFileHas(t *testing.T) {
	path, list := fileOf(t, 300)
	w := &worker{}
	f, err := w.do(streams.Task{File: path, Series: len(list), Check: true, Querier: true})
	if err != nil || f.Digest != digestOf(list) {
		t.Errorf("digest %s, want %s; %v", f.Digest, digestOf(list), err)
	}
	f, err = w.do(streams.Task{File: path, Series: len(list), Querier: true, Repeats: 2})
	if err != nil || f.Mallocs < int64(len(list)) { // the labels of each series are a string of their own
		t.Errorf("%d allocations for %d series; %v", f.Mallocs, len(list), err)
	}
}

func TestKeptDigest_OtherSeriesAreAnError(t *testing.T) {
	path, list := fileOf(t, 3)
	w := &worker{}
	if err := w.load(path); err != nil {
		t.Fatal(err)
	}
	longer := w.series[0]
	longer.Chunks = append(longer.Chunks[:2:2], longer.Chunks[0])
	shorter := w.series[0]
	shorter.Chunks = shorter.Chunks[:1]
	for name, held := range map[string][]stores.Series{
		"a series less": w.series[:2], "a series more": append(w.series[:3:3], w.series[0]),
		"a chunk less": {shorter, w.series[1], w.series[2]}, "a chunk more": {longer, w.series[1], w.series[2]},
	} {
		if _, err := keptDigest(setOf(list), held); !errors.Is(err, errKept) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if digest, err := keptDigest(setOf(list), w.series); err != nil || digest != digestOf(list) {
		t.Errorf("equal series: %s, %v", digest, err)
	}
}

// setOf returns the series of a file as samples.
func setOf(list []streams.Series) storage.SeriesSet {
	var all []storage.Series
	for _, s := range list {
		b := labels.NewScratchBuilder(len(s.Labels))
		for _, l := range s.Labels {
			b.Add(l.Name, l.Value)
		}
		var its []chunkenc.Iterator
		for _, c := range s.Chunks {
			chunk, err := chunkenc.FromData(chunkenc.Encoding(c.Encoding), c.Data)
			if err != nil {
				panic(err) // its encoding is known
			}
			its = append(its, chunk.Iterator(nil))
		}
		all = append(all, &storage.SeriesEntry{Lset: b.Labels(), SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
			return storage.ChainSampleIteratorFromIterators(nil, its)
		}})
	}
	return &setOfSeries{rest: all}
}

type setOfSeries struct {
	storage.SeriesSet
	rest []storage.Series
	at   storage.Series
}

func (s *setOfSeries) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *setOfSeries) At() storage.Series { return s.at }
func (s *setOfSeries) Err() error         { return nil }
