package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

// writePair writes a self-signed certificate of a name, which is its own CA, and its key.
func writePair(t *testing.T, dir, name string, modified time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: modified.Add(2 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// handshake connects a client to a server and returns the name in the server's certificate.
func handshake(t *testing.T, server, client *tls.Config) (string, error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		s := tls.Server(a, server)
		err := s.Handshake()
		if err == nil {
			_, err = io.WriteString(s, "x")
		}
		_ = a.Close()
		done <- err
	}()
	c := tls.Client(b, client)
	err := c.Handshake()
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1)) // in TLS 1.3 the server rejects a client after the client's handshake
	}
	name := ""
	if peers := c.ConnectionState().PeerCertificates; len(peers) > 0 {
		name = peers[0].Subject.CommonName
	}
	_ = b.Close()
	<-done
	return name, err
}

func TestServerTLS_ReadsAChangedCertificateAgain(t *testing.T) {
	dir := t.TempDir()
	at := time.Now().Add(-time.Hour)
	cert, key := writePair(t, dir, "one.test", at)
	server, err := ServerTLS{Cert: cert, Key: key, MinVersion: "1.3"}.Config()
	if err != nil {
		t.Fatal(err)
	}
	client := &tls.Config{InsecureSkipVerify: true}
	if name, err := handshake(t, server, client); name != "one.test" || err != nil {
		t.Fatalf("%q, %v", name, err)
	}
	writePair(t, dir, "two.test", at)
	if name, err := handshake(t, server, client); name != "one.test" || err != nil {
		t.Errorf("files with the same time were read again: %q, %v", name, err)
	}
	writePair(t, dir, "two.test", at.Add(time.Second))
	if name, err := handshake(t, server, client); name != "two.test" || err != nil {
		t.Errorf("after the change: %q, %v", name, err)
	}
}

func TestServerTLS_RequiresACertificateOfTheClientCA(t *testing.T) {
	cert, key := writePair(t, t.TempDir(), "server.test", time.Now())
	clientCert, clientKey := writePair(t, t.TempDir(), "client.test", time.Now())
	server, err := ServerTLS{Cert: cert, Key: key, ClientCA: clientCert, MinVersion: "1.2", Ciphers: []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, Curves: []string{"X25519"}}.Config()
	if err != nil {
		t.Fatal(err)
	}
	with, err := ClientTLS{Cert: clientCert, Key: clientKey, CA: cert, ServerName: "server.test"}.Config()
	if err != nil {
		t.Fatal(err)
	}
	if name, err := handshake(t, server, with); name != "server.test" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	for what, c := range map[string]ClientTLS{
		"no certificate":           {CA: cert, ServerName: "server.test"},
		"a certificate of another": {CA: cert, ServerName: "server.test", Cert: cert, Key: key},
		"another CA":               {CA: clientCert, ServerName: "server.test", Cert: clientCert, Key: clientKey},
		"another name":             {CA: cert, ServerName: "other.test", Cert: clientCert, Key: clientKey},
	} {
		config, err := c.Config()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := handshake(t, server, config); err == nil {
			t.Errorf("%s: the handshake succeeded", what)
		}
	}
	if config, err := (ClientTLS{SkipVerify: true, Cert: clientCert, Key: clientKey}).Config(); err != nil {
		t.Error(err)
	} else if _, err := handshake(t, server, config); err != nil {
		t.Errorf("without verification: %v", err)
	}
}

func TestTLSConfig_NamesWhatIsWrong(t *testing.T) {
	cert, key := writePair(t, t.TempDir(), "x.test", time.Now())
	none := filepath.Join(t.TempDir(), "none")
	for _, tt := range []struct {
		server ServerTLS
		err    string
	}{
		{ServerTLS{ClientCA: cert}, "needs a server certificate"},
		{ServerTLS{Cert: cert}, "must both be set"},
		{ServerTLS{Key: key}, "must both be set"},
		{ServerTLS{Cert: cert, Key: key, MinVersion: "1.4"}, `unknown TLS version "1.4"`},
		{ServerTLS{Cert: cert, Key: key, MinVersion: "1.3", Ciphers: []string{"TLS_RSA_WITH_RC4_128_SHA"}}, "TLS_RSA_WITH_RC4_128_SHA"},
		{ServerTLS{Cert: cert, Key: key, MinVersion: "1.3", Curves: []string{"P-0"}}, `"P-0"`},
		{ServerTLS{Cert: none, Key: key, MinVersion: "1.3"}, "certificate: "},
		{ServerTLS{Cert: cert, Key: none, MinVersion: "1.3"}, "key: "},
		{ServerTLS{Cert: key, Key: key, MinVersion: "1.3"}, key},
		{ServerTLS{Cert: cert, Key: key, MinVersion: "1.3", ClientCA: none}, "CA: "},
		{ServerTLS{Cert: cert, Key: key, MinVersion: "1.3", ClientCA: key}, "contains no certificate"},
	} {
		if _, err := tt.server.Config(); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%+v: %v, want %s", tt.server, err, tt.err)
		}
	}
	for _, tt := range []struct {
		client ClientTLS
		err    string
	}{
		{ClientTLS{Cert: cert}, "must both be set"},
		{ClientTLS{MinVersion: "3"}, `unknown TLS version "3"`},
		{ClientTLS{Cert: none, Key: key}, "certificate: "},
		{ClientTLS{CA: none}, "CA: "},
	} {
		if _, err := tt.client.Config(); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%+v: %v, want %s", tt.client, err, tt.err)
		}
	}
	if config, err := (ServerTLS{}).Config(); config != nil || err != nil {
		t.Errorf("without files: %v, %v", config, err)
	}
}

