package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	importSeries = 50   // in one request
	tolerance    = 1e-9 // relative: VictoriaMetrics stores values as decimals
)

// victoria imports the samples into VictoriaMetrics, compares its responses and measures three queries.
func (b *bench) victoria(ctx context.Context) (err error) {
	path, err := exec.LookPath("victoria-metrics")
	if err != nil {
		b.env.Logf("victoria-metrics is not installed: engine/vs-victoriametrics is not measured")
		b.out.Notes = append(b.out.Notes, "VictoriaMetrics was not installed.")
		return nil
	}
	version, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, version)
	}
	installed, _ := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${Version}", "victoria-metrics").Output() // it may not be of a package
	b.out.Versions = append(b.out.Versions, versionOf(string(version), string(installed)))
	dir := filepath.Join(b.env.Cache, "run", "engine", "victoriametrics")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	server, err := proc.Start(ctx, proc.Spec{
		Name: victoria, Path: path, Env: peer.RuntimeEnv(), Ready: "/health", Log: filepath.Join(dir, "log"),
		Args: func(addr string) []string {
			return []string{"-httpListenAddr=" + addr, "-storageDataPath=" + filepath.Join(dir, "data"), "-retentionPeriod=100y", "-search.disableCache"}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := importAll(ctx, server, spec); err != nil {
		return err
	}
	p := &b.sides[0]
	if err := b.start(ctx, p, spec); err != nil {
		return err
	}
	for _, q := range third {
		if err := b.close(ctx, p, server, q); err != nil {
			return errors.Join(err, p.stop())
		}
	}
	if err := p.stop(); err != nil {
		return err
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, q := range third {
			if err := b.measure(ctx, round, victoria, server, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// versionOf returns the version of VictoriaMetrics: what the program reports, or that of its Debian package, because the program
// in it was built without one.
func versionOf(reported, installed string) string {
	if reported = strings.TrimSpace(reported); reported != "" {
		return reported
	}
	if installed = strings.TrimSpace(installed); installed != "" {
		return "victoria-metrics, Debian package " + installed
	}
	return "victoria-metrics, which does not report its version"
}

// importAll sends all samples of the data and makes them visible.
func importAll(ctx context.Context, server *proc.Server, data blocks.Spec) error {
	var body bytes.Buffer
	for i := range data.Series {
		text, err := json.Marshal(map[string]any{"metric": data.Labels(i), "values": blocks.Sequence(data.Values, data.Seed, i, data.Samples), "timestamps": data.Times(i)})
		if err != nil {
			return err
		}
		body.Write(append(text, '\n'))
		if (i+1)%importSeries == 0 || i+1 == data.Series {
			if err := post(ctx, server.URL()+"/api/v1/import", &body); err != nil {
				return err
			}
			body.Reset()
		}
	}
	for _, path := range []string{"/internal/force_flush", "/internal/force_merge"} {
		if err := post(ctx, server.URL()+path, nil); err != nil {
			return err
		}
	}
	return nil
}

func post(ctx context.Context, to string, body *bytes.Buffer) error {
	if body == nil {
		body = new(bytes.Buffer)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body.Bytes()))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", to, resp.Status)
	}
	return nil
}

// close compares VictoriaMetrics' response with Prometheus'. Values of rate() differ by definition and are not compared.
func (b *bench) close(ctx context.Context, p *side, server *proc.Server, q query) error {
	var responses [2]matrix
	for i, from := range []*proc.Server{p.server, server} {
		body, _, err := from.Fetch(ctx, q.request())
		if err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
		if responses[i], err = parse(body); err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
	}
	want, got := responses[0].byLabels(), responses[1].byLabels()
	if len(want) == 0 || len(want) != len(got) {
		return fmt.Errorf("%s: %w: %d series of Prometheus, %d of VictoriaMetrics", q.what, area.ErrUnequal, len(want), len(got))
	}
	for lset, points := range want {
		if len(points) != len(got[lset]) {
			return fmt.Errorf("%s: %w: %s has %d points, VictoriaMetrics %d", q.what, area.ErrUnequal, lset, len(points), len(got[lset]))
		}
		for at, v := range points {
			w, ok := got[lset][at]
			if !ok || q.expr != sumRate.expr && math.Abs(v-w) > tolerance*math.Abs(v) || q.expr == count.expr && v != w {
				return fmt.Errorf("%s: %w: %s at %v: %v, VictoriaMetrics %v", q.what, area.ErrUnequal, lset, at, v, w)
			}
		}
	}
	b.env.Logf("VictoriaMetrics responds alike: %s, %d series", q.what, len(want))
	return nil
}

// matrix is a decoded response.
type matrix struct {
	Status string
	Data   struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
}

func parse(body []byte) (matrix, error) {
	var m matrix
	if err := json.Unmarshal(body, &m); err != nil {
		return m, err
	}
	if m.Status != "success" || m.Data.ResultType != "matrix" {
		return m, fmt.Errorf("a response of status %q and type %q", m.Status, m.Data.ResultType)
	}
	return m, nil
}

func (m matrix) points() int {
	n := 0
	for _, s := range m.Data.Result {
		n += len(s.Values)
	}
	return n
}

// byLabels returns the values by labels and timestamp.
func (m matrix) byLabels() map[string]map[float64]float64 {
	all := make(map[string]map[float64]float64, len(m.Data.Result))
	for _, s := range m.Data.Result {
		points := make(map[float64]float64, len(s.Values))
		for _, p := range s.Values {
			text, _ := p[1].(string)
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				v = math.NaN() // not equal to any value
			}
			at, _ := p[0].(float64)
			points[at] = v
		}
		all[labels.FromMap(s.Metric).String()] = points
	}
	return all
}
