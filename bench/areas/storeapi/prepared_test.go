package storeapi

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func TestPrepare_StoresSendEverySampleOfTheSpec(t *testing.T) {
	spec := blocks.Spec{Metric: "m", Values: blocks.Floats15, Series: 25, Samples: 250, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1}
	all, err := prepare(spec)
	if err != nil {
		t.Fatal(err)
	}
	address, stop, err := servePrepared(&preparedSource{series: all, external: labels.FromStrings("store", "a"), times: storeapi.TimeRange{MaxMS: 1}}, storeDelay)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := storeapi.NewClient(conn, storeapi.ClientOptions{})
	begun := time.Now()
	for store, want := range map[string]int{"a": spec.Series, "b": 0} {
		set := client.Series(t.Context(), storeapi.SeriesRequest{MinMS: spec.StartMS, MaxMS: spec.EndMS(), Matchers: []*labels.Matcher{
			labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"), labels.MustNewMatcher(labels.MatchEqual, "store", store),
		}})
		series := 0
		for ; set.Next(); series++ {
			samples := 0
			for _, c := range set.Chunks() {
				chunk, err := chunkenc.FromData(c.Encoding, c.Data)
				if err != nil {
					t.Fatal(err)
				}
				samples += chunk.NumSamples()
			}
			if samples != spec.Samples {
				t.Errorf("%q has %d samples", set.Labels(), samples)
			}
		}
		if set.Err() != nil || series != want {
			t.Errorf("store %s: %d series, want %d, %v", store, series, want, set.Err())
		}
		_ = set.Close()
	}
	if took := time.Since(begun); took < 2*storeDelay {
		t.Errorf("two responses took %v, less than their delays", took)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
