package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// The query is like those in user reports: a ratio of two metrics for each of many instances over some hours.
const realInterval = "8h"

var (
	realQuery = area.Query{
		What: "real query", Expr: "sum by (instance) ((bench_used / bench_limit) * 100)",
		StartMS: blocks.QuietStartMS + 3600_000, StepMS: 135_000, Points: points, Series: series,
	}
	realSpec = blocks.Spec{
		Metric: "bench_used", Second: "bench_limit", Values: blocks.Decimals2, Series: series, PerPod: 1,
		Samples: 8 * 60, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}
)

// real measures a real query in front of a real Prometheus, and in front of Thanos' querier with a sidecar of Thanos and this
// Prometheus behind it.
func (b *bench) real(ctx context.Context) error {
	prometheus, err := b.SideOf(ctx, "Prometheus", peer.Prometheus, "prometheus")
	if err != nil {
		return err
	}
	sidecar, querier := b.Side(thanos, b.programs[thanos], "behind-sidecar"), b.Side(thanos, b.programs[thanos], "behind-query")
	launch := b.TSDB(ctx, area.TSDB{Data: realSpec, Config: area.Replica})
	behind := area.AtGRPC(func(s *area.Side) proc.Spec {
		if s == sidecar {
			return s.Program.Sidecar(s.Log(), s.GRPC, prometheus.URL(), prometheus.TSDBDir())
		}
		return s.Program.Query(s.Log(), s.GRPC, []string{sidecar.GRPC}, "--query.replica-label=replica")
	})
	return b.With(ctx, launch, func() error {
		err := b.inFront(ctx, prometheus, "real query", fmt.Sprintf("%s, 6 h by %d s over %d instances (%%.1f MB), in front of a real Prometheus with blocks, split in two at 08:00; Prometheus itself takes %%.2g s for the whole query.",
			realQuery.Expr, realQuery.StepMS/1000, series))
		if err != nil {
			return err
		}
		return b.With(ctx, behind, func() error {
			err := proc.Until(ctx, 20*time.Second, 200*time.Millisecond, "the querier has discovered its store", func() error {
				last := realQuery
				last.StartMS, last.Points = realQuery.EndMS(), 1
				got, err := last.Result(ctx, querier.Server)
				return errors.Join(err, last.Complete(got))
			})
			if err != nil {
				return err
			}
			return b.inFront(ctx, querier, behindQuery, "the same query (%.1f MB) in front of thanos query, with thanos sidecar and Prometheus behind it; the querier itself takes %.2g s for the whole query, without gzip. Its responses end with an empty member \"analysis\", which neither frontend forwards and which is not compared. Thanos' frontend requests gzip, ferula's does not.")
		}, sidecar, querier)
	}, prometheus)
}

// inFront measures the query in front of a server. Each kind of request gets processes of its own, so that none inherits a heap.
func (b *bench) inFront(ctx context.Context, server *area.Side, what, note string) error {
	want, direct, err := server.Fetch(ctx, realQuery.Request())
	if err != nil {
		return err
	}
	want = withoutAnalysis(want)
	b.realNotes = append(b.realNotes, "Rows with \""+what+"\": "+fmt.Sprintf(note, float64(len(want))/1e6, direct.Elapsed.Seconds()))
	launch := func(s *area.Side) (proc.Spec, error) { return launchAt(s, server.URL(), realInterval), nil }
	for _, encoding := range []string{"", "gzip"} {
		q, row := realQuery, what
		if q.Encoding = encoding; encoding != "" {
			row += ", client " + encoding
		}
		fronts := []*area.Side{b.Side(thanos, b.programs[thanos], "real-thanos"), b.Side(ferula, b.programs[ferula], "real-ferula")}
		err := b.With(ctx, launch, func() error {
			if err := b.measureReal(ctx, row, q, want, fronts); err != nil {
				return err
			}
			switch row {
			case "real query":
				return b.others(ctx, server, fronts)
			case behindQuery:
				return b.profiled(ctx, q, server, fronts[0])
			}
			return nil
		}, fronts...)
		if err != nil {
			return err
		}
	}
	return nil
}

