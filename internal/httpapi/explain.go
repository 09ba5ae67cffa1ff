package httpapi

import (
	"net/http"

	"github.com/ferula-io/ferula/internal/promql/columns"
)

// explainOf returns the endpoint of the plans of instant or range queries, which are not executed. The JSON is that of
// Thanos: a tree of operators, each with its name.
func (a *API) explainOf(prepare func(*http.Request) (preparedQuery, *apiError)) endpoint {
	return func(r *http.Request) (response, *apiError) {
		p, apiErr := prepare(r)
		if apiErr != nil {
			return response{}, apiErr
		}
		return a.explain(r, p)
	}
}

func (a *API) explain(r *http.Request, p preparedQuery) (response, *apiError) {
	ctx, cancel, apiErr := a.queryContext(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	defer cancel()
	e, apiErr := a.evaluation(r, p, true)
	if apiErr != nil {
		return response{}, apiErr
	}
	e.ctx = ctx
	qry, err := p.open(e)
	if err != nil {
		return response{}, openError(err)
	}
	defer qry.Close()
	plan := columns.PlanOf(qry)
	return response{write: func(s *stream) { s.plan(plan) }}, nil
}

// plan appends {"name":...,"children":[...]}, without children if there are none.
func (s *stream) plan(p columns.Plan) {
	s.field(`{"name":`, p.Operator)
	if len(p.Operands) > 0 {
		s.raw(`,"children":`)
		each(s, p.Operands, func(operand *columns.Plan) { s.plan(*operand) })
	}
	s.raw("}")
}
