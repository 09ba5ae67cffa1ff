package server

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

// ServerTLS are the TLS settings of a server. A certificate and its key are read again when one of the two files has
// changed, so that a renewed certificate is used without a restart. The CA is read once.
type ServerTLS struct {
	Cert, Key  string   // files; both or none
	ClientCA   string   // file; clients must present a certificate signed by this CA
	MinVersion string   // 1.0 to 1.3; "": 1.3
	Ciphers    []string // names as in package crypto/tls; none: Go's defaults
	Curves     []string
	Watch      *TLSWatch // nil: the files have no metrics
}

// ClientTLS are the TLS settings of a client.
type ClientTLS struct {
	Cert, Key  string    // files; both or none
	CA         string    // file; "": the system's certificate pool
	ServerName string    // "": the host of the address
	MinVersion string    // 1.0 to 1.3; "": 1.3
	SkipVerify bool      // accept any certificate of the server
	Watch      *TLSWatch // nil: the files have no metrics
}

var versions = map[string]uint16{"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12,
	"1.3": tls.VersionTLS13}

var curves = []tls.CurveID{
	tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519, tls.X25519MLKEM768, tls.SecP256r1MLKEM768,
	tls.SecP384r1MLKEM1024,
}

func minVersion(name string) (uint16, error) {
	version, ok := versions[cmp.Or(name, "1.3")]
	if !ok {
		return 0, fmt.Errorf("unknown TLS version %q; known are 1.0, 1.1, 1.2, 1.3", name)
	}
	return version, nil
}

// Config returns the TLS configuration of a server; nil without a certificate.
func (s ServerTLS) Config() (config *tls.Config, err error) {
	if s.Cert == "" && s.Key == "" {
		if s.ClientCA != "" {
			return nil, errors.New("a client CA also needs a server certificate and key")
		}
		return nil, nil
	}
	if s.Cert == "" || s.Key == "" {
		return nil, errors.New("certificate and key must both be set")
	}
	config = &tls.Config{}
	if config.MinVersion, err = minVersion(s.MinVersion); err != nil {
		return nil, err
	}
	for _, name := range s.Ciphers {
		i := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown or unsafe TLS cipher suite %q", name)
		}
		config.CipherSuites = append(config.CipherSuites, tls.CipherSuites()[i].ID)
	}
	for _, name := range s.Curves {
		i := slices.IndexFunc(curves, func(c tls.CurveID) bool { return c.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown TLS curve %q; known are %v", name, curves)
		}
		config.CurvePreferences = append(config.CurvePreferences, curves[i])
	}
	pair := s.Watch.pair(s.Cert, s.Key)
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() }
	if s.ClientCA != "" {
		if config.ClientCAs, err = s.Watch.readCA(s.ClientCA); err != nil {
			return nil, err
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// Config returns the TLS configuration of a client.
func (c ClientTLS) Config() (config *tls.Config, err error) {
	config = &tls.Config{InsecureSkipVerify: c.SkipVerify, ServerName: c.ServerName} // set by the operator
	if config.MinVersion, err = minVersion(c.MinVersion); err != nil {
		return nil, err
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("certificate and key must both be set")
	}
	if c.Cert != "" {
		pair := c.Watch.pair(c.Cert, c.Key)
		if _, err := pair.get(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get() }
	}
	if c.CA != "" {
		if config.RootCAs, err = c.Watch.readCA(c.CA); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// keyPair is a certificate and its key, or a CA. get reads the files again when the modification time of one
// of them has changed. It returns the previous pair while a file is missing, or while the key does
// not belong to the certificate.
type keyPair struct {
	certFile, keyFile string // without a key: a CA
	watch             *TLSWatch

	mu            sync.Mutex
	certAt, keyAt time.Time
	pair          *tls.Certificate
	pool          *x509.CertPool // of a CA
	failure       string         // of the last read; "": none
}

func (k *keyPair) get() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pair, err := k.read()
	if err == nil {
		k.failure = ""
		return pair, nil
	}
	if k.pair == nil {
		return nil, err
	}
	if k.failure != err.Error() {
		k.failure = err.Error()
		k.watch.failed(k.certFile, err)
	}
	return k.pair, nil // one file is replaced before the other
}

// read returns the pair in the files.
func (k *keyPair) read() (*tls.Certificate, error) {
	if k.keyFile == "" {
		return k.readCA()
	}
	cert, err := os.Stat(k.certFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	key, err := os.Stat(k.keyFile)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if k.pair != nil && cert.ModTime().Equal(k.certAt) && key.ModTime().Equal(k.keyAt) {
		return k.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", k.certFile, err)
	}
	k.pair, k.certAt, k.keyAt = &pair, cert.ModTime(), key.ModTime()
	return k.pair, nil
}

// readCA checks the file and returns what was first read, a pair without key whose leaf is the certificate of the CA
// that expires last: a bundle has the old CA beside the new one for a while.
func (k *keyPair) readCA() (*tls.Certificate, error) {
	text, err := os.ReadFile(k.certFile)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	ca, pool := &tls.Certificate{}, x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue // as in AppendCertsFromPEM
		}
		pool.AddCert(cert)
		if ca.Leaf == nil || cert.NotAfter.After(ca.Leaf.NotAfter) {
			ca.Leaf = cert
		}
	}
	if ca.Leaf == nil {
		return nil, fmt.Errorf("CA %s: contains no certificate", k.certFile)
	}
	if k.pair == nil {
		k.pair, k.pool = ca, pool
	}
	return k.pair, nil
}

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
