// Package remotewrite receives Prometheus remote write, versions 1.0 and 2.0.
//
// A POST with a snappy block around a WriteRequest or a v2 Request comes in and
// is appended to a storage.Appendable; the answer is a success only after Commit,
// that is once the samples are in the write-ahead log. The decoding and its
// statuses are those of Prometheus' own receiver, which this package puts limits
// around: on the bytes of a body, before and after decompression (32 MiB, by the
// receiver), and on how many requests are decoded at once. There is no storage
// and no routing here.
package remotewrite

import (
	"io"
	"log/slog"
	"net/http"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
)

// Options of a receiver. Zero values take the defaults.
type Options struct {
	InFlightMax int // requests decoded at once, further ones wait; 0: 16
	// MetadataInWAL writes the metadata of 2.0 requests to the write-ahead log.
	MetadataInWAL bool
}

// bodyMaxBytes is the receiver's limit, compressed and not. It is enforced here
// too so that a longer body is refused before it is read into memory.
const bodyMaxBytes = 32 << 20

// NewHandler makes the receiver for one endpoint.
func NewHandler(opts Options, to storage.Appendable, logger *slog.Logger, reg prometheus.Registerer) http.Handler {
	if opts.InFlightMax == 0 {
		opts.InFlightMax = 16
	}
	accepted := remoteapi.MessageTypes{remoteapi.WriteV1MessageType, remoteapi.WriteV2MessageType}
	receiver := remote.NewWriteHandler(logger, reg, to, accepted, false, false, opts.MetadataInWAL)
	places := make(chan struct{}, opts.InFlightMax)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > bodyMaxBytes {
			// A sender reads the answer once it has sent its body: take what comes,
			// within bounds, so that it sees more than a broken connection.
			_, _ = io.CopyN(io.Discard, r.Body, 4*bodyMaxBytes)
			http.Error(w, "request body is larger than 33554432 bytes", http.StatusRequestEntityTooLarge)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-r.Context().Done():
			return // the sender has gone, nothing was written
		}
		r.Body = http.MaxBytesReader(w, r.Body, bodyMaxBytes+1) // one more, so that the receiver says what is wrong
		receiver.ServeHTTP(w, r)
	})
}
