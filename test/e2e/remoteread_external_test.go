package e2e

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/app"
)

// externalLine formats one sample. A series without a label cluster gets the given one.
func externalLine(metric map[string]string, cluster string, ms int64, value string) string {
	if metric["cluster"] == "" {
		metric = maps.Clone(metric)
		metric["cluster"] = cluster
	}
	return fmt.Sprintf("%s %d=%s", labels.FromMap(metric), ms, value)
}

// rowsOfPromQL returns the samples of the ten minutes before at by PromQL.
func (s *server) rowsOfPromQL(query, cluster string, at time.Time) []string {
	s.t.Helper()
	form := url.Values{"query": {query + "[10m]"}, "time": {fmt.Sprint(at.Unix())}}
	status, body := s.get("/api/v1/query?" + form.Encode())
	var response struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
		Warnings []string
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != http.StatusOK || len(response.Warnings) > 0 {
		s.t.Fatalf("%s: %d %s %v", query, status, body, err)
	}
	var lines []string
	for _, series := range response.Data.Result {
		for _, v := range series.Values {
			lines = append(lines, externalLine(series.Metric, cluster, int64(v[0].(float64)*1000+0.5), v[1].(string)))
		}
	}
	slices.Sort(lines)
	return lines
}

// rowsOfCSV returns the samples of an exported file.
func rowsOfCSV(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range records[1:] {
		metric := map[string]string{}
		if err := json.Unmarshal([]byte(r[1]), &metric); err != nil {
			t.Fatalf("%s: %v", r[1], err)
		}
		metric["__name__"] = r[0]
		at, err := time.Parse(time.RFC3339Nano, r[2])
		ms := at.UnixMilli()
		if err != nil {
			if ms, err = strconv.ParseInt(r[2], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		lines = append(lines, externalLine(metric, "missing", ms, r[3]))
	}
	slices.Sort(lines)
	return lines
}

// checkExternal reads near, which has external labels and a remote_read section, by
// PromQL, remote read and `ferula read`, and compares the results.
func checkExternal(t *testing.T, near *server, at time.Time, want int) {
	t.Helper()
	rows := near.rowsOfPromQL(`{__name__=~"near|far"}`, "eu", at)
	if len(rows) != want {
		t.Errorf("PromQL has %d rows, want %d:\n%s", len(rows), want, strings.Join(rows, "\n"))
	}
	mint, maxt := at.Add(-10*time.Minute).UnixMilli()+1, at.UnixMilli()
	flat := func(lines []string) (all []string) { // one line per sample
		for _, line := range lines {
			head, samples, _ := strings.Cut(line, "} ")
			for _, one := range strings.Fields(samples) {
				all = append(all, head+"} "+one)
			}
		}
		slices.Sort(all)
		return all
	}
	everything := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "near|far")
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		if got := flat(near.remoteRead(form, mint, maxt, everything)); !slices.Equal(got, rows) {
			t.Errorf("%s:\ngot  %s\nwant %s", form, strings.Join(got, "\n     "), strings.Join(rows, "\n     "))
		}
		for _, m := range []*labels.Matcher{
			labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"), labels.MustNewMatcher(labels.MatchNotEqual, "cluster", "eu"),
			labels.MustNewMatcher(labels.MatchRegexp, "cluster", "e.|x"), labels.MustNewMatcher(labels.MatchNotRegexp, "cluster", "us|"),
			labels.MustNewMatcher(labels.MatchEqual, "cluster", ""), labels.MustNewMatcher(labels.MatchEqual, "cluster", "us"),
		} {
			for _, line := range flat(near.remoteRead(form, mint, maxt, m)) {
				_, cluster, _ := strings.Cut(line, `cluster="`)
				if cluster, _, _ = strings.Cut(cluster, `"`); !m.Matches(cluster) {
					t.Errorf("%s: %s has %s", form, m, line)
				}
			}
		}
	}
	if got := flat(near.remoteRead(prompb.ReadRequest_SAMPLES, mint, maxt, labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"))); !slices.Equal(got, slices.DeleteFunc(slices.Clone(rows), func(line string) bool { return !strings.Contains(line, `cluster="eu"`) })) {
		t.Errorf("in the cluster: %s", strings.Join(got, "\n"))
	}
	out := filepath.Join(t.TempDir(), "out.csv")
	mustRead(t, binary(t), "read", "--url="+near.base, "--match", `{__name__=~"near|far"}`, "--start", fmt.Sprintf("%.3f", float64(mint)/1000), "--end", fmt.Sprintf("%.3f", float64(maxt)/1000), "-o", out)
	if got := rowsOfCSV(t, out); !slices.Equal(got, rows) {
		t.Errorf("ferula read:\ngot  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(rows, "\n     "))
	}
}

// writeExternalSeries writes series to near and far. Some of far's have a stored label
// with the name of an external one.
func writeExternalSeries(t *testing.T, near, far *server, at time.Time) {
	t.Helper()
	ms := at.Add(-time.Minute).UnixMilli()
	near.writeAll([][]byte{encoded(t, v1(v1Series(ms, 1, "__name__", "near", "a", "1"), v1Series(ms, 2, "__name__", "far", "both", "yes")))})
	far.writeAll([][]byte{encoded(t, v1(
		v1Series(ms, 2, "__name__", "far", "both", "yes"), v1Series(ms, 3, "__name__", "far", "b", "1"), v1Series(ms, 4, "__name__", "far", "z", "1"),
		v1Series(ms, 5, "__name__", "far", "cluster", "eu", "stored", "1"), v1Series(ms, 6, "__name__", "far", "cluster", "us", "stored", "1"),
	))})
}

func TestRemoteRead_ExternalLabelsAreTheSameByEveryPath(t *testing.T) {
	for _, tt := range []struct {
		name, far, section string
		want               int
	}{
		{"the same labels", "global: {external_labels: {cluster: eu}}\n", "", 5},
		{"other labels", "global: {external_labels: {cluster: us}}\n", "", 3},
		{"stored labels only", "", "", 3},
		{"stored labels and no filter", "", ", filter_external_labels: false", 6},
		{"other labels and no filter", "global: {external_labels: {cluster: us}}\n", ", filter_external_labels: false", 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := time.Now().Truncate(time.Second)
			file := writeFile(t, filepath.Join(t.TempDir(), "far.yml"), tt.far+"scrape_configs: []\n")
			far := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
			near, _ := readsFrom(t, "global: {external_labels: {cluster: eu}}\nremote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true"+tt.section+"}]\n")
			writeExternalSeries(t, near, far, at)
			checkExternal(t, near, at, tt.want)
		})
	}
}

func TestPeerPrometheus_IsReadThroughAServerWithExternalLabels(t *testing.T) {
	for _, tt := range []struct {
		far  string
		want int
	}{{"eu", 4}, {"us", 3}} {
		t.Run(tt.far, func(t *testing.T) {
			at := time.Now().Truncate(time.Second)
			far := startPrometheus(t, "global: {external_labels: {cluster: "+tt.far+"}}\n", "")
			near, _ := readsFrom(t, "global: {external_labels: {cluster: eu}}\nremote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true}]\n")
			writeExternalSeries(t, near, far, at)
			checkExternal(t, near, at, tt.want)
		})
	}
}
