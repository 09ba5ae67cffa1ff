package server

import (
	"crypto/x509"
	"log/slog"
	"sync"

	"github.com/ferula-io/ferula/metrics"
)

// TLSWatch has the metrics of the certificates and CAs of a process, by file. At every scrape it looks for changed
// files: a renewed pair that cannot be read shows before the old one expires, even if no peer connects. A nil TLSWatch
// does nothing.
type TLSWatch struct {
	// Log gets a line for each change of a file that cannot be used; nil: none. Set it before the first scrape.
	Log *slog.Logger

	notAfter, unreadable *metrics.GaugeFuncVec
	failures             *metrics.CounterVec

	mu    sync.Mutex
	files map[[2]string]*keyPair // by certificate and key
}

// NewTLSWatch creates the metrics in a set.
func NewTLSWatch(set *metrics.Set) *TLSWatch {
	return &TLSWatch{
		files: map[[2]string]*keyPair{},
		notAfter: set.NewGaugeFuncVec("ferula_tls_not_after_timestamp_seconds",
			"Time at which the certificate in use expires, by file. For a CA file, the certificate that expires last.", "file"),
		unreadable: set.NewGaugeFuncVec("ferula_tls_unreadable",
			"1 if the changed file cannot be used, so that the previous certificate is still in use.", "file"),
		failures: set.NewCounterVec("ferula_tls_read_failures_total",
			"Number of changes to the file, or its key, that could not be used.", "file"),
	}
}

// Add adds a certificate and its key, or a CA if there is no key, that another package reads.
func (w *TLSWatch) Add(cert, key string) error {
	_, err := w.pair(cert, key).get()
	return err
}

// pair returns the pair of two files, whose metrics w has. A file that is a CA, too, has the metrics of the pair.
func (w *TLSWatch) pair(cert, key string) *keyPair {
	k := &keyPair{certFile: cert, keyFile: key, watch: w}
	if w == nil {
		return k
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	files := [2]string{cert, key}
	if known := w.files[files]; known != nil {
		return known
	}
	w.files[files] = k
	w.failures.With(cert)
	w.notAfter.With(cert).SetFunc(func() float64 {
		pair, err := k.get()
		if err != nil {
			return 0
		}
		return float64(pair.Leaf.NotAfter.Unix())
	})
	w.unreadable.With(cert).SetFunc(func() float64 {
		if _, err := k.get(); err != nil || k.failed() {
			return 1
		}
		return 0
	})
	return k
}

func (w *TLSWatch) readCA(file string) (*x509.CertPool, error) {
	ca := w.pair(file, "")
	_, err := ca.get()
	return ca.pool, err
}

// failed counts and logs a change that cannot be used.
func (w *TLSWatch) failed(file string, err error) {
	if w == nil {
		return
	}
	w.failures.With(file).Inc()
	if w.Log != nil {
		w.Log.Warn("A changed certificate cannot be used, the previous one stays in use", "file", file, "err", err)
	}
}

func (k *keyPair) failed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure != ""
}
