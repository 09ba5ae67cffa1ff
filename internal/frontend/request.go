package frontend

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/internal/frontend/split"
)

// formMaxBytes bounds a request's body, as Prometheus does.
const formMaxBytes = 10 << 20

// pointsMax is Prometheus' limit on the steps of a range query: what exceeds it
// is left to the downstream to refuse.
const pointsMax = 11_000

// query is a request to the API, read but not understood further than needed.
type query struct {
	path   string // escaped, as the client sent it
	params url.Values
	header http.Header // to forward
	tenant string
}

// neutralHeaders of those that are forwarded change no response: they say who
// sends it, or belong to a trace. Accept is not one of them, but what is cut or
// cached is always requested as JSON, and flights look at it by themselves.
var neutralHeaders = map[string]bool{
	"Accept": true, "Content-Type": true, "User-Agent": true,
	"Traceparent": true, "Tracestate": true, "Baggage": true, "Uber-Trace-Id": true, "B3": true,
	"X-B3-Traceid": true, "X-B3-Spanid": true, "X-B3-Parentspanid": true, "X-B3-Sampled": true, "X-B3-Flags": true,
}

// variant is a hash of the forwarded headers that may change a response, such as
// Authorization, Cookie and everything that may name a tenant. "" stands for none.
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

// keyText is a key of several texts, each with its length, so that no text can
// imitate another.
type keyBuilder struct{ strings.Builder }

func (k *keyBuilder) part(text string) {
	k.WriteString(strconv.Itoa(len(text)))
	k.WriteByte(':')
	k.WriteString(text)
}

func (k *keyBuilder) list(name string, values []string) {
	k.part(name)
	k.WriteString(strconv.Itoa(len(values)))
	k.WriteByte(',')
	for _, value := range values {
		k.part(value)
	}
}

// errNotARange says that a request is not a range query that can be cut; the
// downstream gets it as it is and words what is wrong with it.
var errNotSplittable = errors.New("not a range query that can be cut")

// rangeOf reads start, end and step. Times are milliseconds; a step that is not
// whole milliseconds has no grid here.
func (q query) rangeOf() (split.Range, error) {
	start, err := parseTime(q.params.Get("start"))
	if err != nil {
		return split.Range{}, errNotSplittable
	}
	end, err := parseTime(q.params.Get("end"))
	if err != nil {
		return split.Range{}, errNotSplittable
	}
	step, err := parseDuration(q.params.Get("step"))
	if err != nil || step < time.Millisecond || step%time.Millisecond != 0 {
		return split.Range{}, errNotSplittable
	}
	r, err := split.NewRange(start, end, step.Milliseconds())
	if err != nil || (end-start)/r.StepMS > pointsMax {
		return split.Range{}, errNotSplittable
	}
	return r, nil
}

// aligned is the request with start and end moved back to multiples of the step.
func (q query) aligned(stepMS int64) (query, split.Range, error) {
	start, err := parseTime(q.params.Get("start"))
	if err != nil {
		return q, split.Range{}, err
	}
	end, err := parseTime(q.params.Get("end"))
	if err != nil {
		return q, split.Range{}, err
	}
	back := func(ms int64) int64 { return ms - split.Range{StartMS: ms, StepMS: stepMS}.StepOffset() }
	q = q.withRange(back(start), back(end))
	r, err := q.rangeOf()
	return q, r, err
}

// bounds reads optional start and end of a metadata request; absent ones get
// what the frontend is told to assume.
func (q query) bounds(now time.Time, byDefault time.Duration) (startMS, endMS int64, err error) {
	startMS, endMS = now.Add(-byDefault).UnixMilli(), now.UnixMilli()
	if text := q.params.Get("end"); text != "" {
		if endMS, err = parseTime(text); err != nil {
			return 0, 0, err
		}
		startMS = endMS - byDefault.Milliseconds()
	}
	if text := q.params.Get("start"); text != "" {
		if startMS, err = parseTime(text); err != nil {
			return 0, 0, err
		}
	}
	if endMS < startMS {
		return 0, 0, errNotSplittable
	}
	return startMS, endMS, nil
}

// lookback is what the request says of how far back, and smoothed selectors how
// far ahead, samples count; 0 where it says nothing that is understood.
func (q query) lookback() time.Duration {
	lookback, err := parseDuration(q.params.Get("lookback_delta"))
	if err != nil {
		return 0
	}
	return lookback
}

// over is the same request for another range.
func (q query) withRange(startMS, endMS int64) query {
	params := make(url.Values, len(q.params)+2)
	for name, values := range q.params {
		params[name] = values
	}
	params["start"], params["end"] = []string{seconds(startMS)}, []string{seconds(endMS)}
	q.params = params
	return q
}

// key names what two requests must share for the response to one to serve the
// other: tenant, forwarded headers, path, and every parameter but start and end,
// known or not. Every cache and every sharing of responses goes by it.
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

// asJSON is the same request with JSON as the only form of the response. ok is
// false where the client does not accept JSON: the request must go on as it is.
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

// acceptsJSON tells whether an Accept header allows application/json. Of several
// ranges that match it the most specific decides.
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
				best, accepted = rank, !zeroQuality(params)
			}
		}
	}
	return accepted || !any
}

func zeroQuality(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err == nil && q == 0
		}
	}
	return false
}

// seconds words milliseconds as the API takes them, exactly.
func seconds(ms int64) string {
	sign := ""
	if ms < 0 {
		sign = "-"
	}
	whole, fraction := ms/1000, ms%1000
	if whole < 0 {
		whole = -whole
	}
	if fraction < 0 {
		fraction = -fraction
	}
	text := sign + strconv.FormatInt(whole, 10)
	if fraction == 0 {
		return text
	}
	digits := strconv.FormatInt(1000+fraction, 10)
	return text + "." + digits[1:]
}

// parseTime reads a time as Prometheus' API does, in milliseconds.
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

// parseDuration reads a step as Prometheus' API does.
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
