package api

import (
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
	values := strings.TrimSuffix(strings.Repeat(`[1,"2"],`, matrix().Points), ",")
	all := strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"metric":{"a":"b"},"values":[%s]},`, values), series), ",")
	return `{"status":"success","data":{"resultType":"matrix","result":[` + all + `]}}`
}

// sidesOf returns a bench and sides that respond to every request with the given bodies.
func sidesOf(t *testing.T, texts ...string) (*area.Bench, []*area.Side) {
	t.Helper()
	b := area.New(Area, area.Env{Log: io.Discard})
	var sides []*area.Side
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
		sides = append(sides, &area.Side{Name: b.Sides[i], Server: &proc.Server{Client: proc.NewClient(srv.URL)}})
	}
	return b, sides
}

func TestCompare_UnequalAndEmptyResponsesAreErrors(t *testing.T) {
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
		for _, encoding := range []string{"", "gzip"} {
			b, sides := sidesOf(t, c.a, c.b)
			q := area.Query{What: "two", Series: 2, Points: matrix().Points, Encoding: encoding}
			if err := compare(context.Background(), b, q, sides); !errors.Is(err, c.want) {
				t.Errorf("%s, %q: got %v, want %v", c.name, encoding, err, c.want)
			}
		}
	}
}

func TestSend_ChangedResponseIsAnError(t *testing.T) {
	b, sides := sidesOf(t, matrixResponse(2), matrixResponse(2))
	q := area.Query{What: "two", Series: 2, Points: matrix().Points}
	if err := compare(context.Background(), b, q, sides); err != nil {
		t.Fatal(err)
	}
	if _, err := send(context.Background(), b, sides[0], q); err != nil {
		t.Error(err)
	}
	_, later := sidesOf(t, matrixResponse(1), "")
	for i, want := range []error{area.ErrUnequal, area.ErrEmpty} {
		if _, err := send(context.Background(), b, later[i], q); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestConclude_GoalsUseMedians(t *testing.T) {
	b := area.New(Area, area.Env{})
	for _, r := range []struct {
		side, what string
		v          float64
	}{
		{"Prometheus", "CPU: " + matrix().What, 1.3}, {"Prometheus", "CPU: " + matrix().What, 1.2}, {"Prometheus", "CPU: " + matrix().What, 1.1},
		{"ferula", "CPU: " + matrix().What, 0.9}, {"Prometheus", "CPU: " + zipped().What, 1.6}, {"ferula", "CPU: " + zipped().What, 1},
		{"Prometheus", growth, 200}, {"ferula", growth, 50},
	} {
		b.Add(1, r.side, r.what, "", r.v)
	}
	conclude(b)
	for name, want := range map[string]float64{"api/query-range-cpu": 0.75, "api/query-range-anon": 0.25, "api/gzip-cpu": 0.25} {
		if got := b.Figure(name); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
