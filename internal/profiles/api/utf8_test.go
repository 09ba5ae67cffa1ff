package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
)

// invalidStub is a stub of blocks with texts that are not UTF-8.
type invalidStub struct{ stub }

func (*invalidStub) ProfileTypes(context.Context, *profiles.LabelsRequest) ([]profiles.Type, []error, error) {
	return []profiles.Type{{Name: "n", SampleType: "s\xff", SampleUnit: "u\xff", PeriodType: "p\xff", PeriodUnit: "q\xff"}}, nil, nil
}

func (*invalidStub) LabelNames(context.Context, *profiles.LabelsRequest) ([]string, []error, error) {
	return []string{"a", "b\xff"}, nil, nil
}

func (*invalidStub) LabelValues(context.Context, *profiles.LabelsRequest) ([]string, []error, error) {
	return []string{"a", "b\xff"}, nil, nil
}

func TestServer_TextsThatAreNotUTF8AreReplacedInLists(t *testing.T) {
	stub, mux := &invalidStub{}, http.NewServeMux()
	New(Options{}, stub, stub).Register(mux, "", nil)
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, tt := range [][3]string{
		{"ProfileTypes", `{}`, "n:s\uFFFD:u\uFFFD:p\uFFFD:q\uFFFD"}, {"LabelNames", `{}`, `"a","b` + "\uFFFD"}, {"LabelValues", `{"name":"x"}`, `"a","b` + "\uFFFD"},
	} {
		code, text := post(t, server.URL+querierPath+tt[0], tt[1])
		if code != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, ", ", ","), tt[2]) { // protojson writes a space in some builds
			t.Errorf("%s: %d %s", tt[0], code, text)
		}
	}
}
