package remotewrite

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"golang.org/x/sync/semaphore"
)

// OTLPOptions of a receiver of OTLP metrics, besides those of Options.
type OTLPOptions struct {
	ConvertDelta  bool          // sum samples of delta temporality to cumulative ones
	NativeDelta   bool          // store samples of delta temporality as they are
	LookbackDelta time.Duration // of queries; samples of target_info are at most half of it apart
}

// otlpCost is the decoded size of an OTLP request that is counted against
// Options.DecodingMax. The receiver reads at most 32 MiB after decompression, and decoded
// objects are several times larger.
const otlpCost = 128 << 20

// NewOTLPHandler creates the receiver of OTLP metrics over HTTP, as protobuf or JSON. It is
// Prometheus' own receiver, behind the limits of remote write. current returns the
// configuration, whose section otlp applies.
func NewOTLPHandler(opts Options, otlp OTLPOptions, to storage.AppendableV2, current func() config.Config, logger *slog.Logger, reg prometheus.Registerer) http.Handler {
	opts = opts.withDefaults()
	logger = slog.New(newLimited(logger.Handler(), linesMax, linesEvery, time.Now))
	return &handler{
		opts:   opts,
		logger: logger,
		receiver: remote.NewOTLPWriteHandler(logger, reg, to, current, remote.OTLPOptions{
			ConvertDelta: otlp.ConvertDelta, NativeDelta: otlp.NativeDelta, LookbackDelta: otlp.LookbackDelta, EnableTypeAndUnitLabels: opts.TypeAndUnitLabels,
		}),
		slots:    make(chan struct{}, opts.InFlightMax),
		decoding: semaphore.NewWeighted(opts.DecodingMax),
		fixed:    otlpCost,
	}
}
