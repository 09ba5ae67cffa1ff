package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	promconfig "github.com/prometheus/common/config"
	"go.yaml.in/yaml/v3"
)

// thanosClient is Thanos' configuration of the HTTP client for Prometheus.
type thanosClient struct {
	BasicAuth struct {
		Username     string `yaml:"username"`
		Password     string `yaml:"password"`
		PasswordFile string `yaml:"password_file"`
	} `yaml:"basic_auth"`
	BearerToken     string               `yaml:"bearer_token"`
	BearerTokenFile string               `yaml:"bearer_token_file"`
	ProxyURL        string               `yaml:"proxy_url"`
	TLS             promconfig.TLSConfig `yaml:"tls_config"`
	Transport       struct {             // durations in nanoseconds, as in Thanos
		MaxIdleConns          int   `yaml:"max_idle_conns"`
		MaxIdleConnsPerHost   int   `yaml:"max_idle_conns_per_host"`
		MaxConnsPerHost       int   `yaml:"max_conns_per_host"`
		IdleConnTimeout       int64 `yaml:"idle_conn_timeout"`
		ResponseHeaderTimeout int64 `yaml:"response_header_timeout"`
		ExpectContinueTimeout int64 `yaml:"expect_continue_timeout"`
		TLSHandshakeTimeout   int64 `yaml:"tls_handshake_timeout"`
		DialerTimeout         int64 `yaml:"dialer_timeout"`
		DisableCompression    bool  `yaml:"disable_compression"`
	} `yaml:"transport_config"`
}

// readBufferBytes is the read buffer of a connection. With net/http's default of 4 KiB
// every series costs one or two system calls.
const readBufferBytes = 256 << 10

// FromThanos creates an HTTP client from Thanos' YAML configuration. It does not
// request compressed responses: Prometheus usually runs on the same host.
func FromThanos(text string) (*http.Client, error) {
	var c thanosClient
	c.Transport.MaxIdleConns, c.Transport.MaxIdleConnsPerHost = 100, 16
	c.Transport.IdleConnTimeout, c.Transport.TLSHandshakeTimeout = int64(90*time.Second), int64(10*time.Second)
	c.Transport.ExpectContinueTimeout, c.Transport.DialerTimeout = int64(10*time.Second), int64(5*time.Second)
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var proxy func(*http.Request) (*url.URL, error)
	if c.ProxyURL != "" {
		u, err := parseURL(c.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("proxy_url: %w", err)
		}
		proxy = http.ProxyURL(u)
	}
	tlsConfig, err := promconfig.NewTLSConfig(&c.TLS)
	if err != nil {
		return nil, fmt.Errorf("tls_config: %w", err)
	}
	transport := func(tlsConfig *tls.Config) (http.RoundTripper, error) {
		return &http.Transport{
			Proxy: proxy, TLSClientConfig: tlsConfig, ReadBufferSize: readBufferBytes, DisableCompression: true,
			MaxIdleConns: c.Transport.MaxIdleConns, MaxIdleConnsPerHost: c.Transport.MaxIdleConnsPerHost,
			MaxConnsPerHost:       c.Transport.MaxConnsPerHost,
			IdleConnTimeout:       time.Duration(c.Transport.IdleConnTimeout),
			ResponseHeaderTimeout: time.Duration(c.Transport.ResponseHeaderTimeout),
			ExpectContinueTimeout: time.Duration(c.Transport.ExpectContinueTimeout),
			TLSHandshakeTimeout:   time.Duration(c.Transport.TLSHandshakeTimeout),
			DialContext:           (&net.Dialer{Timeout: time.Duration(c.Transport.DialerTimeout)}).DialContext,
		}, nil
	}
	var rt http.RoundTripper
	if c.TLS.CAFile == "" {
		rt, err = transport(tlsConfig)
	} else {
		files := promconfig.TLSRoundTripperSettings{CA: promconfig.NewFileSecret(c.TLS.CAFile)} // read again when they change
		if c.TLS.CertFile != "" {
			files.Cert = promconfig.NewFileSecret(c.TLS.CertFile)
		}
		if c.TLS.KeyFile != "" {
			files.Key = promconfig.NewFileSecret(c.TLS.KeyFile)
		}
		rt, err = promconfig.NewTLSRoundTripper(tlsConfig, files, transport)
	}
	if err != nil {
		return nil, err
	}
	if rt, err = c.authorized(rt); err != nil {
		return nil, err
	}
	return &http.Client{Transport: rt}, nil
}

// authorized returns a RoundTripper that adds the configured credentials.
func (c thanosClient) authorized(next http.RoundTripper) (http.RoundTripper, error) {
	basic := c.BasicAuth.Username != "" || c.BasicAuth.Password != "" || c.BasicAuth.PasswordFile != ""
	methods := 0
	for _, used := range []bool{basic, c.BearerToken != "", c.BearerTokenFile != ""} {
		if used {
			methods++
		}
	}
	switch {
	case methods > 1:
		return nil, errors.New("at most one of basic_auth, bearer_token and bearer_token_file may be set")
	case c.BasicAuth.Password != "" && c.BasicAuth.PasswordFile != "":
		return nil, errors.New("basic_auth: at most one of password and password_file may be set")
	case c.BearerToken != "":
		return promconfig.NewAuthorizationCredentialsRoundTripper("Bearer", promconfig.NewInlineSecret(c.BearerToken), next),
			nil
	case c.BearerTokenFile != "":
		return promconfig.NewAuthorizationCredentialsRoundTripper("Bearer", promconfig.NewFileSecret(c.BearerTokenFile),
			next), nil
	case basic && c.BasicAuth.PasswordFile != "":
		return promconfig.NewBasicAuthRoundTripper(promconfig.NewInlineSecret(c.BasicAuth.Username),
			promconfig.NewFileSecret(c.BasicAuth.PasswordFile), next), nil
	case basic:
		return promconfig.NewBasicAuthRoundTripper(promconfig.NewInlineSecret(c.BasicAuth.Username),
			promconfig.NewInlineSecret(c.BasicAuth.Password), next), nil
	}
	return next, nil
}
