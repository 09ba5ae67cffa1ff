package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// The test corrupts a block on the disk between two runs of a server.
func TestProfiles_PartialResponseNamesABrokenBlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	change := func(strict bool) func(*app.ServeOptions) {
		return func(o *app.ServeOptions) {
			o.Store.Dir = dir
			o.GRPC.ListenAddress = "127.0.0.1:0"
			o.Profiles.Store.HeadAge = time.Second
			o.Profiles.Query.FailPartial = strict
		}
	}
	s := startServe(t, change(false))
	from := time.Now().Add(-30 * time.Second).Unix()
	if status, text := s.folded(fmt.Sprintf("name=old&from=%d&until=%d", from, from+10), "main;work 3\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	var files []string
	eventually(t, 60*time.Second, "the block to be on the disk", func() bool {
		files, _ = filepath.Glob(filepath.Join(dir, "profiles", "*", "0*", "profiles.parquet"))
		return len(files) == 1
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	rows, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		rows[i] ^= 1
	}
	if err := os.WriteFile(files[0], rows, 0o644); err != nil {
		t.Fatal(err)
	}
	name := "block " + filepath.Base(filepath.Dir(files[0]))
	s = startServe(t, change(false))
	if status, text := s.folded("name=new", "main;rest 2\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	check := func(what string, h http.Header) {
		t.Helper()
		if h.Get("Ferula-Partial-Response") != "true" || !strings.HasPrefix(h.Get("Ferula-Warning"), name) {
			t.Errorf("%s: %v, want a warning about %s", what, h, name)
		}
	}
	request := &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, Start: time.Now().Add(-time.Hour).UnixMilli(), End: time.Now().Add(time.Minute).UnixMilli()}
	for protocol, options := range map[string][]connect.ClientOption{"Connect JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-web": {connect.WithGRPCWeb()}} {
		client := connect.NewClient[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](h2cClient(t), s.base+"/querier.v1.QuerierService/SelectMergeStacktraces", options...)
		response, err := client.CallUnary(context.Background(), connect.NewRequest(request))
		if err != nil {
			t.Fatalf("%s: %v", protocol, err)
		}
		check(protocol+" header", response.Header())
		check(protocol+" trailer", response.Trailer())
		if f := response.Msg.GetFlamegraph(); f.GetTotal() != 20_000_000 || !strings.Contains(fmt.Sprint(f.GetNames()), "rest") || strings.Contains(fmt.Sprint(f.GetNames()), "work") {
			t.Errorf("%s: %v", protocol, f)
		}
	}
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var header, trailer metadata.MD
	var series profilepb.SelectSeriesResponse
	err = conn.Invoke(context.Background(), "/querier.v1.QuerierService/SelectSeries", &profilepb.SelectSeriesRequest{
		ProfileTypeID: cpuType, Start: request.Start, End: request.End, Step: 3600, ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
	}, &series, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || len(series.Series) != 1 {
		t.Fatalf("the gRPC port: %v %v", err, &series)
	}
	for what, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
		check("gRPC port "+what, http.Header{"Ferula-Partial-Response": md.Get("ferula-partial-response"), "Ferula-Warning": md.Get("ferula-warning")})
	}
	resp, err := http.Get(s.base + "/pyroscope/render?query=" + cpuType)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil || !strings.Contains(string(text), `"warnings":["`+name) {
		t.Errorf("render: %v %s", err, text)
	}
	check("render", resp.Header)
	if _, page := s.get("/metrics"); strings.Contains(page, "ferula_profiles_partial_responses_total 0\n") || !strings.Contains(page, "ferula_profiles_partial_responses_total ") {
		t.Error("partial responses are not counted")
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = startServe(t, change(true))
	if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", lastHour(map[string]any{"profileTypeID": cpuType}), nil); status != http.StatusServiceUnavailable || !strings.Contains(text, name) || !strings.Contains(text, "partial") {
		t.Errorf("without partial responses: %d %s", status, text)
	}
}
