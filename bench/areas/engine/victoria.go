package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	importSeries = 50   // in one request
	tolerance    = 1e-9 // relative: VictoriaMetrics stores values as decimals
)

// overVictoria imports the samples into VictoriaMetrics, compares its responses with Prometheus' and measures three queries.
func overVictoria(ctx context.Context, b *area.Bench, prometheus *area.Side) (err error) {
	s, err := b.SideOf(ctx, victoria, peer.Victoria, peer.Victoria)
	if err != nil {
		return err
	}
	launch := func(s *area.Side) (proc.Spec, error) {
		return s.Program.Single(s.Log(), s.TSDBDir(), "-search.disableCache"), os.RemoveAll(s.Dir)
	}
	return b.With(ctx, launch, func() error {
		if err := importAll(ctx, s.Server, spec()); err != nil {
			return err
		}
		err := b.With(ctx, b.TSDB(ctx, area.TSDB{Data: spec()}), func() error {
			for _, q := range third {
				if err := alike(ctx, prometheus, s, q); err != nil {
					return err
				}
				b.Logf("VictoriaMetrics responds alike: %s", q.What)
			}
			return nil
		}, prometheus)
		if err != nil {
			return err
		}
		return b.EachRound(victoria, func(round int) error {
			for _, q := range third {
				if err := measureOne(ctx, b, round, s, q); err != nil {
					return err
				}
			}
			return nil
		})
	}, s)
}

// importAll sends all samples of the data and makes them visible.
func importAll(ctx context.Context, server *proc.Server, data blocks.Spec) error {
	post := func(path string, body []byte) error {
		_, err := server.Get(ctx, proc.Request{Path: path, Body: body}, io.Discard)
		return err
	}
	var body bytes.Buffer
	for i := range data.Series {
		text, err := json.Marshal(map[string]any{
			"metric": data.Labels(i), "values": blocks.SpecSequence(data, i, data.Samples), "timestamps": data.Times(i),
		})
		if err != nil {
			return err
		}
		body.Write(append(text, '\n'))
		if (i+1)%importSeries == 0 || i+1 == data.Series {
			if err := post("/api/v1/import", body.Bytes()); err != nil {
				return err
			}
			body.Reset()
		}
	}
	for _, path := range []string{"/internal/force_flush", "/internal/force_merge"} {
		if err := post(path, []byte{}); err != nil {
			return err
		}
	}
	return nil
}

// alike compares VictoriaMetrics' response with Prometheus'. Values of rate() differ by definition and are not compared; those of
// count() must be the same.
func alike(ctx context.Context, theirs, others *area.Side, q query) error {
	var both [2]model.Matrix
	for i, from := range []*area.Side{theirs, others} {
		body, _, err := from.Fetch(ctx, q.request())
		if err == nil {
			both[i], err = area.DecodeMatrix(body)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", from.Name, q.What, err)
		}
	}
	allowed := map[string]float64{sumRate().What: math.Inf(1), count().What: 0, sumOverTime().What: tolerance}[q.What]
	return area.SameMatrix(q.What+" of VictoriaMetrics", both[1], both[0], allowed)
}
