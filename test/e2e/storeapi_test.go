package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// dial opens a connection to a gRPC server that is closed when the test ends.
func dial(t *testing.T, address string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn := try(grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(creds))...)).must(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func readStore(t *testing.T, conn *grpc.ClientConn, opts storeapi.ClientOptions, r storeapi.SeriesRequest) ([]string, error) {
	t.Helper()
	return storeSeries(storeapi.NewClient(conn, opts), r)
}

func nameMatchers(pattern string) []*labels.Matcher {
	return []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", pattern)}
}

func TestStoreAPI_ReturnsWrittenSamples(t *testing.T) {
	s, address := grpcServe(t, "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n", nil)
	now := time.Now().UnixMilli()
	s.writeAll([][]byte{encoded(t, v1(
		v1Series(now, 1.5, "__name__", "e2e", "a", "1"), v1Series(now, -2, "__name__", "e2e", "a", "1", "z", "2"), v1Series(now, 3, "__name__", "e2e", "cluster", "own"), v1Series(now, 7, "__name__", "other"),
	))})
	conn := dial(t, address, insecure.NewCredentials())
	want := fmt.Sprintf(`{__name__="e2e", a="1", cluster="eu"} %d=1.5|{__name__="e2e", a="1", cluster="eu", z="2"} %d=-2|{__name__="e2e", cluster="eu"} %d=3`, now, now, now)
	for _, opts := range []storeapi.ClientOptions{{}, {NoExtension: true}, {NoExtension: true, BatchSeries: 1}, {Compression: storeapi.Snappy}} {
		got, err := readStore(t, conn, opts, storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: nameMatchers("e2e")})
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%+v: %s, %v\nwant %s", opts, strings.Join(got, "|"), err, want)
		}
	}
	got, err := readStore(t, conn, storeapi.ClientOptions{}, storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: append(nameMatchers("e2e|other"), labels.MustNewMatcher(labels.MatchNotEqual, "cluster", "eu"))})
	if err != nil || len(got) != 0 {
		t.Errorf("series of another cluster: %v, %v", got, err)
	}
	if _, err := readStore(t, conn, storeapi.ClientOptions{}, storeapi.SeriesRequest{MinMS: 2, MaxMS: 1, Matchers: nameMatchers("e2e")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a range that ends before it begins: %v", err)
	}
	info, err := storeapi.NewClient(conn, storeapi.ClientOptions{}).Info(t.Context())
	if err != nil || len(info.LabelSets) != 1 || info.LabelSets[0].String() != `{cluster="eu"}` || info.Store == nil || info.Exemplars == nil || !info.Store.Sharding {
		t.Errorf("info %+v, %v", info, err)
	}
	for _, metric := range []string{`grpc_server_handled_total{grpc_code="OK",grpc_method="Series",grpc_service="thanos.Store",grpc_type="server_stream"} 5`, `grpc_code="InvalidArgument",grpc_method="Series"`} {
		s.expect("/metrics", 0, metric)
	}
}

func TestStoreAPI_LimitsAreEnforced(t *testing.T) {
	s, address := grpcServe(t, "scrape_configs: []\n", func(o *app.ServeOptions) { o.StoreAPI = storeapi.ServerOptions{SeriesMax: 2} })
	now := time.Now().UnixMilli()
	s.writeAll([][]byte{encoded(t, v1(v1Series(now, 1, "__name__", "e2e", "a", "1"), v1Series(now, 1, "__name__", "e2e", "a", "2"), v1Series(now, 1, "__name__", "e2e", "a", "3")))})
	conn := dial(t, address, insecure.NewCredentials())
	if _, err := readStore(t, conn, storeapi.ClientOptions{}, storeapi.SeriesRequest{MaxMS: now, Matchers: nameMatchers("e2e")}); !errors.Is(err, storeapi.ErrLimit) || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("three series with a limit of two: %v", err)
	}
	got, err := readStore(t, conn, storeapi.ClientOptions{}, storeapi.SeriesRequest{MaxMS: now, Limit: 2, Matchers: nameMatchers("e2e")})
	if err != nil || len(got) != 2 {
		t.Errorf("the first two: %v, %v", got, err)
	}
}

func TestStoreAPI_HealthAndReflectionAreServed(t *testing.T) {
	_, address := grpcServe(t, "scrape_configs: []\n", nil)
	conn := dial(t, address, insecure.NewCredentials())
	health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", health, err)
	}
	stream := try(reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())).must(t)
	reflect := func(r *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		noError(t, stream.Send(r))
		response := try(stream.Recv()).must(t)
		return response
	}
	var names []string
	for _, service := range reflect(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, service.Name)
	}
	for _, name := range []string{"thanos.Store", "thanos.info.Info", "thanos.Exemplars", "grpc.health.v1.Health"} {
		if !slices.Contains(names, name) {
			t.Errorf("services %q: no %s", names, name)
		}
	}
	response := reflect(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "thanos.Store"}})
	if len(response.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("no description of thanos.Store: %v", response.GetErrorResponse())
	}
	noError(t, stream.CloseSend())
}

// authority is a certificate authority.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := try(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).must(t)
	a := &authority{t: t, dir: t.TempDir(), key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der := try(x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)).must(t)
	a.cert = try(x509.ParseCertificate(der)).must(t)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	noError(a.t, os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue writes a signed certificate to name.pem and its key to name-key.pem.
func (a *authority) issue(name string) tls.Certificate {
	a.t.Helper()
	key := try(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).must(a.t)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der := try(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)).must(a.t)
	keyDER := try(x509.MarshalPKCS8PrivateKey(key)).must(a.t)
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+"-key.pem", "PRIVATE KEY", keyDER)
	pair := try(tls.LoadX509KeyPair(a.file(name+".pem"), a.file(name+"-key.pem"))).must(a.t)
	return pair
}

func TestStoreAPI_ClientCertificatesAreRequired(t *testing.T) {
	ca := newAuthority(t)
	ca.issue("server")
	client := ca.issue("client")
	_, address := grpcServe(t, "scrape_configs: []\n", func(o *app.ServeOptions) {
		o.GRPC.TLS.Cert, o.GRPC.TLS.Key, o.GRPC.TLS.ClientCA = ca.file("server.pem"), ca.file("server-key.pem"), ca.file("ca.pem")
	})
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	stranger := newAuthority(t).issue("stranger")
	for name, c := range map[string]struct {
		creds credentials.TransportCredentials
		ok    bool
	}{
		"with a certificate":      {credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}}), true},
		"without one":             {credentials.NewTLS(&tls.Config{RootCAs: roots}), false},
		"with a stranger's":       {credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{stranger}}), false},
		"in plain text":           {insecure.NewCredentials(), false},
		"with an old TLS version": {credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}, MaxVersion: tls.VersionTLS12}), false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := storeapi.NewClient(dial(t, address, c.creds), storeapi.ClientOptions{}).Info(ctx)
		cancel()
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A renewed certificate is loaded without a restart.
	renewed := ca.issue("server")
	later := time.Now().Add(2 * time.Second)
	noError(t, errors.Join(os.Chtimes(ca.file("server.pem"), later, later), os.Chtimes(ca.file("server-key.pem"), later, later)))
	conn := try(tls.Dial("tcp", address, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}, NextProtos: []string{"h2"}})).must(t)
	defer conn.Close()
	if got := conn.ConnectionState().PeerCertificates[0].Raw; !slices.Equal(got, renewed.Certificate[0]) {
		t.Error("the server still sends its old certificate")
	}
}
