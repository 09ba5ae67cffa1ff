package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

// matrixResponse returns a matrix with that many series, each with all points.
func matrixResponse(series int) string {
	values := strings.TrimSuffix(strings.Repeat(`[1,"2"],`, points), ",")
	all := strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"metric":{"a":"b"},"values":[%s]},`, values), series), ",")
	return `{"status":"success","data":{"resultType":"matrix","result":[` + all + `]}}`
}

// benchOf returns a bench whose servers respond to every request with the given bodies.
func benchOf(t *testing.T, texts ...string) *bench {
	t.Helper()
	b := &bench{env: area.Env{Log: io.Discard}, lengths: map[string]int64{}, out: &area.Outcome{}}
	for i, text := range texts {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") == "gzip" {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				io.WriteString(z, text)
				z.Close()
				return
			}
			io.WriteString(w, text)
		}))
		t.Cleanup(srv.Close)
		b.sides[i] = side{name: fmt.Sprint("side", i), server: &proc.Server{Client: proc.NewClient(srv.URL)}}
	}
	return b
}

func TestCompare_UnequalAndEmptyResponsesAreErrors(t *testing.T) {
	q, z := query{what: "plain", series: 2}, query{what: "zipped", series: 2, encoding: "gzip"}
	whole := matrixResponse(2)
	for _, c := range []struct {
		name string
		a, b string
		want error
	}{
		{"equal", whole, whole, nil},
		{"another value", whole, strings.Replace(whole, `"2"`, `"3"`, 1), area.ErrUnequal},
		{"cut short", whole, whole[:len(whole)-1], area.ErrUnequal},
		{"one has nothing", whole, "", area.ErrEmpty},
		{"a series is missing in both", matrixResponse(1), matrixResponse(1), area.ErrEmpty},
		{"a point is missing in both", strings.Replace(whole, `[1,"2"],`, "", 1), strings.Replace(whole, `[1,"2"],`, "", 1), area.ErrEmpty},
		{"both failed", `{"status":"error"}`, `{"status":"error"}`, area.ErrEmpty},
	} {
		b := benchOf(t, c.a, c.b)
		for _, q := range []query{q, z} {
			if err := b.compare(context.Background(), q); !errors.Is(err, c.want) {
				t.Errorf("%s, %s: got %v, want %v", c.name, q.what, err, c.want)
			}
		}
	}
}

func TestSend_ChangedResponseIsAnError(t *testing.T) {
	b := benchOf(t, matrixResponse(2), matrixResponse(2))
	q := query{what: "plain", series: 2}
	if err := b.compare(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	if _, err := b.send(context.Background(), &b.sides[0], q); err != nil {
		t.Error(err)
	}
	later := benchOf(t, matrixResponse(1), "")
	later.lengths = b.lengths
	for i := range later.sides {
		if _, err := later.send(context.Background(), &later.sides[i], q); !errors.Is(err, area.ErrUnequal) {
			t.Errorf("got %v, want ErrUnequal", err)
		}
	}
}

func TestConclude_GoalsUseMedians(t *testing.T) {
	b := &bench{out: &area.Outcome{}}
	b.sides[0].name, b.sides[1].name = "peer", "ferula"
	for _, r := range []struct {
		side, what string
		v          float64
	}{
		{"peer", "CPU: " + matrix.what, 1.3}, {"peer", "CPU: " + matrix.what, 1.2}, {"peer", "CPU: " + matrix.what, 1.1}, {"peer", "CPU: " + counted.what, 1.0},
		{"ferula", "CPU: " + matrix.what, 0.9}, {"ferula", "CPU: " + counted.what, 0.85}, {"ferula", "CPU: " + counted.what, 0.95},
		{"peer", growth, 200}, {"ferula", growth, 50},
	} {
		b.out.Recorder.Add(1, r.side, r.what, "", r.v)
	}
	b.conclude()
	for name, want := range map[string]float64{"api/query-range-cpu": 0.75, "api/query-range-anon": 0.25} {
		if got := b.out.Figure(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestDecompress(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, "text")
	z.Close()
	if got, err := decompress(zipped.Bytes(), "gzip"); string(got) != "text" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := decompress([]byte("text"), "gzip"); err == nil {
		t.Error("plain text is accepted as gzip")
	}
}
