package frontend

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// deletingDownstream is a downstream that has raw data of the third hour, data of 5m of the second and third hour, and
// data of 1h of all hours. The value of a point is its resolution. Responses without points have the warning, if warning
// is not empty.
func deletingDownstream(t *testing.T, warning string) *testEnv {
	w := newTestEnvWith(t, http.NotFoundHandler())
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		from, value := 7200.0, "raw"
		switch r.Form.Get("max_source_resolution") {
		case "5m":
			from, value = 3600, "5"
		case "1h":
			from, value = 0, "60"
		}
		var start, end, step float64
		_, err := fmt.Sscan(r.Form.Get("start")+" "+r.Form.Get("end")+" "+r.Form.Get("step"), &start, &end, &step)
		if err != nil {
			t.Error(err)
		}
		var points []string
		for at := start; at <= end; at += step {
			if at >= from {
				points = append(points, fmt.Sprintf("[%g,%q]", at, strings.Replace(value, "raw", "1", 1)))
			}
		}
		series, warnings := "", ""
		if len(points) > 0 {
			series = `{"metric":{"a":"b"},"values":[` + strings.Join(points, ",") + `]}`
		} else if warning != "" {
			warnings = fmt.Sprintf(`,"warnings":[%q]`, warning)
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(`{"status":"success","data":{"resultType":"matrix","result":[` + series + `],"analysis":{}}` + warnings + `}`))
		return true
	}
	return w
}

func TestDownsampled_PartsWithoutPointsAreRequestedAgainWithCoarserData(t *testing.T) {
	// A fifth of the step is 6 minutes, which includes 5m: only 1h is requested again.
	const step = 1800
	for _, c := range []struct {
		name, params, want string
		off                bool
		requests           int64
	}{
		{name: "auto", params: "&max_source_resolution=auto", want: `[0,"60"],[1800,"60"],[3600,"60"],[5400,"60"],[7200,"1"],[9000,"1"]`, requests: 5},
		{name: "switched off", params: "&max_source_resolution=auto", want: `[7200,"1"],[9000,"1"]`, off: true, requests: 3},
		{name: "no resolution", want: `[7200,"1"],[9000,"1"]`, requests: 3},
		{name: "another resolution", params: "&max_source_resolution=5m", want: `[3600,"5"],[5400,"5"],[7200,"5"],[9000,"5"]`, requests: 3},
	} {
		w := deletingDownstream(t, "")
		front := w.front(func(o *Options) { o.RequestDownsampled, o.Cache = !c.off, newMemoryCache() })
		for round := range 2 {
			status, body, h := get(t, front.URL+rangePath("x", 0, 10799, step)+c.params)
			check(t, status == http.StatusOK && strings.Contains(body, `"values":[`+c.want+`]`), "%s: %d %s", c.name, status, body)
			check(t, w.requests.Load() == c.requests && (h.Get("X-Ferula-Cache") == "hit") == (round == 1), "%s, round %d: %d requests, cache %s", c.name, round, w.requests.Load(), h.Get("X-Ferula-Cache"))
		}
	}
	// With a step of 60 s both resolutions are coarser than a fifth of it.
	for _, interval := range []time.Duration{time.Hour, 24 * time.Hour} {
		w := deletingDownstream(t, "")
		front := w.front(func(o *Options) { o.RequestDownsampled, o.Split.Interval = true, interval })
		_, body, _ := get(t, front.URL+rangePath("x", 0, 10799, 60)+"&max_source_resolution=auto")
		for at, value := range map[int]string{0: "60", 3540: "60", 3600: "5", 7140: "5", 7200: "1"} {
			want := fmt.Sprintf("[%d,%q]", at, value)
			check(t, strings.Contains(body, want) == (interval == time.Hour || value == "1"), "split by %s: %s in %.300s", interval, want, body)
		}
		_, body, _ = get(t, front.URL+rangePath("x", 3600, 7100, 60)+"&max_source_resolution=auto")
		check(t, strings.Contains(body, `[3600,"5"]`), "one piece: %.300s", body)
	}
}

func TestDownsampled_WarningsOfResponsesWithoutPointsRemain(t *testing.T) {
	w := deletingDownstream(t, "store x: gone")
	front := w.front(func(o *Options) { o.RequestDownsampled, o.Cache = true, newMemoryCache() })
	for round := range 2 {
		status, body, h := get(t, front.URL+rangePath("x", 0, 10799, 60)+"&max_source_resolution=auto")
		check(t, status == http.StatusOK && strings.Contains(body, `"warnings":["store x: gone"]`) && strings.Contains(body, `[0,"60"]`), "%d %.300s", status, body)
		check(t, h.Get("X-Ferula-Cache") == "miss", "round %d: cache %s", round, h.Get("X-Ferula-Cache"))
	}
}

func TestDownsampled_FailureOfTheSecondRequestIsTheResponse(t *testing.T) {
	w := deletingDownstream(t, "")
	data := w.break_
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Form.Get("max_source_resolution") != "5m" {
			return data(rw, r)
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = rw.Write([]byte(`{"status":"error","errorType":"execution","error":"too many samples"}`))
		return true
	}
	front := w.front(func(o *Options) { o.RequestDownsampled = true })
	status, body, _ := get(t, front.URL+rangePath("x", 0, 10799, 60)+"&max_source_resolution=auto")
	check(t, status == http.StatusUnprocessableEntity && strings.Contains(body, "too many samples"), "%d %s", status, body)
}
