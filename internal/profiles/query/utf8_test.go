package query

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"unicode/utf8"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// A profile with texts that are not UTF-8 must not break the lists and merges of its tenant: neither JSON nor protobuf can express
// such texts.
func TestEngine_TextsThatAreNotUTF8AreReplaced(t *testing.T) {
	ctx, s := context.Background(), openStore(t, t.TempDir(), store.Options{Retention: -1})
	f := &googlepprof.Function{ID: 1, Name: "n\xff", SystemName: "s\xff", Filename: "f\xff"}
	l := &googlepprof.Location{ID: 1, Line: []googlepprof.Line{{Function: f, Line: 1}}}
	p := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "c\xff", Unit: "u\xff"}}, PeriodType: &googlepprof.ValueType{Type: "p\xff", Unit: "q\xff"}, Period: 1,
		Function: []*googlepprof.Function{f}, Location: []*googlepprof.Location{l}, TimeNanos: epochMS * 1e6,
		Sample: []*googlepprof.Sample{{Location: []*googlepprof.Location{l}, Value: []int64{1}, Label: map[string][]string{"k\xff": {"v\xff"}, "k\xfe": {"w"}}}},
	}
	var raw bytes.Buffer
	must(t, p.WriteUncompressed(&raw))
	must(t, s.Append(ctx, "t", []profiles.RawProfile{{Labels: cpuLabels("shop"), TimeNS: epochMS * 1e6, Raw: raw.Bytes()}}))
	e := New(Options{}, s)
	for _, where := range []string{"head", "block"} {
		valid := func(what string, list ...string) {
			t.Helper()
			for _, text := range list {
				if !utf8.ValidString(text) {
					t.Errorf("%s, %s: %q", where, what, text)
				}
			}
		}
		names, _, err := e.LabelNames(ctx, &profiles.LabelsRequest{Tenant: "t"})
		values, _, err2 := e.LabelValues(ctx, &profiles.LabelsRequest{Tenant: "t", LabelFor: "k\uFFFD"})
		types, _, err3 := e.ProfileTypes(ctx, &profiles.LabelsRequest{Tenant: "t"})
		if err != nil || err2 != nil || err3 != nil || len(values) != 1 || len(types) != 1 {
			t.Fatal(where, err, err2, err3, values, types)
		}
		valid("names", names...)
		valid("values", values...)
		valid("types", types[0].String())
		req := &profiles.MergeRequest{Tenant: "t", Type: types[0], StartMS: epochMS, EndMS: epochMS}
		g, err := e.MergeFlame(ctx, req)
		if err != nil || g.Total != 1 {
			t.Fatal(where, err, g)
		}
		valid("flame graph", g.Names...)
		merged, _, err := e.MergePprof(ctx, req)
		must(t, err)
		got, err := googlepprof.ParseData(merged)
		if err != nil || len(got.Function) != 1 {
			t.Fatal(where, err)
		}
		valid("pprof", got.Function[0].Name, got.Function[0].SystemName, got.Function[0].Filename, fmt.Sprint(got.SampleType[0], got.PeriodType))
		must(t, s.Flush(ctx))
	}
}
