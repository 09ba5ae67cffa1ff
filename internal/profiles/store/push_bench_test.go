package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// bigProfile has 200 samples of depth 8 to 40 over 600 functions.
func bigProfile(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"}},
		PeriodType: &googlepprof.ValueType{Type: "space", Unit: "bytes"}, Period: 512 << 10,
	}
	for i := range 600 {
		fn := &googlepprof.Function{ID: uint64(i + 1), Name: fmt.Sprintf("github.com/example/project/internal/package%02d.(*Type%02d).Method%03d", i%37, i%53, i), Filename: fmt.Sprintf("/src/file%d.go", i%53)}
		fn.SystemName = fn.Name
		p.Function = append(p.Function, fn)
		p.Location = append(p.Location, &googlepprof.Location{ID: uint64(i + 1), Line: []googlepprof.Line{{Function: fn, Line: int64(i)}}})
	}
	pool := rand.New(rand.NewPCG(9, 9))
	for range 200 {
		s := &googlepprof.Sample{Value: []int64{1 + r.Int64N(1000), 1 + r.Int64N(1<<20)}}
		fn := pool.IntN(4)
		for range 8 + pool.IntN(33) {
			s.Location = append(s.Location, p.Location[fn])
			fn = (fn*7 + 1 + pool.IntN(3)*pool.IntN(3)) % 600
		}
		for i, j := 0, len(s.Location)-1; i < j; i, j = i+1, j-1 {
			s.Location[i], s.Location[j] = s.Location[j], s.Location[i]
		}
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func benchLabels() []byte {
	return labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "memory"), "service_name", "a")
}

func BenchmarkDecode(b *testing.B) {
	raw := bigProfile(1)
	var p pprof.Profile
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Decode(raw, pprof.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPeerParse(b *testing.B) {
	raw := bigProfile(1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := googlepprof.ParseData(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	var p pprof.Profile
	if err := p.Decode(bigProfile(1), pprof.Limits{}); err != nil {
		b.Fatal(err)
	}
	h := newHead(nil)
	pushed := profiles.RawProfile{Labels: benchLabels(), Profile: &p, TimeNS: 1}
	none := func(block.Key, func([]byte)) bool { return false }
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2000 == 0 {
			h = newHead(nil)
		}
		pushed.ID = profiles.ID{byte(i), byte(i >> 8), byte(i >> 16)}
		h.apply(&pushed, 1, none)
	}
}

func BenchmarkAppend(b *testing.B) {
	s, err := New(Options{Dir: b.TempDir(), Retention: -1}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Open(); err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	raw := bigProfile(1)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Append(context.Background(), "t", []profiles.RawProfile{{Labels: benchLabels(), TimeNS: 1, Raw: raw}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend_Concurrent16(b *testing.B) {
	s, err := New(Options{Dir: b.TempDir(), Retention: -1}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Open(); err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var raws [][]byte
	for i := range 100 {
		raws = append(raws, bigProfile(uint64(i)))
	}
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if err := s.Append(context.Background(), "t", []profiles.RawProfile{{Labels: benchLabels(), TimeNS: 1, Raw: raws[i%100]}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
