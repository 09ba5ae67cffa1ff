package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// longStub returns 600 exemplars with labels of 2 KB. Each set is there twice, as in two blocks.
type longStub struct{ stub }

func (s *longStub) SelectSeries(context.Context, *profiles.SeriesRequest) (*profiles.SeriesResult, error) {
	s.open.Add(1)
	a := profiles.NewSeriesResult(func() { s.open.Add(-1) })
	for i := range 3 {
		service := string(rune('a' + i))
		one := profiles.Series{Labels: labelenc.AppendLabel(nil, "service_name", service)}
		for j := range 200 {
			one.Points = append(one.Points, profiles.Point{TimeMS: int64(15_000 * j), Value: float64(j) / 3})
			one.Exemplars = append(one.Exemplars, profiles.Exemplar{ID: profiles.ID{0: byte(j), 15: byte(i)}, TimeNS: int64(j) * 15e9, Value: int64(j), Set: uint32(j * 7 % 20)})
		}
		a.Series = append(a.Series, one)
	}
	for i := range 20 {
		set := labelenc.AppendLabel(nil, "pod", strings.Repeat(string(rune('a'+i%10)), 2000+i%10))
		a.Sets = append(a.Sets, labelenc.AppendLabel(set, "service_name", "a"))
	}
	a.GroupBy = []string{"service_name"}
	return a, nil
}

// pieces is a response that counts its writes, and fails from the write with the number broken on.
type pieces struct {
	*httptest.ResponseRecorder
	writes, largest, broken int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.writes, p.largest = p.writes+1, max(p.largest, len(b))
	if p.broken > 0 && p.writes >= p.broken {
		return 0, errors.New("broken pipe")
	}
	return p.ResponseRecorder.Write(b)
}

func TestServer_LongSeriesAreWrittenInPieces(t *testing.T) {
	s, mux := &longStub{}, http.NewServeMux()
	New(Options{}, s, s).Register(mux, "", nil)
	server := httptest.NewServer(mux)
	defer server.Close()
	request := &profilepb.SelectSeriesRequest{ProfileTypeID: cpu, LabelSelector: "{}", Start: 1, End: 3_000_000, Step: 15,
		ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL}
	inProto, err := proto.Marshal(request)
	must(t, err)
	inJSON := []byte(`{"profileTypeID":"` + cpu + `","labelSelector":"{}","start":"1","end":"3000000","step":15,"exemplarType":"EXEMPLAR_TYPE_INDIVIDUAL"}`)
	result, err := s.SelectSeries(context.Background(), nil)
	must(t, err)
	whole := &profilepb.SeriesEncoder{Result: result}
	wantProto, wantJSON := whole.AppendProto(nil), whole.AppendJSON(nil)
	result.Close()
	for _, tt := range []struct {
		contentType, encoding string
		body, want            []byte
		length                int64
	}{
		{"application/proto", "identity", inProto, wantProto, int64(len(wantProto))},
		{"application/json", "identity", inJSON, wantJSON, -1},
		{"application/json; charset=utf-8", "identity", inJSON, wantJSON, -1},
		{"application/proto", "br, gzip", inProto, wantProto, -1},
		{"application/grpc-web+proto", "identity", append([]byte{0, 0, 0, 0, byte(len(inProto))}, inProto...), wantProto, -1},
	} {
		r, err := http.NewRequest(http.MethodPost, server.URL+querierPath+"SelectSeries", bytes.NewReader(tt.body))
		must(t, err)
		r.Header.Set("Content-Type", tt.contentType)
		r.Header.Set("Accept-Encoding", tt.encoding)
		response, err := http.DefaultClient.Do(r)
		must(t, err)
		var body io.Reader = response.Body
		compressed := strings.HasSuffix(tt.encoding, "gzip")
		if compressed {
			body, err = gzip.NewReader(response.Body)
			must(t, err)
		}
		got, err := io.ReadAll(body)
		must(t, err)
		must(t, response.Body.Close())
		if strings.Contains(tt.contentType, "grpc") && len(got) > 5+len(tt.want) {
			got = got[5 : 5+len(tt.want)] // between the frame's header and the trailers
		}
		if response.StatusCode != http.StatusOK || !bytes.Equal(got, tt.want) {
			t.Errorf("%s, %s: status %d, %d bytes, want %d", tt.contentType, tt.encoding, response.StatusCode, len(got), len(tt.want))
		}
		if !compressed && response.ContentLength != tt.length {
			t.Errorf("%s: Content-Length %d, want %d", tt.contentType, response.ContentLength, tt.length)
		}
	}
	for _, broken := range []int{0, 2} {
		r := httptest.NewRequest(http.MethodPost, querierPath+"SelectSeries", bytes.NewReader(inProto))
		r.Header.Set("Content-Type", "application/proto")
		w := &pieces{ResponseRecorder: httptest.NewRecorder(), broken: broken}
		mux.ServeHTTP(w, r)
		switch n := len(wantProto) / w.largest; {
		case broken == 0 && (w.writes < 5 || w.writes < n):
			t.Errorf("%d writes of %d bytes at most", w.writes, w.largest)
		case broken > 0 && w.writes > broken+2: // the last bytes, and connect's error
			t.Errorf("%d writes to a client that left after %d", w.writes, broken)
		}
	}
	if n := s.open.Load(); n != 0 {
		t.Errorf("%d results are open", n)
	}
}
