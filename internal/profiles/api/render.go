package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/promjson"
)

// statusOf maps Connect's codes to the HTTP status of the older API.
var statusOf = map[connect.Code]int{
	connect.CodeCanceled:          499,
	connect.CodeInvalidArgument:   http.StatusBadRequest,
	connect.CodeDeadlineExceeded:  http.StatusGatewayTimeout,
	connect.CodeNotFound:          http.StatusNotFound,
	connect.CodeResourceExhausted: http.StatusTooManyRequests,
	connect.CodeUnimplemented:     http.StatusNotImplemented,
	connect.CodeUnavailable:       http.StatusServiceUnavailable,
}

func writeError(w http.ResponseWriter, err error) {
	status, ok := statusOf[codeOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	http.Error(w, err.Error(), status)
}

// legacy serves a request of the older API: it parses the tenant and the form, and
// writes what f returns.
func (s *Server) legacy(w http.ResponseWriter, r *http.Request, contentType string,
	f func(ctx context.Context, tenant string, form url.Values) ([]byte, error)) {
	ctx, outcome := withRequestContext(r.Context())
	defer outcome.close()
	form, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, badRequest{err})
		return
	}
	b, err := invoke(ctx, s, r.Header, form, f)
	if err != nil {
		writeError(w, err)
		return
	}
	maps.Copy(w.Header(), outcome.headers())
	body := httpbody.NewResponse(w, r, contentType)
	defer body.Release()
	body.SetLength(len(b))
	if _, err = body.Write(b); err == nil {
		err = body.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // a partial response must not look complete
	}
}

// legacyRange parses from and until. Their defaults are an hour ago and now.
func legacyRange(form url.Values, from, until string) (startMS, endMS int64, err error) {
	now := time.Now()
	timestamp := func(name, def string) int64 {
		text := form.Get(name)
		if text == "" {
			text = def
		}
		t, e := profilepb.ParseTimestamp(text, now)
		if e != nil && err == nil {
			err = badRequest{fmt.Errorf("%s: %w", name, e)}
		}
		return t.UnixMilli()
	}
	startMS, endMS = timestamp(from, "now-1h"), timestamp(until, "now")
	if err == nil {
		startMS, endMS, err = timeRange(startMS, endMS, false)
	}
	return startMS, endMS, err
}

// legacyQuery parses a query of the form `profile-type{selector}`.
func (s *Server) legacyQuery(tenant string, form url.Values, query, from, until string) (profiles.MergeRequest, error) {
	text := form.Get(query)
	if text == "" {
		return profiles.MergeRequest{}, badRequest{fmt.Errorf("%s is missing", query)}
	}
	id, selector := text, ""
	if at := strings.IndexByte(text, '{'); at >= 0 {
		id, selector = text[:at], text[at:]
	}
	startMS, endMS, err := legacyRange(form, from, until)
	if err != nil {
		return profiles.MergeRequest{}, err
	}
	m := &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: id, LabelSelector: selector, Start: startMS, End: endMS}
	for _, name := range []string{"max-nodes", "maxNodes"} {
		if text := form.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return profiles.MergeRequest{}, badRequest{fmt.Errorf("%s %q is not a number", name, text)}
			}
			m.MaxNodes = &n
		}
	}
	return s.mergeRequest(tenant, m)
}

// timelineStep returns the step of a timeline, in ms: fifteen seconds, or more if the range would
// otherwise have more than about a thousand points.
func timelineStep(startMS, endMS int64) int64 {
	return max(15_000, (endMS-startMS)/1000/1000*1000)
}

func (s *Server) render(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("format") == "dot" {
		s.legacy(w, r, "text/plain; charset=utf-8", func(ctx context.Context, tenant string,
			form url.Values) ([]byte, error) {
			q, err := s.legacyQuery(tenant, form, "query", "from", "until")
			if err != nil {
				return nil, err
			}
			flame, err := s.flame(ctx, q)
			if err != nil {
				return nil, err
			}
			return []byte(Dot(flame, q.Type)), nil
		})
		return
	}
	s.legacy(w, r, "application/json", s.renderJSON)
}

