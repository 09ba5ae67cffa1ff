package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

func TestServe_MetricsAreServedIfTheProfileStoreDoesNotOpen(t *testing.T) {
	dir, log := t.TempDir(), &lockedBuffer{}
	blocked := writeFile(t, filepath.Join(dir, "profiles"), "not a folder")
	config := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: [{job_name: a, static_configs: [{targets: ['127.0.0.1:1']}]}]\n")
	change := func(o *app.ServeOptions) {
		o.Store.Dir = dir
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
		o.GRPC.ListenAddress = "127.0.0.1:0"
		o.Web.EnableLifecycle = true
		o.Profiles.Self, o.Profiles.Every, o.Profiles.ConfigFile = true, 100*time.Millisecond, config
	}
	s := startServe(t, change)
	eventually(t, 60*time.Second, "its own up to be 1", func() bool { return s.value("up") == "1" })
	reason := filepath.Join(dir, "profiles")
	for _, path := range []string{"/ingest?name=a&from=now-1m", "/push.v1.PusherService/Push", "/querier.v1.QuerierService/ProfileTypes"} {
		if code, body := s.post(path, "application/json", "{}"); code != http.StatusServiceUnavailable || !strings.Contains(body, reason) {
			t.Errorf("POST %s: %d %s", path, code, body)
		}
	}
	// Prometheus' API maps its error type "unavailable" to 500.
	if code, body := s.get("/api/v1/exemplar/flamegraph?profile_id=7c9e6679-7425-40de-944b-e07fc1f90ae7&time=1"); code != http.StatusInternalServerError || !strings.Contains(body, reason) {
		t.Errorf("flame graph of an exemplar: %d %s", code, body)
	}
	if code, body := s.get("/-/ready"); code != http.StatusOK || !strings.Contains(body, "Profiles are not available") || !strings.Contains(body, reason) {
		t.Errorf("readiness: %d %s", code, body)
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "\nferula_profiles_available 0\n") {
		t.Error("ferula_profiles_available is not 0")
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, reason) {
		t.Errorf("no error with %q in the log: %s", reason, text)
	}
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Invoke(context.Background(), "/querier.v1.QuerierService/ProfileTypes", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
	if code, body := s.post("/-/reload", "", ""); code != http.StatusOK {
		t.Errorf("reload: %d %s", code, body)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	s = startServe(t, change)
	if code, body := s.get("/-/ready"); code != http.StatusOK || strings.Contains(body, "Profiles") {
		t.Errorf("readiness after the store can be opened: %d %s", code, body)
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "\nferula_profiles_available 1\n") {
		t.Error("ferula_profiles_available is not 1")
	}
	eventually(t, 60*time.Second, "own profiles", func() bool {
		now := time.Now().UnixMilli()
		_, body := s.post("/querier.v1.QuerierService/LabelNames", "application/json", fmt.Sprintf(`{"start":"%d","end":"%d"}`, now-60_000, now+60_000))
		return strings.Contains(body, "service_name")
	})
}

func TestServe_TSDBThatDoesNotOpenStopsTheServerAndKeepsTheProfiles(t *testing.T) {
	dir := t.TempDir()
	first := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	now := time.Now().UnixMilli()
	if code, body := first.folded(fmt.Sprintf("name=stored&from=%d&until=now", now/1000-10), "main;work 17\n"); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	wal := filepath.Join(dir, "wal")
	if err := os.Rename(wal, wal+".away"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, wal, "not a folder")
	serve, err := app.NewServe(app.ServeOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: dir}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "open database in "+dir) {
		t.Fatalf("the server stopped with %v", err)
	}
	if err := os.Remove(wal); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(wal+".away", wal); err != nil {
		t.Fatal(err)
	}
	again := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	if _, body := again.post("/querier.v1.QuerierService/LabelValues", "application/json", fmt.Sprintf(`{"name":"service_name","start":"%d","end":"%d"}`, now-60_000, now+60_000)); !strings.Contains(body, "stored") {
		t.Error(body)
	}
}

// TestServe_ProfileFolderOfAnotherProcess starts a second server on the directory of
// profiles of another. They must not share it, because each deletes log segments whose
// content only the other one has in memory.
func TestServe_ProfileFolderOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	change := func(o *app.ServeOptions) { o.Profiles.Store.Dir = dir }
	first := startServe(t, change)
	second := startServe(t, change)
	eventually(t, 60*time.Second, "its own up to be 1", func() bool { return second.value("up") == "1" })
	if code, body := second.post("/ingest?name=a&from=now-1m", "text/plain", "main;work 17\n"); code != http.StatusServiceUnavailable || !strings.Contains(body, "another process") || !strings.Contains(body, dir) {
		t.Errorf("push to the second server: %d %s", code, body)
	}
	if code, body := second.get("/-/ready"); code != http.StatusOK || !strings.Contains(body, "another process") {
		t.Errorf("readiness of the second server: %d %s", code, body)
	}
	if code, body := first.post("/ingest?name=a&from=now-1m", "text/plain", "main;work 17\n"); code != http.StatusOK {
		t.Errorf("push to the first server: %d %s", code, body)
	}
	for _, s := range []*server{second, first} {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
	third := startServe(t, change)
	if code, body := third.get("/-/ready"); code != http.StatusOK || strings.Contains(body, "Profiles") {
		t.Errorf("readiness after the others have stopped: %d %s", code, body)
	}
}
