package frontend

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/httpbody"
)

// BodyBytesMax is the limit of a request body, the same as in Prometheus.
const BodyBytesMax = 10 << 20

// pointsMax is Prometheus' limit of the steps of a range query. A query beyond it is
// passed through, and the downstream returns the error.
const pointsMax = 11_000

// query is a request of the API: its path, parameters and headers to forward.
type query struct {
	path   string // escaped, as the client sent it
	params url.Values
	header http.Header // to forward
	tenant string
}

// neutralHeaders are forwarded headers that do not change a response: they name the client's
// software or the type of the request body, or belong to a trace. Accept does change a response,
// but split and cached queries always request JSON, and callKey contains Accept.
var neutralHeaders = map[string]bool{
	"Accept": true, "Content-Type": true, "User-Agent": true,
	"Traceparent": true, "Tracestate": true, "Baggage": true, "Uber-Trace-Id": true, "B3": true,
	"X-B3-Traceid": true, "X-B3-Spanid": true, "X-B3-Parentspanid": true, "X-B3-Sampled": true, "X-B3-Flags": true,
}

// headerHash returns a hash of the forwarded headers that may change a response, such as
// Authorization, Cookie and every header that may name a tenant. It is "" without any.
func (q query) headerHash() string {
	names := make([]string, 0, len(q.header))
	for name := range q.header {
		if !neutralHeaders[name] {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	sort.Strings(names)
	var k keyBuilder
	for _, name := range names {
		k.list(name, q.header[name])
	}
	sum := sha256.Sum256([]byte(k.String()))
	return hex.EncodeToString(sum[:16])
}

// keyBuilder builds a key of several strings. Each is prefixed by its length, so that
// different lists of strings have different keys.
type keyBuilder struct{ strings.Builder }

func (k *keyBuilder) part(s string) {
	k.WriteString(strconv.Itoa(len(s)))
	k.WriteByte(':')
	k.WriteString(s)
}

func (k *keyBuilder) list(name string, values []string) {
	k.part(name)
	k.WriteString(strconv.Itoa(len(values)))
	k.WriteByte(',')
	for _, value := range values {
		k.part(value)
	}
}

// errNotSplittable means that a request has an invalid time or duration, a step that is not a
// whole number of milliseconds, or too many steps. The request is passed through, and the
// downstream returns the error, if any.
var errNotSplittable = errors.New("not a range query that can be split")

// times parses start and end, in milliseconds. Its only error is errNotSplittable.
func (q query) times() (startMS, endMS int64, err error) {
	if startMS, err = parseTime(q.params.Get("start")); err != nil {
		return 0, 0, err
	}
	endMS, err = parseTime(q.params.Get("end"))
	return startMS, endMS, err
}

// rangeOf parses start, end and step, in milliseconds. Its only error is errNotSplittable.
func (q query) rangeOf() (stepRange, error) {
	start, end, err := q.times()
	if err != nil {
		return stepRange{}, err
	}
	step, err := parseDuration(q.params.Get("step"))
	if err != nil || step < time.Millisecond || step%time.Millisecond != 0 {
		return stepRange{}, errNotSplittable
	}
	r, err := newRange(start, end, step.Milliseconds())
	if err != nil || (end-start)/r.StepMS > pointsMax {
		return stepRange{}, errNotSplittable
	}
	return r, nil
}

// checkRange applies the limits to the whole range, also of a query that is passed through
// because its step is not a whole number of milliseconds or has too many points.
func (q query) checkRange(limits limit.Query) error {
	start, end, err := q.times()
	if err != nil {
		return nil // the downstream returns the error
	}
	step, err := parseDuration(q.params.Get("step"))
	if err != nil || step <= 0 {
		return limits.CheckRange(start, end, 0)
	}
	return limits.CheckRange(start, end, max(1, step.Milliseconds()))
}

// aligned returns the query with start and end moved back to multiples of the step.
func (q query) aligned(stepMS int64) (query, stepRange, error) {
	start, end, err := q.times()
	if err != nil {
		return q, stepRange{}, err
	}
	back := func(ms int64) int64 { return ms - stepRange{StartMS: ms, StepMS: stepMS}.StepOffset() }
	q = q.withRange(back(start), back(end))
	r, err := q.rangeOf()
	return q, r, err
}

// bounds parses the optional start and end of a labels or series request. end defaults
// to now, start to defaultRange before end.
func (q query) bounds(now time.Time, defaultRange time.Duration) (startMS, endMS int64, err error) {
	startMS, endMS = now.Add(-defaultRange).UnixMilli(), now.UnixMilli()
	if value := q.params.Get("end"); value != "" {
		if endMS, err = parseTime(value); err != nil {
			return 0, 0, err
		}
		startMS = endMS - defaultRange.Milliseconds()
	}
	if value := q.params.Get("start"); value != "" {
		if startMS, err = parseTime(value); err != nil {
			return 0, 0, err
		}
	}
	if endMS < startMS {
		return 0, 0, errNotSplittable
	}
	return startMS, endMS, nil
}

// lookback returns the query's lookback_delta, 0 if it is missing or invalid. A selector reads samples up to this
// duration before a step. A smoothed selector also reads samples up to this duration after it.
func (q query) lookback() time.Duration {
	lookback, err := parseDuration(q.params.Get("lookback_delta"))
	if err != nil {
		return 0
	}
	return lookback
}

// withRange returns the same query with another start and end.
func (q query) withRange(startMS, endMS int64) query {
	params := make(url.Values, len(q.params)+2)
	maps.Copy(params, q.params)
	params["start"], params["end"] = []string{seconds(startMS)}, []string{seconds(endMS)}
	q.params = params
	return q
}

// key is equal for two queries that differ in start and end only. It contains the tenant,
// a hash of the forwarded headers that are not neutral, the path, and every parameter but
// start and end, known or not. The caches and callKey use it.
func (q query) key() string {
	names := make([]string, 0, len(q.params))
	for name := range q.params {
		if name != "start" && name != "end" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var k keyBuilder
	k.part(q.tenant)
	k.part(q.headerHash())
	k.part(q.path)
	for _, name := range names {
		k.list(name, q.params[name])
	}
	return k.String()
}

// asJSON returns the same query with JSON as the only accepted media type. ok is false
// if the client does not accept JSON; the query must then be passed through.
func (q query) asJSON() (_ query, ok bool) {
	if !acceptsJSON(q.header.Values("Accept")) {
		return q, false
	}
	header := q.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Accept", "application/json")
	q.header = header
	return q, true
}

// acceptsJSON reports whether an Accept header allows application/json. Of several
// media ranges that match, the most specific one decides.
func acceptsJSON(accept []string) bool {
	accepted, best, any := false, -1, false
	for _, line := range accept {
		for item := range strings.SplitSeq(line, ",") {
			kind, params, _ := strings.Cut(item, ";")
			if kind = strings.ToLower(strings.TrimSpace(kind)); kind == "" {
				continue
			}
			any = true
			rank := slices.Index([]string{"*/*", "application/*", "application/json"}, kind)
			if rank > best {
				best, accepted = rank, httpbody.Weight(params) > 0
			}
		}
	}
	return accepted || !any
}

// seconds formats milliseconds as decimal seconds for the API, without rounding.
func seconds(ms int64) string {
	whole, fraction := strconv.FormatInt(ms/1000, 10), ms%1000
	switch {
	case fraction == 0:
		return whole
	case ms < 0 && ms > -1000:
		whole = "-0"
	}
	return fmt.Sprintf("%s.%03d", whole, max(fraction, -fraction))
}

// parseTime parses a time as Prometheus' API does, and returns milliseconds.
func parseTime(s string) (int64, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if math.IsNaN(f) || math.Abs(f) > 1e15 {
			return 0, errNotSplittable
		}
		whole, fraction := math.Modf(f)
		return int64(whole)*1000 + int64(math.Round(fraction*1000)), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, errNotSplittable
	}
	return t.UnixMilli(), nil
}

// parseDuration parses a duration or a step as Prometheus' API does.
func parseDuration(s string) (time.Duration, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		ns := f * float64(time.Second)
		if math.IsNaN(ns) || math.Abs(ns) >= math.MaxInt64 {
			return 0, errNotSplittable
		}
		return time.Duration(ns), nil
	}
	d, err := model.ParseDuration(s)
	if err != nil {
		return 0, errNotSplittable
	}
	return time.Duration(d), nil
}
