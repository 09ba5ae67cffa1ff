package api

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestServer_SpanExemplarsAreTheGreatestSpansOfTheirSteps(t *testing.T) {
	s, err := store.New(store.Options{Dir: t.TempDir(), Retention: -1}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	must(t, err)
	must(t, s.Open())
	defer func() { must(t, s.Close()) }()
	push := func(ms int64, spans ...string) {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1e7)
		for i, span := range spans {
			e.LabelledSample([]uint64{e.Location(e.Function("main", "", "", 0), 1)}, [][2]string{{"span_id", span},
				{"trace_id", "0102030405060708090a0b0c0d0e0f10"}}, int64(10*(i+1)))
		}
		if len(spans) == 0 {
			e.Sample([]uint64{e.Location(e.Function("main", "", "", 0), 1)}, 5)
		}
		set := labelenc.AppendLabel(labelenc.AppendLabel(nil, profiles.LabelName, "process_cpu"), "pod", "x")
		must(t, s.Append(context.Background(), AnonymousTenant, []profiles.RawProfile{{TimeNS: ms * 1e6, ID: profiles.ID{15: 1},
			Labels: labelenc.AppendLabel(set, profiles.LabelService, "shop"), Raw: e.Append(nil)}}))
	}
	const ms = 1_700_000_000_000
	push(ms+1000, "00000000000000aa", "00000000000000bb")
	push(ms + 16_000)
	mux := http.NewServeMux()
	New(Options{}, nil, query.New(query.Options{}, s)).Register(mux, "", nil)
	server := httptest.NewServer(mux)
	defer server.Close()
	request := fmt.Sprintf(`"profileTypeID":%q,"labelSelector":"{}","start":"%d","end":"%d","step":15,"groupBy":["service_name"],"exemplarType":"EXEMPLAR_TYPE_SPAN"`,
		cpu, ms+15_000, ms+30_000)
	status, body := post(t, server.URL+querierPath+"SelectSeries", "{"+request+"}")
	want := `{"series":[{"labels":[{"name":"service_name","value":"shop"}],"points":[` +
		`{"value":30,"timestamp":"1700000015000","exemplars":[{"timestamp":"1700000001000","profileId":"` + firstID +
		`","spanId":"00000000000000bb","value":"20","labels":[{"name":"__name__","value":"process_cpu"},{"name":"pod","value":"x"}],` +
		`"traceId":"0102030405060708090a0b0c0d0e0f10"}]},{"value":5,"timestamp":"1700000030000"}]}]}`
	if status != http.StatusOK || body != want {
		t.Errorf("got %d %s\nwant %s", status, body, want)
	}
	status, body = post(t, server.URL+querierPath+"SelectSeries", `{`+request+`,"stackTraceSelector":{"callSite":[{"name":"main"}]}}`)
	if status != http.StatusBadRequest {
		t.Errorf("call site: got %d %s", status, body)
	}
}
