package storeapi

import (
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/grpc/encoding"
)

// Snappy is the name of Thanos' snappy compressor: snappy in its framed format.
const Snappy = "snappy"

// registering guards gRPC's registry of compressors, which is global.
var registering = sync.Mutex{}

// RegisterSnappy registers the compressor with gRPC. Clients can then select it, and servers
// respond with it to requests that are compressed with it. A process calls RegisterSnappy before
// its first server or client. Further calls do nothing.
func RegisterSnappy() {
	registering.Lock()
	defer registering.Unlock()
	if encoding.GetCompressor(Snappy) == nil {
		encoding.RegisterCompressor(compressor{})
	}
}

type compressor struct{}

var (
	snappyWriters = sync.Pool{New: func() any { return snappy.NewBufferedWriter(nil) }}
	snappyReaders = sync.Pool{New: func() any { return snappy.NewReader(nil) }}
)

// Name implements encoding.Compressor.
func (compressor) Name() string { return Snappy }

// Compress implements encoding.Compressor.
func (compressor) Compress(to io.Writer) (io.WriteCloser, error) {
	w := snappyWriters.Get().(*snappy.Writer)
	w.Reset(to)
	return snappyWriter{w}, nil
}

// snappyWriter returns to its pool when it is closed.
type snappyWriter struct{ *snappy.Writer }

func (w snappyWriter) Close() error {
	err := w.Writer.Close()
	w.Reset(nil)
	snappyWriters.Put(w.Writer)
	return err
}

// Decompress implements encoding.Compressor.
func (compressor) Decompress(from io.Reader) (io.Reader, error) {
	r := snappyReaders.Get().(*snappy.Reader)
	r.Reset(from)
	return &snappyReader{r}, nil
}

// snappyReader returns to its pool at the end of its stream.
type snappyReader struct{ from *snappy.Reader }

func (r *snappyReader) Read(p []byte) (int, error) {
	if r.from == nil {
		return 0, io.EOF
	}
	n, err := r.from.Read(p)
	if err == io.EOF {
		r.from.Reset(nil)
		snappyReaders.Put(r.from)
		r.from = nil
	}
	return n, err
}
