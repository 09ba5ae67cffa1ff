package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// eveInBcrypt is a web configuration with user eve, whose password is apple.
const eveInBcrypt = "basic_auth_users:\n  eve: $2a$04$ZPhz8rfdmpae1mBwsJUU1ugnOw3VCQbDPPYb9UM60sEIvn6WarITe\n"

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return writeFile(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		writeFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func TestServe_ScrapesItselfWithBasicAuth(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "web.yml"), eveInBcrypt)
	s := startServe(t, func(o *app.ServeOptions) {
		o.Web.ConfigFile, o.Web.RoutePrefix = file, "/ferula"
		o.Web.ExternalURL = "http://metrics.example/ferula"
	})
	s.base += "/ferula"
	eventually(t, 60*time.Second, "its own up to be 1", func() bool { return s.value("up") == "1" })
	address := s.base[strings.LastIndex(s.base, "@")+1:]
	if got := s.instant("up")[0].Metric["instance"]; got != strings.TrimSuffix(address, "/ferula") {
		t.Errorf("the instance is %q", got)
	}
	if code, _ := (&server{t: t, base: "http://" + address}).get("/metrics"); code != http.StatusUnauthorized {
		t.Errorf("/metrics without a password: %d", code)
	}
}

func TestServe_ScrapesItselfWithClientCertificates(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "web.yml"),
		"tls_server_config: {cert_file: "+cert+", key_file: "+key+", client_auth_type: RequireAndVerifyClientCert, client_ca_file: "+cert+"}\n")
	log := &lockedBuffer{}
	serve, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) {
		o.Web.ConfigFile = file
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := runServe(t, serve)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}}
	s.base = "https://" + serve.Addr().String()
	eventually(t, 60*time.Second, "its own up to be 1", func() bool {
		resp, err := client.Get(s.base + "/api/v1/query?query=up==1")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text := make([]byte, 4096)
		n, _ := resp.Body.Read(text)
		return strings.Contains(string(text[:n]), `"instance":"`+serve.Addr().String()+`"`)
	})
	if want := "url=" + s.base + "/"; !strings.Contains(log.String(), want) {
		t.Errorf("no %s in the log:\n%s", want, log)
	}
	if _, err := http.Get(s.base + "/metrics"); err == nil {
		t.Error("a client without a certificate gets a response")
	}
}

func TestServe_AnonymousGRPCIsRefusedIfHTTPHasPasswords(t *testing.T) {
	cert, key := certificate(t)
	dir := t.TempDir()
	passwords := writeFile(t, filepath.Join(dir, "passwords.yml"), eveInBcrypt)
	plainTLS := writeFile(t, filepath.Join(dir, "tls.yml"), "tls_server_config: {cert_file: "+cert+", key_file: "+key+"}\n")
	clients := writeFile(t, filepath.Join(dir, "clients.yml"), "tls_server_config: {cert_file: "+cert+", key_file: "+key+", client_auth_type: RequireAndVerifyClientCert, client_ca_file: "+cert+"}\n")
	secured := func(clientCA string) app.GRPCOptions {
		o := app.GRPCOptions{ListenAddress: "0.0.0.0:0"}
		o.TLS.Cert, o.TLS.Key, o.TLS.ClientCA = cert, key, clientCA
		return o
	}
	for name, tt := range map[string]struct {
		web     string
		grpc    app.GRPCOptions
		refused bool
	}{
		"all addresses, a password":          {passwords, app.GRPCOptions{ListenAddress: ":0"}, true},
		"all addresses, client certificates": {clients, app.GRPCOptions{ListenAddress: "0.0.0.0:0"}, true},
		"TLS alone on both sides":            {plainTLS, secured(""), false},
		"TLS without a client CA":            {passwords, secured(""), true},
		"a client CA":                        {passwords, secured(cert), false},
		"loopback":                           {passwords, app.GRPCOptions{ListenAddress: "127.0.0.1:0"}, false},
		"allowed":                            {passwords, app.GRPCOptions{ListenAddress: "0.0.0.0:0", AllowAnonymous: true}, false},
		"none":                               {passwords, app.GRPCOptions{}, false},
		"no password anywhere":               {"", app.GRPCOptions{ListenAddress: "0.0.0.0:0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			serve, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) { o.Web.ConfigFile, o.GRPC = tt.web, tt.grpc }))
			if (err != nil) != tt.refused || (tt.refused && !strings.Contains(err.Error(), "--grpc-server-allow-anonymous")) {
				t.Errorf("%v", err)
			}
			if err == nil {
				runServe(t, serve)
			}
		})
	}
}

func TestServe_ListensOnSeveralAddresses(t *testing.T) {
	program, first, second := binary(t), freePort(t), freePort(t)
	args := []string{"serve", fmt.Sprintf("--web.listen-address=127.0.0.1:%d", first), fmt.Sprintf("--web.listen-address=127.0.0.1:%d", second), "--storage.tsdb.path=" + t.TempDir()}
	p := startProcess(t, program, args...)
	if want := fmt.Sprintf("http://127.0.0.1:%d", first); p.base != want {
		t.Errorf("ready at %s, want %s", p.base, want)
	}
	for _, port := range []int{first, second} {
		s := &server{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", port)}
		if code, _ := s.get("/-/ready"); code != http.StatusOK {
			t.Errorf("port %d: %d", port, code)
		}
	}
	if err := p.signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	// The test has another version than the program: go test records neither tag nor commit.
	printed, err := exec.Command(program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(strings.TrimSpace(string(printed)), "ferula ")
	if text := p.log.String(); !strings.Contains(text, "Starting ferula") || !strings.Contains(text, "version="+own+" ") {
		t.Errorf("the log does not begin with the version:\n%s", text)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := commandOf(t, program, append(args, "--web.listen-address="+l.Addr().String())...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "listen on "+l.Addr().String()) {
		t.Errorf("an address in use: %v: %s", err, out)
	}
	out, err = commandOf(t, program, append(args, "--web.max-connections=-1")...).CombinedOutput()
	if err == nil || strings.Contains(string(out), "panic") || !strings.Contains(string(out), "web.max-connections") {
		t.Errorf("--web.max-connections=-1: %v: %s", err, out)
	}
}

func TestServe_MaxConnectionsAppliesToAllAddresses(t *testing.T) {
	serve, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) {
		o.ConfigFile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
		o.Web.MoreAddresses, o.Web.MaxConnections = []string{"127.0.0.1:0"}, 1
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := runServe(t, serve)
	s.ready = "/-/ready"
	s.waitReady()
	http.DefaultClient.CloseIdleConnections()
	held, err := net.Dial("tcp", serve.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := held.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// The connection must have a request in flight: an idle one would be closed for a new
	// one. The server sends "100 Continue" when it reads the body.
	if _, err := fmt.Fprintf(held, "POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(held).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	status := make(chan int, 1)
	go func() {
		code, _ := (&server{t: t, base: "http://" + serve.MoreAddrs()[0].String()}).get("/-/healthy")
		status <- code
	}()
	select {
	case code := <-status:
		t.Fatalf("a second connection got the response %d", code)
	case <-time.After(300 * time.Millisecond):
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-status; code != http.StatusOK {
		t.Errorf("%d", code)
	}
}

func TestServe_LifecycleByGETIsNotAllowed(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.Web.EnableLifecycle = true })
	for _, path := range []string{"/-/reload", "/-/quit"} {
		if code, _ := s.get(path); code != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, code)
		}
	}
}
