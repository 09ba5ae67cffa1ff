package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
)

func TestRead_SilentSourceEndsByTheTimeout(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 5, s)
	// A server that accepts connections and never responds.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	out := filepath.Join(t.TempDir(), "out.csv")
	for want, args := range map[string][]string{
		"server sends nothing for 300ms":    readArgs("http://"+mute.Addr().String(), start, end, out),
		"the store sends no data for 300ms": storeArgs(mute.Addr().String(), start, end, out),
	} {
		code, stderr, _ := runRead(t, path, append(args, "--timeout=300ms", "--retries=1")...)
		if code != 1 || strings.Count(stderr, want) != 2 { // once in the retry's warning, once in the error
			t.Errorf("%s: exit code %d:\n%s", args[1], code, stderr)
		}
	}
	// A server whose first response stops in the middle of the body.
	var requests atomic.Int64
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), r.Method, s.base+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		request.Header = r.Header
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			return // the client disconnected
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		if requests.Add(1) == 1 {
			_, _ = w.Write(body[:len(body)/2])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(body)
	}))
	defer half.Close()
	wantCount, wantSum := s.promQLTotals(start, end)
	stderr := mustRead(t, path, readArgs(half.URL, start, end, out, "--timeout=300ms")...)
	if count, sum := totals(t, out); count != wantCount || sum != wantSum || !strings.Contains(stderr, "sends nothing for 300ms") {
		t.Errorf("%d samples of sum %g, want %d of %g:\n%s", count, sum, wantCount, wantSum, stderr)
	}
}

func TestRead_SortsUnorderedSeries(t *testing.T) {
	result := &prompb.QueryResult{}
	random := rand.New(rand.NewPCG(1, 1))
	for _, i := range random.Perm(3000) {
		one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprintf("%05d", i)}}}
		for at := range int64(60) {
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: 1_000_000 + at*1000, Value: random.Float64()})
		}
		result.Timeseries = append(result.Timeseries, one)
	}
	plain, err := proto.Marshal(&prompb.ReadResponse{Results: []*prompb.QueryResult{result}})
	if err != nil {
		t.Fatal(err)
	}
	body := snappy.Encode(nil, plain)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(body)
	}))
	defer server.Close()
	path, dir := binary(t), t.TempDir()
	args := func(output string, more ...string) []string {
		return append([]string{"read", "--url=" + server.URL, "--match=m", "--start=1000", "--end=1100", "-o", output}, more...)
	}
	mustRead(t, path, args(filepath.Join(dir, "memory.csv"))...)
	_, _, piped := runRead(t, path, args("-", "--format=csv")...)
	memory, err := os.ReadFile(filepath.Join(dir, "memory.csv"))
	if err != nil || strings.Count(string(memory), "\n") != 3000*60+1 {
		t.Fatalf("%d bytes, %v", len(memory), err)
	}
	if string(piped) != string(memory) {
		t.Errorf("piped: %d bytes, want %d", len(piped), len(memory))
	}
	if code, stderr, _ := runRead(t, path, args("-", "--format=csv", "--max-sort-bytes=100KiB")...); code != 1 || !strings.Contains(stderr, "--max-sort-bytes") {
		t.Errorf("beyond the limit: %s", stderr)
	}
	// A response that a retry cannot fix is not requested again.
	body = snappy.Encode(nil, append(plain, plain...))
	requests.Store(0)
	if code, stderr, _ := runRead(t, path, args(filepath.Join(dir, "broken.csv"))...); code != 1 || requests.Load() != 1 || !strings.Contains(stderr, "more than one result") {
		t.Errorf("exit code %d after %d requests: %s", code, requests.Load(), stderr)
	}
}
