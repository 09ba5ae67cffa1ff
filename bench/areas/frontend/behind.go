package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// querierStages are the stages of a request in Thanos' querier, by the functions in a profile; the innermost one that
// matches counts.
var querierStages = []proc.Stage{
	stages[0], // collect garbage
	{Name: "compress", In: []string{"flate.(*Writer)", "flate.(*compressor)", "gzip.(*Writer)"}},
	{Name: "write", In: []string{"net/http.(*response).Write", "net/http.(*response).finishRequest", "net/http.(*chunkWriter)"}},
	{Name: "encode", In: []string{"json-iterator/go.", "encoding/json.", "JSONCodec", "pkg/api.Respond"}},
	{Name: "decode chunks", In: []string{"tsdb/chunkenc.", "query.newChunkSeriesIterator", "query.(*chunkSeriesIterator)"}},
	{Name: "fetch", In: []string{"google.golang.org/grpc", "golang.org/x/net/http2", "store/storepb", "pkg/store.", "pkg/query.(*querier)", "pkg/query.(*seriesServer)", "pkg/dedup."}},
	{Name: "evaluate", In: []string{"promql.(*Engine)", "promql.(*evaluator)", "promql-engine"}},
}

// behindThanos measures the stages of the real query in the frontend and in the querier, in front of Thanos' querier with a
// sidecar of Thanos and a Prometheus behind it.
func (b *bench) behindThanos(ctx context.Context) (err error) {
	prometheus, err := b.prometheus(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prometheus.Stop()) }()
	var addresses [2]string
	for i := range addresses {
		if addresses[i], err = peer.FreeAddress(); err != nil {
			return err
		}
	}
	log := func(name string) string { return filepath.Join(b.dir, "behind", name+".log") }
	sidecar, err := proc.Start(ctx, b.programs.thanos.Sidecar(peer.Sidecar{
		Prometheus: prometheus.URL(), TSDB: b.prometheusData(), GRPC: addresses[0], Log: log("sidecar"),
	}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sidecar.Stop()) }()
	querier, err := proc.Start(ctx, b.programs.thanos.Query(peer.Query{Endpoints: addresses[:1], GRPC: addresses[1], Log: log("query")}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, querier.Stop()) }()
	if err := awaitSeries(ctx, querier); err != nil {
		return err
	}
	return b.query(ctx, backend{name: "behind", what: "behind Thanos query", server: querier, querier: true}, func(direct time.Duration, _ int) string {
		return fmt.Sprintf("Rows with \"behind Thanos query\": the same query in front of thanos query, with thanos sidecar and Prometheus behind it; the querier itself takes %.2g s for the whole query, without gzip. Its responses end with an empty member \"analysis\", which neither frontend forwards and which is not compared. Its rows differ by the frontend in front of it: Thanos' frontend requests gzip, ferula's does not.", direct.Seconds())
	})
}

// withoutAnalysis removes the empty analysis that thanos query appends to the data of every response. Neither frontend forwards
// it.
func withoutAnalysis(response []byte) []byte {
	if rest, ok := bytes.CutSuffix(response, []byte(`,"analysis":{}}}`)); ok {
		return append(rest, "}}"...)
	}
	return response
}

// awaitSeries waits until a querier has discovered its store. Before that, its responses have no series.
func awaitSeries(ctx context.Context, querier *proc.Server) error {
	req := proc.Request{Path: "/api/v1/query_range", Query: realParams(realEndMS, realEndMS)}
	for range 100 {
		if body, _, err := querier.Fetch(ctx, req); err == nil && len(body) > series {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return errors.New("the querier has not discovered its store")
}
