package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

// kind is an error's type as a client reads it in errorType.
type kind string

const (
	kindTimeout     kind = "timeout"
	kindCanceled    kind = "canceled"
	kindExecution   kind = "execution"
	kindBadData     kind = "bad_data"
	kindInternal    kind = "internal"
	kindUnavailable kind = "unavailable"
)

// statusClientClosed is what nginx made customary for a client that left.
const statusClientClosed = 499

// statusOf is the one table from kinds of errors to HTTP statuses. Prometheus
// answers `unavailable` with 500, and so is it here.
var statusOf = map[kind]int{
	kindTimeout:     http.StatusServiceUnavailable,
	kindCanceled:    statusClientClosed,
	kindExecution:   http.StatusUnprocessableEntity,
	kindBadData:     http.StatusBadRequest,
	kindInternal:    http.StatusInternalServerError,
	kindUnavailable: http.StatusInternalServerError,
}

type apiError struct {
	kind kind
	err  error
}

func badData(err error) *apiError { return &apiError{kindBadData, err} }

func invalidParameter(name string, err error) *apiError {
	return badData(fmt.Errorf("invalid parameter %q: %w", name, err))
}

// endedInQueue is the answer to a query whose time or client went away while it
// waited for its turn, and nil for every other error. There the engine returns
// the context's bare error, which Prometheus takes for a bad query or a failed
// evaluation, as chance has it; a client must be told that it may try again.
func endedInQueue(err error) *apiError {
	switch err { //nolint:errorlint // only the queue returns them bare
	case context.Canceled:
		return queryError(promql.ErrQueryCanceled("query queue"))
	case context.DeadlineExceeded:
		return queryError(promql.ErrQueryTimeout("query queue"))
	default:
		return nil
	}
}

// queryError classifies what an engine or a querier returned.
func queryError(err error) *apiError {
	var (
		canceled  promql.ErrQueryCanceled
		timeout   promql.ErrQueryTimeout
		inStorage promql.ErrStorage
	)
	switch {
	case errors.Is(err, tsdb.ErrNotReady):
		return &apiError{kindUnavailable, err}
	case errors.As(err, &canceled):
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