func (s *Server) renderJSON(ctx context.Context, tenant string, form url.Values) ([]byte, error) {
	if format := form.Get("format"); format != "" && format != "json" {
		return nil, badRequest{fmt.Errorf("format %q is neither json nor dot", format)}
	}
	q, err := s.legacyQuery(tenant, form, "query", "from", "until")
	if err != nil {
		return nil, err
	}
	over := overTime(q)
	over.StepMS = timelineStep(q.StartMS, q.EndMS)
	switch form.Get("aggregation") {
	case "", "sum":
	case "avg", "average":
		over.Average = true
	default:
		return nil, badRequest{fmt.Errorf("aggregation %q is neither sum nor avg", form.Get("aggregation"))}
	}
	flame, err := s.flame(ctx, q)
	if err != nil {
		return nil, err
	}
	whole, err := s.querier.SelectSeries(ctx, &over)
	if err != nil {
		return nil, err
	}
	defer whole.Close()
	warn(ctx, whole.Warnings)
	groups := &profiles.SeriesResult{}
	for _, names := range form["groupBy"] {
		over.GroupBy = append(over.GroupBy, strings.Split(names, ",")...)
	}
	if len(over.GroupBy) > 0 {
		if groups, err = s.querier.SelectSeries(ctx, &over); err != nil {
			return nil, err
		}
		defer groups.Close()
		warn(ctx, groups.Warnings)
	}
	b := []byte(`{"version":1,"flamebearer":{`)
	b = appendFlamebearer(b, flame.Names, flame.Levels, flame.Total, flame.MaxSelf)
	b = appendMetadata(append(b, `},"metadata":{"format":"single",`...), q.Type)
	b = append(b, `},"timeline":`...)
	var points []profiles.Point
	if len(whole.Series) > 0 {
		points = whole.Series[0].Points
	}
	b = appendTimeline(b, over, points)
	b = append(b, `,"groups":{`...)
	for i, series := range groups.Series {
		if i > 0 {
			b = append(b, ',')
		}
		b = promjson.AppendString(b, groupName(series.Labels))
		b = appendTimeline(append(b, ':'), over, series.Points)
	}
	return append(requestContextOf(ctx).appendWarnings(append(b, '}')), '}'), nil
}

// groupName joins the label values of a group.
func groupName(set []byte) string {
	var values []string
	for _, value := range labelenc.All(set) {
		values = append(values, string(value))
	}
	return strings.Join(values, ",")
}

func appendTexts(b []byte, texts []string) []byte {
	return profilepb.AppendList(b, len(texts), func(b []byte, i int) []byte { return promjson.AppendString(b, texts[i]) })
}

func appendFlamebearer(b []byte, names []string, levels [][]int64, total, maxSelf int64) []byte {
	b = appendTexts(append(b, `"names":`...), names)
	b = profilepb.AppendList(append(b, `,"levels":`...), len(levels), func(b []byte, i int) []byte {
		return profilepb.AppendList(b, len(levels[i]), func(b []byte, j int) []byte {
			return strconv.AppendInt(b, levels[i][j], 10)
		})
	})
	b = strconv.AppendInt(append(b, `,"numTicks":`...), total, 10)
	return strconv.AppendInt(append(b, `,"maxSelf":`...), maxSelf, 10)
}

// appendMetadata writes the unit as the older API does: nanoseconds are samples at a
// rate of a billion per second.
func appendMetadata(b []byte, t profiles.Type) []byte {
	units, rate := "objects", 100
	switch t.SampleUnit {
	case "nanoseconds":
		units, rate = "samples", 1_000_000_000
		if t.Name == "mutex" || t.Name == "block" {
			units = "lock_nanoseconds"
		}
	case "bytes":
		units = "bytes"
	}
	b = append(b, `"spyName":"","sampleRate":`...)
	b = strconv.AppendInt(b, int64(rate), 10)
	b = promjson.AppendString(append(b, `,"units":`...), units)
	return promjson.AppendString(append(b, `,"name":`...), t.SampleType)
}

