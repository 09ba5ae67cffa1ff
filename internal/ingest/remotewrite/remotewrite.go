// Package remotewrite receives Prometheus remote write, versions 1.0 and 2.0.
//
// A POST with a snappy-compressed WriteRequest or v2 Request is appended to a
// storage.Appendable. The response is a success only after Commit, when the samples are in
// the WAL. Prometheus' receiver decodes and chooses the status. This package adds
// limits: a body is read before its request takes a slot, its size is limited before and
// after decompression (32 MiB), and its decoded size is estimated before decoding. otlp.go
// receives OTLP metrics behind the same limits. There is no storage and no routing here.
package remotewrite

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/snappy"
	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/process"
)

// Options of a receiver. Zero values take the defaults.
type Options struct {
	InFlightMax  int   // requests decoded concurrently, further ones wait; 0: 16
	DecodedMax   int64 // decoded size of one request in bytes; 0: 256 MiB
	DecodingMax  int64 // decoded size of all requests in flight in bytes; 0: 512 MiB, DecodedMax at least
	BodyMaxBytes int64 // compressed size of a request; 0: 32 MiB, which is the maximum

	// MetadataInWAL writes the metadata of 2.0 requests to the WAL.
	MetadataInWAL bool
	// STAsZeroSample stores the start timestamp of a 2.0 sample as a sample of 0.
	STAsZeroSample bool
	// TypeAndUnitLabels adds __type__ and __unit__ to the series of 2.0 requests.
	TypeAndUnitLabels bool

	// Messages are the names of the accepted protobuf messages; none: both versions.
	Messages []string

	// Refusal returns an error with the reason if the storage accepts no samples now, and nil
	// otherwise. If Refusal itself is nil, no request is rejected for this reason.
	Refusal func() error

	Bodies *httpbody.Reader // shared with other receivers; nil: a new one
}

// bodyMaxBytes is the limit of Prometheus' receiver, compressed and decompressed. It is
// also enforced here, so that a larger body is rejected before it is read into memory.
const bodyMaxBytes = 32 << 20

func (o Options) withDefaults() Options {
	o.InFlightMax = cmp.Or(o.InFlightMax, 16)
	o.DecodedMax = cmp.Or(o.DecodedMax, 256<<20)
	o.DecodingMax = cmp.Or(o.DecodingMax, 512<<20)
	o.DecodingMax = max(o.DecodingMax, o.DecodedMax)
	if o.BodyMaxBytes == 0 || o.BodyMaxBytes > bodyMaxBytes {
		o.BodyMaxBytes = bodyMaxBytes
	}
	o.Bodies = cmp.Or(o.Bodies, httpbody.NewReader(httpbody.Options{}))
	return o
}

type handler struct {
	opts     Options
	receiver http.Handler
	logger   *slog.Logger
	slots    chan struct{}
	decoding *semaphore.Weighted
	fixed    int64 // decoded size of a request in bytes; 0: it is estimated
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	for _, name := range o.Messages {
		if err := remoteapi.WriteMessageType(name).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("protobuf message %q: must be %s or %s", name, remoteapi.WriteV1MessageType,
				remoteapi.WriteV2MessageType))
		}
	}
	return errors.Join(errs...)
}

// accepted returns the accepted protobuf messages.
func (o Options) accepted() (types remoteapi.MessageTypes) {
	for _, name := range o.Messages {
		types = append(types, remoteapi.WriteMessageType(name))
	}
	if len(types) == 0 {
		types = remoteapi.MessageTypes{remoteapi.WriteV1MessageType, remoteapi.WriteV2MessageType}
	}
	return types
}

// NewHandler creates the receiver.
func NewHandler(opts Options, to storage.Appendable, logger *slog.Logger, reg prometheus.Registerer) http.Handler {
	h := newHandler(opts, logger)
	h.receiver = remote.NewWriteHandler(h.logger, reg, to, opts.accepted(), opts.STAsZeroSample, opts.TypeAndUnitLabels,
		opts.MetadataInWAL)
	return h
}

