package remoteread

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

// memory measures the growth of memory by the first request to a server that has just started.
func (b *bench) memory(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for _, r := range []read{chunks8h(), samples8h()} {
			for i := range b.sides {
				if err := b.fresh(ctx, round, &b.sides[i], floats, r, "growth of RssAnon: "+r.what); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: memory", round, b.env.Rounds)
	}
	return nil
}

// fresh starts a server, measures the growth of its memory during one request, and stops it. In the first round over the
// large blocks it also records memory over time, for the plot.
func (b *bench) fresh(ctx context.Context, round int, s *side, spec blocks.Spec, r read, what string) (err error) {
	if err := b.serve(ctx, s, spec); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	drawn := line{side: s.name, what: r.what}
	growth, err := s.server.GrowthDuring(ctx, func() error {
		if round > 1 || spec != floats {
			_, err := send(ctx, s.server.URL(), r, nil)
			return err
		}
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			drawn.watch(s.server, stop)
		}()
		_, err := b.sendChecked(ctx, s, r)
		close(stop)
		<-ended
		return err
	})
	if len(drawn.anon) > 0 {
		b.lines = append(b.lines, drawn)
	}
	b.out.Recorder.Add(round, s.name, what, area.Bytes, float64(growth.Bytes()))
	return err
}

// slowBytesPerSecond is the rate of a slow reader: a response of chunks takes it about a minute.
const slowBytesPerSecond = 2 << 20

func manyGrowth(r read) string {
	return fmt.Sprintf("growth of RssAnon: %s, %d readers, half of them slow", r.what, readers)
}

// many measures the growth of memory while many readers read concurrently, half of them slowly. When the fast readers have
// read their responses, the slow ones disconnect. Prometheus is measured with chunks only, because with samples its memory for
// 16 readers exceeds the machine's.
func (b *bench) many(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range b.sides {
			for _, r := range []read{chunks8h(), samples8h()} {
				if r.form == samples && (i == 0 || b.env.Programs.Null) {
					continue
				}
				if err := b.manyOf(ctx, round, &b.sides[i], r); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: memory with %d readers", round, b.env.Rounds, readers)
	}
	return nil
}

func (b *bench) manyOf(ctx context.Context, round int, s *side, r read) (err error) {
	if err := b.serve(ctx, s, floats); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	growth, err := s.server.GrowthDuring(ctx, func() error { return b.readAll(ctx, s, r) })
	b.out.Recorder.Add(round, s.name, manyGrowth(r), area.Bytes, float64(growth.Bytes()))
	return err
}

// readAll reads a response with all readers concurrently. A fast reader must receive the whole response, a slow one a part
// of it.
func (b *bench) readAll(ctx context.Context, s *side, r read) error {
	slow, leave := context.WithCancel(ctx)
	defer leave()
	var fast, all sync.WaitGroup
	errs := make([]error, readers)
	for i := range readers {
		if i%2 == 0 {
			fast.Go(func() { _, errs[i] = b.sendChecked(ctx, s, r) })
			continue
		}
		all.Go(func() {
			a, err := sendAt(slow, s.server.URL(), r, slowBytesPerSecond)
			if slow.Err() != nil { // readAll has ended it
				err = nil
			}
			if err == nil && a.bytes == 0 {
				err = fmt.Errorf("%s: a slow reader: %w", r.what, area.ErrEmpty)
			}
			errs[i] = err
		})
	}
	fast.Wait()
	leave()
	all.Wait()
	return errors.Join(errs...)
}

func growthName(spec blocks.Spec, form string) string {
	return fmt.Sprintf("growth of RssAnon: %s, %d series x %d samples", form, spec.Series, spec.Samples)
}

// growth measures how memory depends on the number of series.
func (b *bench) growth(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for _, spec := range []blocks.Spec{few(), many()} {
			for form, kind := range map[string]prompb.ReadRequest_ResponseType{"chunks": chunks, "samples": samples} {
				for i := range b.sides {
					if err := b.fresh(ctx, round, &b.sides[i], spec, of(spec, "all", kind, spec.StartMS, spec.EndMS()-1), growthName(spec, form)); err != nil {
						return err
					}
				}
			}
		}
		b.env.Logf("round %d of %d: memory by series", round, b.env.Rounds)
	}
	return nil
}

// line is the memory of a server over time, for the plot.
type line struct {
	side, what string
	at         []time.Duration
	anon       []int64
}

func (l *line) watch(s *proc.Server, stop <-chan struct{}) {
	begun, tick := time.Now(), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		if anon, err := s.Anon(); err == nil {
			l.at, l.anon = append(l.at, time.Since(begun)), append(l.anon, anon)
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}