// appendTimeline writes one value per step of the range; steps without a point are 0.
func appendTimeline(b []byte, q profiles.SeriesRequest, points []profiles.Point) []byte {
	b = strconv.AppendInt(append(b, `{"startTime":`...), q.StartMS/1000, 10)
	n := int((q.EndMS-q.StartMS)/q.StepMS) + 1
	values := make([]float64, n)
	for _, p := range points {
		if i := (p.TimeMS - q.StartMS) / q.StepMS; i >= 0 && i < int64(n) {
			values[i] = p.Value
		}
	}
	b = profilepb.AppendList(append(b, `,"samples":`...), n, func(b []byte, i int) []byte {
		if math.IsNaN(values[i]) || math.IsInf(values[i], 0) {
			return append(b, '0')
		}
		return promjson.AppendFloat(b, values[i])
	})
	b = strconv.AppendInt(append(b, `,"durationDelta":`...), q.StepMS/1000, 10)
	return append(b, '}')
}

func (s *Server) renderDiff(w http.ResponseWriter, r *http.Request) {
	s.legacy(w, r, "application/json", func(ctx context.Context, tenant string, form url.Values) ([]byte, error) {
		var flames [2]*profiles.FlameGraph
		var q profiles.MergeRequest
		nodes := 0
		for i, side := range []string{"left", "right"} {
			var err error
			if q, err = s.legacyQuery(tenant, form, side+"Query", side+"From", side+"Until"); err != nil {
				return nil, err
			}
			nodes = max(nodes, q.MaxNodes)
			q.MaxNodes = diffNodesMax
			if flames[i], err = s.flame(ctx, q); err != nil {
				return nil, err
			}
		}
		d := Diff(flames[0], flames[1], nodes)
		b := []byte(`{"version":1,"flamebearer":{`)
		b = appendFlamebearer(b, d.Names, d.Levels, d.Total, d.MaxSelf)
		b = appendMetadata(append(b, `},"metadata":{"format":"double",`...), q.Type)
		b = strconv.AppendInt(append(b, `},"leftTicks":`...), d.LeftTicks, 10)
		b = strconv.AppendInt(append(b, `,"rightTicks":`...), d.RightTicks, 10)
		return append(requestContextOf(ctx).appendWarnings(b), '}'), nil
	})
}

func (s *Server) legacyLabelValues(w http.ResponseWriter, r *http.Request) {
	s.legacyLabels(w, r, func(ctx context.Context, form url.Values, r profiles.LabelsRequest) ([]string, error) {
		if r.LabelFor = form.Get("label"); r.LabelFor == "" {
			return nil, badRequest{errors.New("label is missing")}
		}
		values, warnings, err := s.querier.LabelValues(ctx, &r)
		warn(ctx, warnings)
		return values, err
	})
}

func (s *Server) legacyLabelNames(w http.ResponseWriter, r *http.Request) {
	s.legacyLabels(w, r, func(ctx context.Context, _ url.Values, r profiles.LabelsRequest) ([]string, error) {
		names, warnings, err := s.querier.LabelNames(ctx, &r)
		warn(ctx, warnings)
		return names, err
	})
}

func (s *Server) legacyLabels(w http.ResponseWriter, r *http.Request, f func(ctx context.Context, form url.Values,
	r profiles.LabelsRequest) ([]string, error)) {
	s.legacy(w, r, "application/json", func(ctx context.Context, tenant string, form url.Values) ([]byte, error) {
		var startMS, endMS int64
		var err error
		if form.Has("from") || form.Has("until") {
			if startMS, endMS, err = legacyRange(form, "from", "until"); err != nil {
				return nil, err
			}
		}
		request, err := s.labelsQuery(tenant, form["query"], startMS, endMS)
		if err != nil {
			return nil, err
		}
		values, err := f(ctx, form, request)
		if err != nil {
			return nil, err
		}
		return appendTexts(nil, values), nil
	})
}
