package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

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
