package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
	"github.com/ferula-io/ferula/internal/query/exemplar"
	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/wire/profileapi"
)

// Flames leads from exemplars to flame graphs.
type Flames interface {
	Find(ctx context.Context, r exemplar.Request) (*exemplar.Result, error)
}

// errNoSamples is a warning beside an empty flame graph: a profile arrives once it
// has ended, and one of a hundred samples a second misses what is short.
var errNoSamples = errors.New("the profile has not arrived yet, or has no such samples")

// nodesDefault and nodesMax are of a flame graph.
const (
	nodesDefault = 8192
	nodesMax     = 1 << 20
)

// exemplarFlamegraph answers with the flame graph that an exemplar leads to: that
// of query's metrics with the greatest value, or nearest to `time`, or of the
// profile named.
func (a *API) exemplarFlamegraph(r *http.Request) (answer, *apiError) {
	asked, apiErr := a.exemplarRequest(r)
	if apiErr != nil {
		return answer{}, apiErr
	}
	found, err := a.opts.Flames.Find(r.Context(), asked)
	switch {
	case errors.Is(err, exemplar.ErrNone), errors.Is(err, profiles.ErrBadRequest):
		return answer{}, badData(err)
	case errors.Is(err, profiles.ErrUnavailable):
		return answer{}, &apiError{kindUnavailable, err}
	case err != nil:
		return answer{}, queryError(err)
	}
	n := &notes{}
	for _, warning := range found.Flame.Warnings {
		n.list.Add(warning)
	}
	if found.Flame.Total == 0 {
		n.list.Add(errNoSamples)
	}
	return answer{write: func(s *stream) { s.exemplarFlame(found) }, notes: n}, nil
}

func (a *API) exemplarRequest(r *http.Request) (exemplar.Request, *apiError) {
	asked := exemplar.Request{ProfileID: r.FormValue("profile_id"), Match: r.Form["match"], NodesMax: nodesDefault}
	var err error
	tenantOf := a.opts.FlamesTenant
	if tenantOf == nil {
		tenantOf = profileapi.TenantOf
	}
	if asked.Tenant, err = tenantOf(r.Header); err != nil {
		return asked, badData(err)
	}
	if asked.ProfileID == "" {
		if r.FormValue("query") == "" {
			return asked, badData(errors.New(`either "profile_id" or "query" must be given`))
		}
		expr, err := a.parseExpr(r, nesting.LevelsMax)
		if err != nil {
			return asked, badData(err)
		}
		if asked.Selectors = parser.ExtractSelectors(expr); len(asked.Selectors) == 0 {
			return asked, invalidParameter("query", errors.New("it selects no series"))
		}
	}
	if asked.ProfileID == "" || r.FormValue("start") != "" || r.FormValue("end") != "" {
		start, end, apiErr := optionalRange(r)
		if apiErr != nil {
			return asked, apiErr
		}
		if end.Before(start) {
			return asked, badData(errors.New("end timestamp must not be before start timestamp"))
		}
		asked.StartMS, asked.EndMS = milliseconds(start), milliseconds(end)
	}
	if text := r.FormValue("time"); text != "" {
		t, err := parseTime(text)
		if err != nil {
			return asked, invalidParameter("time", err)
		}
		asked.NearMS = milliseconds(t)
	}
	if text := r.FormValue("window"); text != "" {
		window, err := parseDuration(text)
		if err != nil || window <= 0 {
			return asked, invalidParameter("window", fmt.Errorf("%q is no duration above zero", text))
		}
		asked.WindowMS = window.Milliseconds()
	}
	if text := r.FormValue("type"); text != "" {
		if asked.Type, err = profiles.ParseType(text); err != nil {
			return asked, invalidParameter("type", err)
		}
	}
	if text := r.FormValue("selector"); text != "" {
		if asked.Matchers, err = a.opts.Parser.ParseMetricSelector(text); err != nil {
			return asked, invalidParameter("selector", err)
		}
	}
	if text := r.FormValue("max_nodes"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 || n > nodesMax {
			return asked, invalidParameter("max_nodes", fmt.Errorf("%q is not between 1 and %d", text, nodesMax))
		}
		asked.NodesMax = int(n)
	}
	return asked, nil
}

// exactMax is the greatest integer that JavaScript counts to without a gap; what
// is greater becomes a string.
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

func (s *stream) exemplarFlame(a *exemplar.Result) {
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
	s.raw(`,"levels":[`)
	for i, level := range a.Flame.Levels {
		s.comma(i)
		s.raw("[")
		for j, v := range level {
			s.comma(j)
			s.count(v)
		}
		s.raw("]")
		if !s.room() {
			return
		}
	}
	s.raw(`],"total":`)
	s.count(a.Flame.Total)
	s.raw(`,"maxSelf":`)
	s.count(a.Flame.MaxSelf)
	s.raw("}}")
}
