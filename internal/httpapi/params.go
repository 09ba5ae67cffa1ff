package httpapi

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
)

// minTime and maxTime are the defaults of start and end. They equal Prometheus' values,
// which clients send: math.MinInt64 and math.MaxInt64 ms, offset by the seconds between
// the years 1 and 1970.
var (
	minTime = time.Unix(math.MinInt64/1000+62135596801, 0).UTC()
	maxTime = time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC()
)

// formBytesMax limits the body of a request.
const formBytesMax = 10 << 20

// parseForm parses the query string and a body of at most formBytesMax. A larger body is an
// error that names the limit.
func parseForm(w http.ResponseWriter, r *http.Request) *apiError {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w, r.Body, formBytesMax)
	}
	var err error
	if r.Method == http.MethodPost && isMultipart(r) {
		//lint:ignore gosec the body is limited above
		err = r.ParseMultipartForm(formBytesMax)
	} else {
		err = r.ParseForm()
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return badData(fmt.Errorf("request body is larger than %d bytes", tooLarge.Limit))
	default:
		return badData(fmt.Errorf("error parsing form values: %w", err))
	}
}

func isMultipart(r *http.Request) bool {
	const multipart = "multipart/form-data"
	ct := r.Header.Get("Content-Type")
	return len(ct) >= len(multipart) && strings.EqualFold(ct[:len(multipart)], multipart)
}

func parseTime(s string) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		whole, fraction := math.Modf(seconds)
		milliseconds := math.Round(fraction * 1000)
		return time.Unix(int64(whole), int64(milliseconds/1000*float64(time.Second))).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	// time.Parse accepts years of four digits only, and clients send minTime and maxTime.
	switch s {
	case minTime.Format(time.RFC3339Nano):
		return minTime, nil
	case maxTime.Format(time.RFC3339Nano):
		return maxTime, nil
	}
	return time.Time{}, fmt.Errorf("cannot parse %q to a valid timestamp", s)
}

// optional parses a parameter; byDefault if it is absent.
func optional[T any](r *http.Request, name string, byDefault T, parse func(string) (T, error)) (T, *apiError) {
	text := r.FormValue(name)
	if text == "" {
		return byDefault, nil
	}
	v, err := parse(text)
	if err != nil {
		return byDefault, invalidParameter(name, err)
	}
	return v, nil
}

func optionalTime(r *http.Request, name string, byDefault time.Time) (time.Time, *apiError) {
	return optional(r, name, byDefault, func(text string) (time.Time, error) {
		t, err := parseTime(text)
		if err != nil {
			err = fmt.Errorf("invalid time value for '%s': %w", name, err)
		}
		return t, err
	})
}

// requiredRange parses `start` and `end`, both of which a request must have.
func requiredRange(r *http.Request) (start, end time.Time, apiErr *apiError) {
	start, err := parseTime(r.FormValue("start"))
	if err != nil {
		return start, end, invalidParameter("start", err)
	}
	if end, err = parseTime(r.FormValue("end")); err != nil {
		return start, end, invalidParameter("end", err)
	}
	if end.Before(start) {
		return start, end, invalidParameter("end", errors.New("end timestamp must not be before start time"))
	}
	return start, end, nil
}

// optionalRange parses `start` and `end`. Both are inclusive.
func optionalRange(r *http.Request) (start, end time.Time, apiErr *apiError) {
	if start, apiErr = optionalTime(r, "start", minTime); apiErr != nil {
		return start, end, apiErr
	}
	end, apiErr = optionalTime(r, "end", maxTime)
	return start, end, apiErr
}

func parseDuration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		ns := seconds * float64(time.Second)
		if ns > float64(math.MaxInt64) || ns < float64(math.MinInt64) {
			return 0, fmt.Errorf("cannot parse %q to a valid duration. It overflows int64", s)
		}
		return time.Duration(ns), nil
	}
	if d, err := model.ParseDuration(s); err == nil {
		return time.Duration(d), nil
	}
	return 0, fmt.Errorf("cannot parse %q to a valid duration", s)
}

// parseLimit parses `limit`; 0 means no limit.
func parseLimit(r *http.Request) (int, *apiError) {
	return optional(r, "limit", 0, func(text string) (int, error) {
		limit, err := strconv.Atoi(text)
		if err == nil && limit < 0 {
			err = errors.New("limit must be non-negative")
		}
		return limit, err
	})
}

// hintLimit returns one more than the limit, so that a truncated result can be
// distinguished from one with exactly limit elements.
func hintLimit(limit int) int {
	if limit > 0 && limit < math.MaxInt {
		return limit + 1
	}
	return limit
}

// optionalInt parses an integer parameter; -1 if it is absent.
func optionalInt(r *http.Request, name string) (int, *apiError) {
	text := r.FormValue(name)
	if text == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, badData(fmt.Errorf("%s must be a number", name))
	}
	return n, nil
}

// parseMatchers parses match[]. Every set needs a matcher that does not match the empty string, since it would
// otherwise select all series. With Stores such sets are allowed, as in Thanos: a dashboard variable with the value
// All becomes `{job=~".*"}`.
func (a *API) parseMatchers(r *http.Request) ([][]*labels.Matcher, error) {
	sets, err := a.opts.Parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		if a.opts.Stores == nil && !selects(set) {
			return nil, errors.New("match[] must contain at least one non-empty matcher")
		}
	}
	return sets, nil
}

func selects(set []*labels.Matcher) bool {
	return slices.ContainsFunc(set, func(m *labels.Matcher) bool { return m != nil && !m.Matches("") })
}

// queryOptions parses `lookback_delta` and `stats`.
func queryOptions(r *http.Request) (promql.QueryOpts, *apiError) {
	var lookback time.Duration
	if text := r.FormValue("lookback_delta"); text != "" {
		d, err := parseDuration(text)
		if err != nil {
			return nil, badData(fmt.Errorf("error parsing lookback delta duration: %w", err))
		}
		lookback = d
	}
	return promql.NewPrometheusQueryOpts(r.FormValue("stats") == "all", lookback), nil
}

func milliseconds(t time.Time) int64 { return timestamp.FromTime(t) }
