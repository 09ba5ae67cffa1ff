package columns

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// unread is a source that must not be read.
type unread struct{ t *testing.T }

func (u unread) sel(context.Context, *selector, *cover) pointsSet {
	u.t.Error("selected")
	return nil
}

func (unread) close() error { return nil }

// A query may have megabytes of scalars, or of selections without series. Each of them checks whether the query has
// ended.
func TestNodes_WithoutSeriesNoticeTheEndOfTheQuery(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ev := &evaluation{ctx: ctx, steps: 1, interval: 1, source: unread{t}}
	for what, n := range map[string]node{"number": numberNode(1), "time()": timeNode{}, "pi()": piNode{}, "selector": &selector{vs: &parser.VectorSelector{}}} {
		err := n.eval(ev, func(*row) error {
			t.Errorf("%s is evaluated", what)
			return nil
		})
		if !errors.As(err, new(promql.ErrQueryCanceled)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
