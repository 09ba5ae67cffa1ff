package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

// kind is the value of errorType in an error response.
type kind string

const (
	kindTimeout     kind = "timeout"
	kindCanceled    kind = "canceled"
	kindExecution   kind = "execution"
	kindBadData     kind = "bad_data"
	kindInternal    kind = "internal"
	kindUnavailable kind = "unavailable"
	kindNotFound    kind = "not_found"
)

// statusClientClosed is nginx' status for a client that closed the connection.
const statusClientClosed = 499

// statusOf maps every kind of error to its HTTP status. As in Prometheus, `unavailable`
// is status 500.
var statusOf = map[kind]int{
	kindTimeout:     http.StatusServiceUnavailable,
	kindCanceled:    statusClientClosed,
	kindExecution:   http.StatusUnprocessableEntity,
	kindBadData:     http.StatusBadRequest,
	kindInternal:    http.StatusInternalServerError,
	kindUnavailable: http.StatusInternalServerError,
	kindNotFound:    http.StatusNotFound,
}

type apiError struct {
	kind kind
	err  error
}

func badData(err error) *apiError { return &apiError{kindBadData, err} }

func invalidParameter(name string, err error) *apiError {
	return badData(fmt.Errorf("invalid parameter %q: %w", name, err))
}

// queueError returns the error of a query that timed out or was canceled in the query queue, and nil for every other
// error. In the queue the engine returns the bare error of the context, which Prometheus maps to bad_data or execution,
// depending on timing. A client needs an error that allows a retry.
func queueError(err error) *apiError {
	switch err { //lint:ignore errorlint only the queue returns them unwrapped
	case context.Canceled:
		return queryError(promql.ErrQueryCanceled("query queue"))
	case context.DeadlineExceeded:
		return queryError(promql.ErrQueryTimeout("query queue"))
	default:
		return nil
	}
}

// queryError maps the error of an engine or a querier to its kind.
func queryError(err error) *apiError {
	var (
		canceled  promql.ErrQueryCanceled
		timeout   promql.ErrQueryTimeout
		inStorage promql.ErrStorage
		ended     *endedError
	)
	switch {
	case errors.Is(err, tsdb.ErrNotReady):
		return &apiError{kindUnavailable, err}
	case errors.As(err, &canceled), errors.As(err, &ended):
		return &apiError{kindCanceled, err}
	case errors.As(err, &timeout):
		return &apiError{kindTimeout, err}
	case errors.As(err, &inStorage):
		return &apiError{kindInternal, err}
	case errors.Is(err, errStoreTimeout):
		return &apiError{kindTimeout, err}
	case errors.Is(err, context.Canceled):
		return &apiError{kindCanceled, err}
	default:
		return &apiError{kindExecution, err}
	}
}
