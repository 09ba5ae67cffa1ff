package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/api"
)

// Flames finds the flame graph of an exemplar.
type Flames interface {
	Find(ctx context.Context, r profiles.ExemplarRequest) (*profiles.ExemplarResult, error)
}

// errNoSamples is the warning of an empty flame graph. A profile is ingested after its end,
// and at a hundred samples per second a short request may have no sample.
var errNoSamples = errors.New("the profile is not ingested yet, or it has no matching samples")

// nodesDefault and nodesMax are the default and the maximum of `max_nodes`.
const (
	nodesDefault = 8192
	nodesMax     = 1 << 20
)

// exemplarFlamegraph returns the flame graph of an exemplar or of `profile_id`. Of the exemplars of the series in
// `query` it takes the one nearest to `time` or, without `time`, the one with the greatest value.
func (a *API) exemplarFlamegraph(r *http.Request) (response, *apiError) {
	req, apiErr := a.exemplarRequest(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	found, err := a.opts.Flames.Find(r.Context(), req)
	switch {
	case errors.Is(err, profiles.ErrNoExemplar), errors.Is(err, profiles.ErrBadRequest):
		return response{}, badData(err)
	case errors.Is(err, profiles.ErrUnavailable):
		return response{}, &apiError{kindUnavailable, err}
	case err != nil:
		return response{}, queryError(err)
	}
	notes := &responseAnnotations{}
	for _, warning := range found.Flame.Warnings {
		notes.list.Add(warning)
	}
	if found.Flame.Total == 0 {
		notes.list.Add(errNoSamples)
	}
	return response{write: func(s *stream) { s.exemplarFlame(found) }, annotations: notes}, nil
}

func (a *API) exemplarRequest(r *http.Request) (profiles.ExemplarRequest, *apiError) {
	req := profiles.ExemplarRequest{ProfileID: r.FormValue("profile_id"), Match: r.Form["match"], NodesMax: nodesDefault}
	var err error
	tenantOf := a.opts.FlamesTenant
	if tenantOf == nil {
		tenantOf = api.TenantOf
	}
	if req.Tenant, err = tenantOf(r.Header); err != nil {
		return req, badData(err)
	}
	if req.ProfileID == "" {
		if r.FormValue("query") == "" {
			return req, badData(errors.New(`either "profile_id" or "query" must be given`))
		}
		expr, err := a.parseExpr(r, precheck.LevelsMax)
		if err != nil {
			return req, badData(err)
		}
		if req.Selectors = parser.ExtractSelectors(expr); len(req.Selectors) == 0 {
			return req, invalidParameter("query", errors.New("selects no series"))
		}
	}
	if req.ProfileID == "" || r.FormValue("start") != "" || r.FormValue("end") != "" {
		start, end, apiErr := optionalRange(r)
		if apiErr != nil {
			return req, apiErr
		}
		if end.Before(start) {
			return req, badData(errors.New("end timestamp must not be before start timestamp"))
		}
		req.StartMS, req.EndMS = milliseconds(start), milliseconds(end)
	}
	near, apiErr := optionalTime(r, "time", time.UnixMilli(0))
	if apiErr != nil {
		return req, apiErr
	}
	req.NearMS = milliseconds(near)
	if text := r.FormValue("window"); text != "" {
		window, err := parseDuration(text)
		if err != nil || window <= 0 {
			return req, invalidParameter("window", fmt.Errorf("%q is not a duration above zero", text))
		}
		req.WindowMS = window.Milliseconds()
	}
	if req.Type, apiErr = optional(r, "type", req.Type, profiles.ParseType); apiErr != nil {
		return req, apiErr
	}
	if req.Matchers, apiErr = optional(r, "selector", nil, a.opts.Parser.ParseMetricSelector); apiErr != nil {
		return req, apiErr
	}
	if text := r.FormValue("max_nodes"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 || n > nodesMax {
			return req, invalidParameter("max_nodes", fmt.Errorf("%q is not between 1 and %d", text, nodesMax))
		}
		req.NodesMax = int(n)
	}
	return req, nil
}

// exactMax is the largest integer up to which JavaScript represents every integer exactly.
// Larger ones are encoded as strings.
const exactMax = 1 << 53

func (s *stream) count(n int64) {
	if n > exactMax || n < -exactMax {
		s.raw(`"`)
		s.integer(n)
		s.raw(`"`)
		return
	}
	s.integer(n)
}

func (s *stream) exemplarFlame(a *profiles.ExemplarResult) {
	s.raw(`{"exemplar":`)
	if a.Found {
		s.raw(`{"seriesLabels":`)
		s.labels(a.Series)
		s.raw(`,"exemplar":`)
		s.exemplar(&a.Exemplar)
		s.raw("}")
	} else {
		s.raw("null")
	}
	s.field(`,"by":`, a.By)
	s.field(`,"id":`, a.ID)
	s.field(`,"type":`, a.Type.String())
	s.raw(`,"flamegraph":{"names":`)
	s.strings(a.Flame.Names)
	s.raw(`,"levels":`)
	each(s, a.Flame.Levels, func(level *[]int64) { each(s, *level, func(v *int64) { s.count(*v) }) })
	s.raw(`,"total":`)
	s.count(a.Flame.Total)
	s.raw(`,"maxSelf":`)
	s.count(a.Flame.MaxSelf)
	s.raw("}}")
}
