package canned

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/prometheus/model/labels"
)

var spec = Spec{Query: "m", Series: 25, Copies: 3, Points: 5, StartMS: 1_700_000_000_000, StepMS: 15_000, CutMS: 1_700_000_030_000, Zip: true}

type series struct {
	Metric map[string]string
	Values [][2]any
}

func parse(t *testing.T, body []byte) []series {
	t.Helper()
	var response struct {
		Status string
		Data   struct {
			ResultType string
			Result     []series
		}
	}
	if err := json.Unmarshal(body, &response); err != nil || response.Status != "success" || response.Data.ResultType != "matrix" {
		t.Fatalf("%v: %.200s", err, body)
	}
	return response.Data.Result
}

func TestRender_HalvesJoinedEqualTheWhole(t *testing.T) {
	a, err := Render(spec)
	if err != nil {
		t.Fatal(err)
	}
	whole, first, second := parse(t, a.Whole.Plain), parse(t, a.Halves[0].Plain), parse(t, a.Halves[1].Plain)
	if len(whole) != 75 || len(first) != 75 || len(second) != 75 || a.Samples() != 375 {
		t.Fatalf("%d, %d, %d series, %d samples", len(whole), len(first), len(second), a.Samples())
	}
	last := labels.EmptyLabels()
	for i, s := range whole {
		if len(s.Metric) != 7 || len(first[i].Values) != 2 || len(second[i].Values) != 3 {
			t.Fatalf("series %d: %d labels, %d and %d points", i, len(s.Metric), len(first[i].Values), len(second[i].Values))
		}
		if joined := append(first[i].Values, second[i].Values...); !slices.Equal(joined, s.Values) {
			t.Errorf("series %d: %v, whole %v", i, joined, s.Values)
		}
		if lset := labels.FromMap(s.Metric); labels.Compare(last, lset) >= 0 {
			t.Errorf("series %d: %s after %s", i, lset, last)
		} else {
			last = lset
		}
	}
	if a.Halves[0].EndMS != spec.CutMS-spec.StepMS || a.Halves[1].StartMS != spec.CutMS || a.Whole.EndMS != spec.EndMS() {
		t.Errorf("parts end and begin at other times: %d, %d, %d", a.Halves[0].EndMS, a.Halves[1].StartMS, a.Whole.EndMS)
	}
}

func TestRender_RejectsInvalidSpecs(t *testing.T) {
	for _, change := range []func(*Spec){
		func(s *Spec) { s.CutMS++ },
		func(s *Spec) { s.CutMS = s.StartMS },
		func(s *Spec) { s.CutMS = s.EndMS() + s.StepMS },
		func(s *Spec) { s.Copies = 11 },
		func(s *Spec) { s.Series = 0 },
	} {
		s := spec
		change(&s)
		if _, err := Render(s); err == nil {
			t.Errorf("%+v was rendered", s)
		}
	}
}

func TestServer_ServesItsPartsOnly(t *testing.T) {
	a, err := Render(spec)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(false, a)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	get := func(encoding string, params url.Values) (int, []byte) {
		r, _ := http.NewRequest(http.MethodGet, s.URL+"/api/v1/query_range?"+params.Encode(), nil)
		r.Header.Set("Accept-Encoding", encoding)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	half := url.Values{"query": {"m"}, "start": {"1700000030"}, "end": {"1700000060.000"}, "step": {"15"}, "dedup": {"true"}}
	if status, body := get("identity", half); status != 200 || !bytes.Equal(body, a.Halves[1].Plain) {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	status, body := get("gzip", half)
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(z); err != nil || status != 200 || !bytes.Equal(plain, a.Halves[1].Plain) {
		t.Errorf("status %d, %v", status, err)
	}
	served, err := s.Take()
	want := []Served{{"m", spec.CutMS, spec.EndMS(), ""}, {"m", spec.CutMS, spec.EndMS(), "gzip"}}
	if err != nil || !slices.Equal(served, want) {
		t.Errorf("served %v, %v, want %v", served, err, want)
	}
	for name, value := range map[string]string{"query": "n", "start": "1700000015", "end": "1700000045", "step": "30"} {
		other := url.Values{}
		for k, v := range half {
			other[k] = v
		}
		other.Set(name, value)
		if status, _ := get("identity", other); status != http.StatusBadRequest {
			t.Errorf("%s=%s: status %d", name, value, status)
		}
		if _, err := s.Take(); err == nil {
			t.Errorf("%s=%s is not reported", name, value)
		}
	}
	if served, err := s.Take(); len(served) > 0 || err != nil {
		t.Errorf("left over: %v, %v", served, err)
	}
}

func TestServer_PlainCompressesNothing(t *testing.T) {
	a, err := Render(spec)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(true, a)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	resp, err := http.Get(s.URL + "/api/v1/query_range?query=m&start=1700000000&end=1700000060&step=15") // net/http requests gzip by default
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.Uncompressed || !bytes.Equal(body, a.Whole.Plain) {
		t.Errorf("compressed: %v, %d bytes, %v", resp.Uncompressed, len(body), err)
	}
}
