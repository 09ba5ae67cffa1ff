package httpapi

import (
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func TestStoreParams_AreThoseOfTheRequestOrTheDefaults(t *testing.T) {
	a := &API{opts: Options{Parser: parser.NewParser(parser.Options{}), StoreDefaults: StoreDefaults{
		ReplicaLabels: []string{"replica"}, Partial: true, AutoDownsampling: true,
	}}}
	all := purpose{dedup: true, resolution: 7 * time.Minute, samples: true}
	for _, one := range []struct {
		query string
		f     purpose
		want  fanout.Request
	}{
		{"", all, fanout.Request{ReplicaLabels: []string{"replica"}, MaxResolutionMS: 420_000}},
		{"max_source_resolution=auto", all, fanout.Request{ReplicaLabels: []string{"replica"}, MaxResolutionMS: 420_000}},
		{"max_source_resolution=0s", all, fanout.Request{ReplicaLabels: []string{"replica"}}},
		{"max_source_resolution=1h&partial_response=false", all, fanout.Request{AbortOnPartial: true, ReplicaLabels: []string{"replica"}, MaxResolutionMS: 3_600_000}},
		{"max_source_resolution=3600.5", all, fanout.Request{ReplicaLabels: []string{"replica"}, MaxResolutionMS: 3_600_500}},
		{"dedup=false&replicaLabels[]=a", all, fanout.Request{MaxResolutionMS: 420_000}},
		{"replicaLabels[]=a&replicaLabels[]=b", all, fanout.Request{ReplicaLabels: []string{"a", "b"}, MaxResolutionMS: 420_000}},
		{"replicaLabels[]=a&max_source_resolution=1h&engine=none", purpose{}, fanout.Request{}},
		{`engine=prometheus&shard_info={"shard_index":1,"total_shards":2,"by":true,"labels":["x"]}`, all, fanout.Request{
			ReplicaLabels: []string{"replica"}, MaxResolutionMS: 420_000, Shard: &storeapi.Shard{Index: 1, Total: 2, By: true, Labels: []string{"x"}},
		}},
		{`shard_info={"shard_index":0,"total_shards":0}`, all, fanout.Request{ReplicaLabels: []string{"replica"}, MaxResolutionMS: 420_000}},
		{"engine=thanos", purpose{samples: true, plan: true}, fanout.Request{}},
	} {
		got, err := a.storeParamsOf(t, one.query, one.f)
		if err != nil || !reflect.DeepEqual(got, one.want) {
			t.Errorf("%q: %+v, %v, want %+v", one.query, got, err, one.want)
		}
	}
	for query, text := range map[string]string{
		"max_source_resolution=-1s":    "max_source_resolution",
		"max_source_resolution=-0.001": "negative resolutions",
		"max_source_resolution=x":      "max_source_resolution",
		"engine=thanos":                "not supported",
		"engine=x":                     "'x' bad engine",
		"dedup=x":                      "dedup",
		"partial_response=x":           "partial_response",
		"storeMatch[]=%7B":             "storeMatch[]",
		"shard_info={":                 "shard_info",
		`shard_info={"shard_index":2,"total_shards":2}`:      "shard_index 2 is not in 0..1",
		`shard_info={"shard_index":-1,"total_shards":2}`:     "shard_index -1 is not in 0..1",
		"shard_info=" + strings.Repeat("+", shardMax) + "{}": "more than 65536 bytes",
	} {
		if _, err := a.storeParamsOf(t, query, all); err == nil || err.kind != kindBadData || !strings.Contains(err.err.Error(), text) {
			t.Errorf("%.100q: %v, want an error with %q", query, err, text)
		}
	}
}

func TestStoreParams_ResolutionIsRawWithoutAutoDownsampling(t *testing.T) {
	a := &API{}
	for query, want := range map[string]int64{"": 0, "max_source_resolution=auto": 60_000, "max_source_resolution=5m": 300_000} {
		if got, err := a.storeParamsOf(t, query, purpose{samples: true, resolution: time.Minute}); err != nil || got.MaxResolutionMS != want {
			t.Errorf("%q: %d, %v, want %d", query, got.MaxResolutionMS, err, want)
		}
	}
}

// storeParamsOf parses the store parameters of a GET request.
func (a *API) storeParamsOf(t *testing.T, query string, f purpose) (fanout.Request, *apiError) {
	t.Helper()
	r := httptest.NewRequest("GET", "/api/v1/query", nil)
	r.URL.RawQuery = strings.NewReplacer(`"`, "%22", "{", "%7B", "}", "%7D", "[", "%5B", "]", "%5D").Replace(query)
	if err := r.ParseForm(); err != nil {
		t.Fatal(err)
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		t.Fatal(err)
	}
	return a.storeParams(r, f)
}
