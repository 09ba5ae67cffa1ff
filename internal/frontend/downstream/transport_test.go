package downstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	promconfig "github.com/prometheus/common/config"
)

func TestParseTransport_HonoursThanosSettings(t *testing.T) {
	settings, err := ParseTransport([]byte(`
idle_conn_timeout: 1m30s
response_header_timeout: 2m
tls_handshake_timeout: 3s
expect_continue_timeout: 4s
max_idle_conns: 5
max_idle_conns_per_host: 6
max_conns_per_host: 7
tls_config:
  server_name: prometheus.example
  insecure_skip_verify: true
`))
	if err != nil {
		t.Fatal(err)
	}
	transport, err := settings.build(time.Second, 100)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "idle_conn_timeout", transport.IdleConnTimeout, 90*time.Second)
	check(t, "response_header_timeout", transport.ResponseHeaderTimeout, 2*time.Minute)
	check(t, "tls_handshake_timeout", transport.TLSHandshakeTimeout, 3*time.Second)
	check(t, "expect_continue_timeout", transport.ExpectContinueTimeout, 4*time.Second)
	check(t, "max_idle_conns", transport.MaxIdleConns, 5)
	check(t, "max_idle_conns_per_host", transport.MaxIdleConnsPerHost, 6)
	check(t, "max_conns_per_host", transport.MaxConnsPerHost, 7)
	check(t, "server_name", transport.TLSClientConfig.ServerName, "prometheus.example")
	check(t, "insecure_skip_verify", transport.TLSClientConfig.InsecureSkipVerify, true)
	check(t, "read buffer", transport.ReadBufferSize, 100)
}