// Certificate and key are replaced one after the other: until both are there, clients get
// the previous pair.
func TestServerTLS_KeepsThePairWhileItIsReplaced(t *testing.T) {
	dir, next := t.TempDir(), t.TempDir()
	cert, key := writePair(t, dir, "first", time.Now().Add(-time.Hour))
	newCert, newKey := writePair(t, next, "second", time.Now())
	config, err := ServerTLS{Cert: cert, Key: key, MinVersion: "1.3"}.Config()
	if err != nil {
		t.Fatal(err)
	}
	client := &tls.Config{InsecureSkipVerify: true}
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return os.Remove(cert) }, "first"},
		{func() error { return os.Rename(newCert, cert) }, "first"},
		{func() error { return os.Rename(newKey, key) }, "second"},
		{func() error { return os.Remove(key) }, "second"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if name, err := handshake(t, config, client); err != nil || name != step.want {
			t.Errorf("%q %v, want %q", name, err, step.want)
		}
	}
}

// No client connects in this test: scrapes alone find a renewed pair that cannot be used.
func TestTLSWatch_ReportsARenewedPairThatCannotBeRead(t *testing.T) {
	dir, set := t.TempDir(), metrics.NewSet()
	var log bytes.Buffer
	w := NewTLSWatch(set)
	w.Log = slog.New(slog.NewTextHandler(&log, nil))
	at := time.Now().Add(-time.Hour)
	cert, key := writePair(t, dir, "one.test", at)
	ca, _ := writePair(t, t.TempDir(), "ca.test", at)
	if _, err := (ServerTLS{Cert: cert, Key: key, ClientCA: ca, MinVersion: "1.3", Watch: w}).Config(); err != nil {
		t.Fatal(err)
	}
	if _, err := (ClientTLS{Cert: cert, Key: key, CA: ca, Watch: w}).Config(); err != nil { // the same files again
		t.Fatal(err)
	}
	has := func(when string, lines ...string) {
		t.Helper()
		for range 2 {
			var page strings.Builder
			set.WritePrometheus(&page)
			for _, line := range lines {
				if !strings.Contains("\n"+page.String(), "\n"+line+"\n") {
					t.Errorf("%s: no %s in\n%s", when, line, page.String())
				}
			}
		}
	}
	line := func(name, file string, value any) string { return fmt.Sprintf("%s{file=%q} %v", name, file, value) }
	expires := func(file string) string {
		pair, err := (*TLSWatch)(nil).pair(file, "").get()
		if err != nil {
			t.Fatal(err)
		}
		return line("ferula_tls_not_after_timestamp_seconds", file, pair.Leaf.NotAfter.Unix())
	}
	first := expires(cert)
	has("at the start", first, expires(ca), line("ferula_tls_unreadable", cert, 0), line("ferula_tls_unreadable", ca, 0),
		line("ferula_tls_read_failures_total", cert, 0))

	if err := os.WriteFile(cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	has("a damaged certificate", first, line("ferula_tls_unreadable", cert, 1), line("ferula_tls_unreadable", ca, 0),
		line("ferula_tls_read_failures_total", cert, 1))
	if err := os.Remove(ca); err != nil {
		t.Fatal(err)
	}
	has("a lost CA", line("ferula_tls_unreadable", ca, 1), line("ferula_tls_read_failures_total", ca, 1))
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines are logged, want one for each change:\n%s", n, log.String())
	}

	writePair(t, dir, "two.test", at.Add(time.Second))
	has("a renewed pair", expires(cert), line("ferula_tls_unreadable", cert, 0),
		line("ferula_tls_read_failures_total", cert, 1))
	if expires(cert) == first {
		t.Error("the renewed pair expires when the first one does")
	}
}