// newHandler returns a handler without its receiver. Prometheus' receivers log a line for each rejected series, and a
// request may have thousands of them.
func newHandler(opts Options, logger *slog.Logger) *handler {
	opts = opts.withDefaults()
	return &handler{
		opts: opts, logger: slog.New(process.ThinLog(logger.Handler(), 5, 10*time.Second, time.Now)),
		slots: make(chan struct{}, opts.InFlightMax), decoding: semaphore.NewWeighted(opts.DecodingMax),
	}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := h.opts.Bodies.Read(w, r, h.opts.BodyMaxBytes)
	if err != nil {
		httpbody.Fail(w, r, err)
		return
	}
	defer body.Release()
	if h.opts.Refusal != nil {
		if err := h.opts.Refusal(); err != nil {
			refuse(w, err.Error())
			return
		}
	}
	if err := h.opts.Bodies.TakeSlot(r.Context(), h.slots); err != nil {
		if r.Context().Err() == nil {
			httpbody.Fail(w, r, err)
		}
		return // the client has disconnected, nothing was written
	}
	defer func() { <-h.slots }()
	cost, err := Cost{Bytes: h.fixed}, error(nil)
	if h.fixed == 0 {
		cost, err = costOf(body.Bytes(), r.Header, h.opts.DecodedMax)
	}
	if err != nil {
		noneWritten(w, r.Header)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if cost.Bytes > h.opts.DecodedMax {
		noneWritten(w, r.Header)
		http.Error(w, fmt.Sprintf("the request decodes to more than %d bytes, %d series into it; send fewer series in a "+
			"request",
			h.opts.DecodedMax, cost.Series), http.StatusRequestEntityTooLarge)
		return
	}
	if h.decoding.Acquire(r.Context(), cost.Bytes) != nil {
		return // the client has disconnected
	}
	defer h.decoding.Release(cost.Bytes)
	r.Body = body.NewReader()
	out := &storageFailure{ResponseWriter: w}
	h.receive(out, r)
	out.end(h.logger)
}

// receive calls the receiver. If the receiver panics, receive rolls its appender back. Prometheus' label sets panic
// at a name or value of 16 MiB. Package ingest/remotewrite refuses such remote write requests before they are
// decoded. Nothing checks OTLP requests before the receiver, so receive turns this panic into status 400.
func (h *handler) receive(w *storageFailure, r *http.Request) {
	ctx, open := withOpenAppender(r.Context())
	w.open = open
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if err := open.rollback(); err != nil {
			h.logger.Error("Rolling back the samples of a request failed", "err", err)
		}
		if text, ok := p.(string); !ok || !strings.Contains(text, "too long to encode as label") {
			panic(p)
		}
		http.Error(w, "the request has a name or value of a label of 16 MiB or more", http.StatusBadRequest)
	}()
	h.receiver.ServeHTTP(w, r.WithContext(ctx))
}

// noneWritten sets the headers that the response to a 2.0 request must have: nothing was written.
func noneWritten(w http.ResponseWriter, request http.Header) {
	kind, err := remoteapi.ParseProtoMsg(request.Get("Content-Type"))
	if err != nil || kind != remoteapi.WriteV2MessageType {
		return
	}
	for _, name := range []string{"Samples", "Histograms", "Exemplars"} {
		w.Header().Set("X-Prometheus-Remote-Write-"+name+"-Written", "0")
	}
}

// refuse responds with status 503, after which clients send the same samples again.
func refuse(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", "5")
	http.Error(w, reason, http.StatusServiceUnavailable)
}

// storageFailure responds with status 503 where the receiver responds with status 500, or with a status 2xx after a
// failed commit. The receiver responds with status 500 only to errors of the storage. The text of such an error
// names files of the server, so it is logged and not sent.
type storageFailure struct {
	http.ResponseWriter
	open   *openAppender
	failed bool
	text   []byte // of the receiver's response, or of the failed commit
}

// WriteHeader implements http.ResponseWriter.
func (f *storageFailure) WriteHeader(status int) {
	if status/100 == 2 && f.open != nil && f.open.commitErr != nil {
		f.failed, f.text = true, []byte(f.open.commitErr.Error())
		return
	}
	if f.failed = status == http.StatusInternalServerError; !f.failed {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Write implements io.Writer.
func (f *storageFailure) Write(p []byte) (int, error) {
	if f.failed {
		f.text = append(f.text, p...)
		return len(p), nil
	}
	return f.ResponseWriter.Write(p)
}

// end sends the response that was held back.
func (f *storageFailure) end(logger *slog.Logger) {
	if !f.failed {
		return
	}
	reason := "the storage failed and did not store all samples; the server's log has the error"
	logger.Error("Storing samples of a remote write request failed", "err", string(bytes.TrimSpace(f.text)))
	if bytes.Contains(f.text, []byte(syscall.ENOSPC.Error())) {
		reason = "the storage did not store all samples: " + syscall.ENOSPC.Error()
	}
	f.Header().Del("Content-Length")
	refuse(f.ResponseWriter, reason)
}

// costOf estimates the decoded size of a body. It returns no cost for a body that the
// receiver rejects before decoding, so that the response has the receiver's error.
func costOf(body []byte, header http.Header, decodedMax int64) (Cost, error) {
	if encoding := header.Get("Content-Encoding"); encoding != "" && encoding != "snappy" {
		return Cost{}, nil
	}
	size, err := snappy.DecodedLen(body)
	if err != nil || size > bodyMaxBytes {
		return Cost{}, nil
	}
	contentType := cmp.Or(header.Get("Content-Type"), "application/x-protobuf") // the default of the receiver
	kind, err := remoteapi.ParseProtoMsg(contentType)
	if err != nil {
		return Cost{}, nil
	}
	plain, err := snappy.Decode(nil, body)
	if err != nil {
		return Cost{}, nil
	}
	if kind == remoteapi.WriteV2MessageType {
		return CostV2(plain, decodedMax)
	}
	return CostV1(plain, decodedMax)
}
