package downstream

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Transport holds the settings of connections, with the keys of the file that Thanos'
// --query-frontend.downstream-tripper-config takes. A missing key and a duration of 0 take the default. A number of 0
// means no limit, as in Thanos; but max_idle_conns_per_host takes the default if it is 0.
type Transport struct {
	IdleConnTimeout       model.Duration `yaml:"idle_conn_timeout"`       // 90s
	ResponseHeaderTimeout model.Duration `yaml:"response_header_timeout"` // none
	TLSHandshakeTimeout   model.Duration `yaml:"tls_handshake_timeout"`   // 10s
	ExpectContinueTimeout model.Duration `yaml:"expect_continue_timeout"` // 1s
	MaxIdleConns          *int           `yaml:"max_idle_conns"`          // 100
	MaxIdleConnsPerHost   *int           `yaml:"max_idle_conns_per_host"` // 100; Thanos: 2
	MaxConnsPerHost       *int           `yaml:"max_conns_per_host"`      // no limit

	// TLSConfig is for an https downstream. The client certificate is read again for every connection.
	TLSConfig promconfig.TLSConfig `yaml:"tls_config"`
}

const (
	idleConnTimeoutDefault       = 90 * time.Second
	tlsHandshakeTimeoutDefault   = 10 * time.Second
	expectContinueTimeoutDefault = time.Second
	maxIdleConnsDefault          = 100
	keepAlive                    = 30 * time.Second
)

// goTypeName matches the Go type that the YAML library adds to an error. It means
// nothing to the author of a configuration file.
var goTypeName = regexp.MustCompile(` (in|into) (type )?(downstream|config)\.\w+`)

// ParseTransport reads a Transport from YAML. Unknown and repeated keys are
// errors that name their line.
func ParseTransport(text []byte) (Transport, error) {
	var t Transport
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(&t)
	if errors.Is(err, io.EOF) { // an empty file
		err = nil
	}
	var faults *yaml.TypeError
	if errors.As(err, &faults) {
		var errs []error
		for _, fault := range faults.Errors {
			errs = append(errs, errors.New(goTypeName.ReplaceAllString(fault, "")))
		}
		err = errors.Join(errs...)
	}
	if err != nil {
		return Transport{}, fmt.Errorf("downstream transport: %w", err)
	}
	return t, t.Validate()
}

// Validate reports every error at once, except errors of files, which New reads.
func (t Transport) Validate() error {
	var errs []error
	for _, number := range []struct {
		key   string
		value *int
	}{
		{"max_idle_conns", t.MaxIdleConns},
		{"max_idle_conns_per_host", t.MaxIdleConnsPerHost},
		{"max_conns_per_host", t.MaxConnsPerHost},
	} {
		if number.value != nil && *number.value < 0 {
			errs = append(errs, fmt.Errorf("downstream transport: %s %d is negative", number.key, *number.value))
		}
	}
	if err := t.TLSConfig.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("downstream transport: tls_config: %w", err))
	}
	return errors.Join(errs...)
}

// build returns the transport of a client. HTTP/1.1 only: a response is one long
// body, which HTTP/2 would cut into frames of 16 KiB and copy once more.
func (t Transport) build(connectTimeout time.Duration, readBufferBytes int) (*http.Transport, error) {
	config, err := promconfig.NewTLSConfig(&t.TLSConfig)
	if err != nil {
		return nil, fmt.Errorf("downstream transport: tls_config: %w", err)
	}
	dialer := &net.Dialer{Timeout: max(0, connectTimeout), KeepAlive: keepAlive}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           counted(dialer.DialContext),
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   cmp.Or(time.Duration(t.TLSHandshakeTimeout), tlsHandshakeTimeoutDefault),
		ExpectContinueTimeout: cmp.Or(time.Duration(t.ExpectContinueTimeout), expectContinueTimeoutDefault),
		ResponseHeaderTimeout: time.Duration(t.ResponseHeaderTimeout),
		IdleConnTimeout:       cmp.Or(time.Duration(t.IdleConnTimeout), idleConnTimeoutDefault),
		MaxIdleConns:          orInt(t.MaxIdleConns, maxIdleConnsDefault),
		MaxIdleConnsPerHost:   cmp.Or(orInt(t.MaxIdleConnsPerHost, 0), maxIdleConnsDefault), // net/http reads 0 as 2
		MaxConnsPerHost:       orInt(t.MaxConnsPerHost, 0),
		ReadBufferSize:        readBufferBytes,
		DisableCompression:    true, // decoding is done here, with pooled decoders and a limit
	}, nil
}

func orInt(n *int, otherwise int) int {
	if n == nil {
		return otherwise
	}
	return *n
}
