package remotewrite

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
)

// OTLPOptions of a receiver of OTLP metrics, in addition to Options.
type OTLPOptions struct {
	ConvertDelta  bool          // sum samples of delta temporality to cumulative ones
	NativeDelta   bool          // store samples of delta temporality as they are
	LookbackDelta time.Duration // of queries; target_info gets a sample at least every half of LookbackDelta
}

// otlpCost is the decoded size of an OTLP request that is counted against
// Options.DecodingMax. The receiver reads at most 32 MiB after decompression, and decoded
// objects are several times larger.
const otlpCost = 128 << 20

// NewOTLPHandler creates the receiver of OTLP metrics over HTTP, as protobuf or JSON. It is
// Prometheus' own receiver, behind the limits of remote write. current returns the
// configuration, whose section otlp applies.
func NewOTLPHandler(opts Options, otlp OTLPOptions, to storage.AppendableV2, current func() config.Config,
	logger *slog.Logger, reg prometheus.Registerer) http.Handler {
	h := newHandler(opts, logger)
	h.fixed = otlpCost
	h.receiver = remote.NewOTLPWriteHandler(h.logger, reg, openAppendable{to}, current, remote.OTLPOptions{
		ConvertDelta: otlp.ConvertDelta, NativeDelta: otlp.NativeDelta, LookbackDelta: otlp.LookbackDelta,
		EnableTypeAndUnitLabels: opts.TypeAndUnitLabels,
	})
	return h
}

// openAppender is the appender of a request. The goroutine of the request alone uses it.
type openAppender struct {
	transaction storage.AppenderTransaction // neither committed nor rolled back; nil if there is none
	commitErr   error                       // of a commit that failed; Prometheus' receiver of OTLP ignores it
}

// rollback rolls the appender back, if there is one. An appender of the head that stays open blocks the compaction
// of the head for ever.
func (o *openAppender) rollback() error {
	if o.transaction == nil {
		return nil
	}
	return o.transaction.Rollback()
}

type openAppenderKey struct{}

// withOpenAppender returns a context in which openAppendable records the appender that is open.
func withOpenAppender(ctx context.Context) (context.Context, *openAppender) {
	open := &openAppender{}
	return context.WithValue(ctx, openAppenderKey{}, open), open
}

// openAppendable records the open appender of each request. Prometheus' receiver of OTLP does not roll its appender
// back if it panics.
type openAppendable struct{ to storage.AppendableV2 }

// AppenderV2 implements storage.AppendableV2.
func (a openAppendable) AppenderV2(ctx context.Context) storage.AppenderV2 {
	app := &recordedAppender{AppenderV2: a.to.AppenderV2(ctx)}
	if open, ok := ctx.Value(openAppenderKey{}).(*openAppender); ok {
		app.open, open.transaction = open, app.AppenderV2
	} else {
		app.open = &openAppender{}
	}
	return app
}

// recordedAppender is an appender that openAppender records until it ends.
type recordedAppender struct {
	storage.AppenderV2
	open *openAppender
}

// Commit implements storage.AppenderTransaction.
func (a *recordedAppender) Commit() error {
	a.open.transaction = nil
	err := a.AppenderV2.Commit()
	if err != nil {
		a.open.commitErr = err
	}
	return err
}

func (a *recordedAppender) Rollback() error {
	a.open.transaction = nil
	return a.AppenderV2.Rollback()
}
