package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Two services in a block and one, with a further label, in the head.
func labelled(t *testing.T) *Engine {
	t.Helper()
	ctx, s := context.Background(), openStore(t, t.TempDir(), store.Options{Retention: -1})
	push := func(at int64, set []byte) {
		t.Helper()
		raw := cpu(map[string][]string{"a": {"a", "main"}}, map[string]int64{"a": 1})
		must(t, s.Append(ctx, "t", []profiles.RawProfile{{Labels: set, TimeNS: at * 1e6, Raw: raw}}))
	}
	push(epochMS, cpuLabels("shop"))
	push(epochMS, cpuLabels("cart"))
	must(t, s.Flush(ctx))
	push(epochMS+5, labelenc.AppendLabel(cpuLabels("shop"), "zone", "eu"))
	return New(Options{}, s)
}

func texts(t *testing.T, sets [][]byte) (all []string) {
	t.Helper()
	var b labels.ScratchBuilder
	for _, set := range sets {
		l, err := labelenc.Labels(set, &b)
		must(t, err)
		all = append(all, l.String())
	}
	return all
}

func TestEngine_ListsTypesNamesValuesAndSeries(t *testing.T) {
	e, ctx := labelled(t), context.Background()
	equal := func(name, value string) []*labels.Matcher {
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, name, value)}
	}
	for name, tt := range map[string]struct {
		req    profiles.LabelsRequest
		values []string // of service_name
		zones  []string
		series []string // reduced to service_name and zone
	}{
		"all":            {profiles.LabelsRequest{}, []string{"cart", "shop"}, []string{"eu"}, []string{`{service_name="cart"}`, `{service_name="shop"}`, `{service_name="shop", zone="eu"}`}},
		"one":            {profiles.LabelsRequest{AnyOf: [][]*labels.Matcher{equal("service_name", "cart")}}, []string{"cart"}, nil, []string{`{service_name="cart"}`}},
		"either":         {profiles.LabelsRequest{AnyOf: [][]*labels.Matcher{equal("service_name", "cart"), equal("zone", "eu")}}, []string{"cart", "shop"}, []string{"eu"}, []string{`{service_name="cart"}`, `{service_name="shop", zone="eu"}`}},
		"both":           {profiles.LabelsRequest{AnyOf: [][]*labels.Matcher{append(equal("service_name", "cart"), equal("zone", "eu")...)}}, nil, nil, nil},
		"a later range":  {profiles.LabelsRequest{StartMS: epochMS + 5, EndMS: epochMS + 9}, []string{"shop"}, []string{"eu"}, []string{`{service_name="shop", zone="eu"}`}},
		"an early range": {profiles.LabelsRequest{StartMS: epochMS - 9, EndMS: epochMS - 1}, nil, nil, nil},
	} {
		req := tt.req
		req.Tenant, req.LabelFor, req.Names = "t", "service_name", []string{"service_name", "zone"}
		values, warnings, err := e.LabelValues(ctx, &req)
		if !slices.Equal(values, tt.values) || err != nil || len(warnings) > 0 {
			t.Errorf("%s: services %q, %v", name, values, err)
		}
		if req.LabelFor = "zone"; true {
			if values, _, err := e.LabelValues(ctx, &req); !slices.Equal(values, tt.zones) || err != nil {
				t.Errorf("%s: zones %q, %v", name, values, err)
			}
		}
		sets, _, err := e.Series(ctx, &req)
		if got := texts(t, sets); !slices.Equal(got, tt.series) || err != nil {
			t.Errorf("%s: series %q, %v", name, got, err)
		}
		req.Names = []string{"missing"}
		if sets, _, err := e.Series(ctx, &req); len(sets) != 0 || err != nil {
			t.Errorf("%s: series without labels %q, %v", name, sets, err)
		}
		names, _, err := e.LabelNames(ctx, &req)
		if slices.Contains(names, "zone") != (tt.zones != nil) || slices.Contains(names, "service_name") != (tt.values != nil) || !slices.IsSorted(names) || err != nil {
			t.Errorf("%s: names %q, %v", name, names, err)
		}
		types, _, err := e.ProfileTypes(ctx, &req)
		var got []string
		for _, typ := range types {
			got = append(got, typ.String())
		}
		if want := []string{"process_cpu:cpu:nanoseconds:cpu:nanoseconds", "process_cpu:samples:count:cpu:nanoseconds"}; err != nil || tt.values != nil && !slices.Equal(got, want) || tt.values == nil && got != nil {
			t.Errorf("%s: types %q, %v", name, got, err)
		}
	}
}

func TestEngine_SeriesWithoutNamesHaveAllLabels(t *testing.T) {
	e := labelled(t)
	sets, _, err := e.Series(context.Background(), &profiles.LabelsRequest{Tenant: "t"})
	if err != nil || len(sets) != 6 { // two types of each
		t.Errorf("%q, %v", sets, err)
	}
	for _, set := range texts(t, sets) {
		if set[0] != '{' || len(set) < 60 {
			t.Errorf("%s", set)
		}
	}
}

func TestEngine_AnalyzeCountsWhatAQueryReads(t *testing.T) {
	e := labelled(t)
	a, warnings, err := e.Analyze(context.Background(), &profiles.LabelsRequest{Tenant: "t"})
	if err != nil || len(warnings) > 0 || a.Blocks != 1 || a.Series != 6 || a.IndexBytes <= 0 || a.RowsBytes <= 0 || a.SymbolsBytes <= 0 {
		t.Errorf("%+v, %v, %v", a, warnings, err)
	}
	head, _, err := e.Analyze(context.Background(), &profiles.LabelsRequest{Tenant: "t", StartMS: epochMS + 5, EndMS: epochMS + 5})
	if err != nil || head.Blocks != 0 || head.Series != 2 || head.Profiles <= 0 || head.IndexBytes != 0 {
		t.Errorf("%+v, %v", head, err)
	}
	if a.Profiles <= head.Profiles {
		t.Errorf("%d profiles, %d of them in the head", a.Profiles, head.Profiles)
	}
}

// noView fails to open a view.
type noView struct{ Viewer }

func (noView) View(context.Context, string, int64, int64) (*store.View, error) {
	return nil, profiles.ErrUnavailable
}

func TestEngine_ListsFailWithTheStoreOrABadRange(t *testing.T) {
	ctx := context.Background()
	for name, tt := range map[string]struct {
		e    *Engine
		req  profiles.LabelsRequest
		want error
	}{
		"no view":     {New(Options{}, noView{}), profiles.LabelsRequest{Tenant: "t"}, profiles.ErrUnavailable},
		"a bad range": {New(Options{}, noView{}), profiles.LabelsRequest{Tenant: "t", StartMS: 5, EndMS: 4}, profiles.ErrBadRequest},
	} {
		_, _, types := tt.e.ProfileTypes(ctx, &tt.req)
		_, _, names := tt.e.LabelNames(ctx, &tt.req)
		_, _, values := tt.e.LabelValues(ctx, &tt.req)
		_, _, series := tt.e.Series(ctx, &tt.req)
		_, _, analysis := tt.e.Analyze(ctx, &tt.req)
		for i, err := range []error{types, names, values, series, analysis} {
			if !errors.Is(err, tt.want) {
				t.Errorf("%s, %s: %v", name, fmt.Sprint("call ", i), err)
			}
		}
	}
}