func TestParseTransport_Defaults(t *testing.T) {
	for _, text := range []string{"", "max_idle_conns_per_host: 0\nidle_conn_timeout: 0s"} {
		settings, err := ParseTransport([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		transport, err := settings.build(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		check(t, "idle_conn_timeout", transport.IdleConnTimeout, 90*time.Second)
		check(t, "tls_handshake_timeout", transport.TLSHandshakeTimeout, 10*time.Second)
		check(t, "max_idle_conns", transport.MaxIdleConns, 100)
		check(t, "max_idle_conns_per_host", transport.MaxIdleConnsPerHost, 100)
		check(t, "max_conns_per_host", transport.MaxConnsPerHost, 0)
	}
}

func TestParseTransport_NamesEveryError(t *testing.T) {
	for text, want := range map[string]string{
		"idle_conn_timeout: 1m\nmax_idle_connections: 5": "line 2: field max_idle_connections not found",
		"tls_config:\n  cafile: x\n  certfile: y":        "line 2: field cafile not found\nline 3: field certfile not found",
		"max_idle_conns: 1\nmax_idle_conns: 2":           "line 2: mapping key \"max_idle_conns\" already defined at line 1",
		"max_idle_conns: many":                           "line 1: cannot unmarshal !!str `many` into int",
		"idle_conn_timeout: 5":                           `not a valid duration string: "5"`,
		"max_conns_per_host: -1":                         "max_conns_per_host -1 is negative",
		"tls_config: {cert_file: x}":                     "key_file must be configured when a client certificate is configured",
		"- a":                                            "line 1: cannot unmarshal !!seq",
		"a: [":                                           "line 1",
	} {
		_, err := ParseTransport([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "downstream.T") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestNew_ReportsEveryInvalidOption(t *testing.T) {
	_, err := New(Options{
		URL: "localhost:9090", Encodings: []string{"br"},
		Transport: Transport{TLSConfig: promconfig.TLSConfig{KeyFile: "x"}},
	}, nil, nil)
	for _, want := range []string{"--query-frontend.downstream-url", `"br"`, "cert_file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	for _, bad := range []string{"", "http://", "http://h/?q=1", "http://h/#f", "http://[", "unix:///x"} {
		if _, err := New(Options{URL: bad}, nil, nil); err == nil {
			t.Errorf("URL %q is accepted", bad)
		}
	}
}

// certificate writes a self-signed certificate and its key to dir.
func certificate(t *testing.T, dir, name string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	if err = errors.Join(err, os.WriteFile(certFile, certPEM, 0o600), os.WriteFile(keyFile, keyPEM, 0o600)); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile, pair
}

func TestOpen_TLS(t *testing.T) {
	dir := t.TempDir()
	caFile, _, pair := certificate(t, dir, "prometheus.example")
	clientCert, clientKey, clientPair := certificate(t, dir, "frontend.example")
	trusted := x509.NewCertPool()
	trusted.AddCert(clientPair.Leaf)
	var subject string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject = ""
		if len(r.TLS.PeerCertificates) > 0 {
			subject = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, r.Proto)
	})
	serve := func(auth tls.ClientAuthType) string {
		server := httptest.NewUnstartedServer(handler)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: auth, ClientCAs: trusted}
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	open, closed := serve(tls.NoClientCert), serve(tls.RequireAndVerifyClientCert)
	for _, c := range []struct {
		name, url, yaml, subject string
		works                    bool
	}{
		{"an unknown authority", open, "", "", false},
		{"no verification", open, "tls_config: {insecure_skip_verify: true}", "", true},
		{"a known authority, another name", open, "tls_config: {ca_file: " + caFile + "}", "", false},
		{"a known authority and the name", open, "tls_config: {ca_file: " + caFile + ", server_name: prometheus.example}", "", true},
		{"a wrong name", open, "tls_config: {ca_file: " + caFile + ", server_name: other.example}", "", false},
		{"no client certificate", closed, "tls_config: {insecure_skip_verify: true}", "", false},
		{"a client certificate", closed, "tls_config: {insecure_skip_verify: true, cert_file: " + clientCert + ", key_file: " + clientKey + "}", "frontend.example", true},
		{"no TLS there", strings.Replace(serveHTTP(t, handler, nil), "http:", "https:", 1), "tls_config: {insecure_skip_verify: true}", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings, err := ParseTransport([]byte(c.yaml))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client(t, Options{URL: c.url, Transport: settings, Retries: 1}, nil).Open(t.Context(), Request{Path: "/"})
			if !c.works {
				checkIs(t, err, ErrUnavailable)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			check(t, "bytes are counted", resp.Body.try.source.watch.bytes() > 0, true)
			body, err := readAll(resp, 100)
			checkIs(t, err, nil)
			check(t, "protocol", body, "HTTP/1.1")
			check(t, "subject", subject, c.subject)
		})
	}
}

func TestNew_ChecksTLSFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := certificate(t, dir, "a.example")
	_, otherKey, _ := certificate(t, dir, "b.example")
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []promconfig.TLSConfig{
		{CAFile: filepath.Join(dir, "missing")}, {CAFile: empty}, {CertFile: cert, KeyFile: empty}, {CertFile: cert, KeyFile: otherKey},
	} {
		if _, err := New(Options{URL: "https://h", Transport: Transport{TLSConfig: c}}, nil, nil); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := New(Options{URL: "https://h", Transport: Transport{TLSConfig: promconfig.TLSConfig{CertFile: cert, KeyFile: key}}}, nil, nil); err != nil {
		t.Error(err)
	}
}

// An untrusted certificate is not retried, because it stays untrusted.
func TestOpen_UntrustedCertificateIsNotRetried(t *testing.T) {
	handshakes := 0
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			handshakes++
		}
	}
	server.StartTLS()
	_, _, err := get(t, client(t, Options{URL: server.URL}, nil), "/")
	server.Close()
	checkIs(t, err, ErrUnavailable)
	check(t, "connections", handshakes, 1)
}

func TestTransport_HonoursTheConnectTimeout(t *testing.T) {
	// A listener whose queue is full neither accepts nor refuses.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	transport, err := Transport{}.build(time.Nanosecond, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = transport.DialContext(t.Context(), "tcp", listener.Addr().String())
	var timeout net.Error
	check(t, "timed out", errors.As(err, &timeout) && timeout.Timeout(), true)
}

func FuzzParseTransport(f *testing.F) {
	f.Add([]byte("idle_conn_timeout: 1m30s\nmax_idle_conns: 5\ntls_config: {ca_file: x}"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		settings, err := ParseTransport(text)
		if err == nil && settings.Validate() != nil {
			t.Fatalf("%q gave settings that are not valid", text)
		}
	})
}