// others measures requests that are no range query. Thanos' frontend and ferula's split labels and series at midnight, and
// merge the parts.
func (b *bench) others(ctx context.Context, server *area.Side, fronts []*area.Side) error {
	start, end := area.Secs(realSpec.StartMS-12*3600_000), area.Secs(realQuery.EndMS())
	for _, o := range []struct {
		what, path string
		query      url.Values
	}{
		{"instant query", "/api/v1/query", url.Values{"query": {realQuery.Expr}, "time": {end}}},
		{"names of labels, two days", "/api/v1/labels", url.Values{"start": {start}, "end": {end}}},
		{"series, two days", "/api/v1/series", url.Values{"match[]": {realSpec.Metric}, "start": {start}, "end": {end}}},
	} {
		request := proc.Request{Path: o.path, Query: o.query}
		want, err := elementsOf(ctx, server, request)
		if err != nil {
			return err
		}
		for _, s := range fronts {
			got, err := elementsOf(ctx, s, request)
			if err == nil && (len(want) == 0 || !slices.Equal(got, want)) && !b.Programs.Null {
				err = fmt.Errorf("%w: %d and %d elements", area.ErrUnequal, len(got), len(want))
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", s.Name, o.what, err)
			}
		}
		err = b.InTurn(o.what, fronts, func(round int, s *area.Side) error {
			return b.Costs(ctx, round, s.Name, s.Server, area.Work{What: o.what, Repeats: 5,
				Send: func() (proc.Response, error) { return s.Get(ctx, request, io.Discard) }})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// elementsOf returns the elements of a response, sorted.
func elementsOf(ctx context.Context, s *area.Side, request proc.Request) (all []string, err error) {
	var body bytes.Buffer
	if _, err := s.Get(ctx, request, &body); err != nil {
		return nil, err
	}
	var response struct{ Data any }
	if err := json.Unmarshal(body.Bytes(), &response); err != nil {
		return nil, err
	}
	if data, ok := response.Data.(map[string]any); ok {
		response.Data = data["result"]
	}
	list, _ := response.Data.([]any)
	for _, element := range list {
		text, err := json.Marshal(element)
		if err != nil {
			return nil, err
		}
		all = append(all, string(text))
	}
	slices.Sort(all)
	return all, nil
}

const (
	behindQuery    = "behind Thanos query"
	profileSeconds = 12 // longer than the query
)

// profiled records where a query takes CPU: decoding and encoding in Thanos' frontend, encoding in the querier behind it.
func (b *bench) profiled(ctx context.Context, q area.Query, querier, frontend *area.Side) error {
	get := func() error { _, err := frontend.Get(ctx, q.Request(), io.Discard); return err }
	var behind *profile.Profile
	before, err := frontend.ProfileDuring(ctx, profileSeconds, func() (err error) {
		behind, err = querier.ProfileDuring(ctx, profileSeconds, get)
		return err
	})
	if err != nil {
		return err
	}
	for _, in := range []struct {
		profile        *profile.Profile
		what, function string
	}{
		{before, "profile, decode", ".DecodeResponse"}, {before, "profile, encode", ".EncodeResponse"},
		{behind, "querier's profile, encode", "json-iterator/go."},
	} {
		seconds := secondsIn(in.profile, in.function)
		if seconds == 0 && !b.Programs.Null {
			return fmt.Errorf("%s: %w: no function with %s", in.what, area.ErrEmpty, in.function)
		}
		b.Add(1, thanos, behindQuery+": "+in.what, area.Seconds, seconds)
	}
	return nil
}

// secondsIn returns the CPU seconds of a profile in functions with a part of their name, and in what they call.
func secondsIn(p *profile.Profile, function string) (seconds float64) {
	has := func(l *profile.Location) bool {
		return slices.ContainsFunc(l.Line, func(l profile.Line) bool { return strings.Contains(l.Function.Name, function) })
	}
	for _, s := range p.Sample {
		if slices.ContainsFunc(s.Location, has) {
			seconds += float64(s.Value[1]) / 1e9
		}
	}
	return seconds
}

var fetchTime = regexp.MustCompile(`fetch;dur=([0-9.]+)`)

func (b *bench) measureReal(ctx context.Context, what string, q area.Query, want []byte, fronts []*area.Side) error {
	send := func(s *area.Side, w io.Writer) (proc.Response, error) {
		a, err := s.Get(ctx, q.Request(), w)
		if err == nil && a.Encoding != q.Encoding {
			err = fmt.Errorf("%w: encoding %q", area.ErrUnequal, a.Encoding)
		}
		return a, errors.Join(err, b.SameLength(s.Name, what, a.Bytes))
	}
	for _, s := range fronts {
		var body bytes.Buffer
		if _, err := send(s, &body); err != nil {
			return fmt.Errorf("%s: %s: %w", s.Name, what, err)
		}
		if err := sameResponse(s.Name+": "+what, s.Name == ferula && !b.Programs.Null, q.Encoding, body.Bytes(), want); err != nil {
			return err
		}
		b.Logf("responses are equal: %s: %s", s.Name, what)
	}
	return b.InTurn(what, fronts, func(round int, s *area.Side) error {
		var a proc.Response
		cpu, err := s.CPUDuring(ctx, func() (err error) {
			a, err = send(s, io.Discard)
			return err
		})
		b.Add(round, s.Name, what+": last byte", area.Seconds, a.Elapsed.Seconds())
		b.Add(round, s.Name, what+": first byte", area.Seconds, a.FirstByte.Seconds())
		b.Add(round, s.Name, what+": CPU of the frontend", area.Seconds, cpu.Seconds())
		if found := fetchTime.FindStringSubmatch(a.Header.Get("Server-Timing")); found != nil && what == behindQuery {
			ms, _ := strconv.ParseFloat(found[1], 64) // the expression has digits only
			b.Add(round, s.Name, what+": Server-Timing fetch", area.Seconds, ms/1000)
		}
		return err
	})
}

// withoutAnalysis removes the empty analysis that thanos query appends to the data of every response. Neither frontend forwards
// it.
func withoutAnalysis(response []byte) []byte {
	if rest, ok := bytes.CutSuffix(response, []byte(`,"analysis":{}}}`)); ok {
		return append(rest, "}}"...)
	}
	return response
}
