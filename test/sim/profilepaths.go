package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	profileapi "github.com/ferula-io/ferula/internal/profiles/api"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// stacks describes a CPU profile: the number of samples, the depth of their stacks, which
// differ at the root, and the value of each sample in nanoseconds.
type stacks struct {
	samples, depth int
	value          int64
}

func (s stacks) total() int64 { return int64(s.samples) * s.value }

// encode returns the profile as a gzipped pprof.
func (s stacks) encode(at time.Time) ([]byte, error) {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:     10_000_000, TimeNanos: at.UnixNano(), DurationNanos: int64(10 * time.Second),
	}
	location := func(name string) *profile.Location {
		f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
		p.Function = append(p.Function, f)
		l := &profile.Location{ID: uint64(len(p.Location) + 1), Line: []profile.Line{{Function: f}}}
		p.Location = append(p.Location, l)
		return l
	}
	shared := make([]*profile.Location, 0, s.depth)
	for i := range s.depth - 1 {
		shared = append(shared, location(fmt.Sprintf("frame%d", i)))
	}
	roots := make([]*profile.Location, min(s.samples, 500))
	for i := range roots {
		roots[i] = location(fmt.Sprintf("root%d", i))
	}
	leaf := location("leaf")
	for i := range s.samples {
		// The second frame makes stacks with the same root differ.
		chain := []*profile.Location{leaf}
		if len(shared) > 0 {
			chain = append(chain, shared[i%len(shared)])
		}
		chain = append(chain, shared...)
		chain = append(chain, roots[i%len(roots)])
		p.Sample = append(p.Sample, &profile.Sample{Location: chain, Value: []int64{s.value}})
	}
	var out bytes.Buffer
	err := p.Write(&out)
	return out.Bytes(), err
}

// writeForeignBlock writes a block as a server writes it at a time: in the server's own directory, after some others,
// and moved from there. It returns the total of the block.
func writeForeignBlock(ctx context.Context, into, dir string, at time.Time, service string, s stacks) (total int64, err error) {
	other, err := store.New(store.Options{Dir: dir, Retention: -1, BlockBytes: 1}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, other.Close(), os.RemoveAll(dir)) }()
	if err := other.Open(); err != nil {
		return 0, err
	}
	set := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", service)
	for range 20 { // the segments of its log have other numbers than those of the server
		raw, err := s.encode(at)
		if err != nil {
			return 0, err
		}
		plain, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return 0, err
		}
		if raw, err = io.ReadAll(plain); err != nil {
			return 0, err
		}
		err = other.Append(ctx, profileapi.AnonymousTenant, []profiles.RawProfile{{Labels: set, Raw: raw}})
		if err := errors.Join(err, other.Flush(ctx)); err != nil {
			return 0, err
		}
	}
	written, err := filepath.Glob(filepath.Join(dir, "profiles", profileapi.AnonymousTenant, "0*"))
	if err != nil {
		return 0, err
	}
	last, err := block.Open(slices.Max(written))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, last.Close()) }()
	id := ulid.MustNew(uint64(at.UnixMilli()), rand.Reader)
	to := filepath.Join(into, id.String())
	if err := os.MkdirAll(to, 0o755); err != nil {
		return 0, err
	}
	return s.total(), store.Merge(ctx, to, id, []*block.Reader{last})
}

// pushProfile pushes by push.v1: JSON, or protobuf by Connect, gRPC or gRPC-Web.
func pushProfile(e *environment, base, protocol, tenant, service string, raw []byte) error {
	if protocol == "json" {
		return pushJSON(e, base, tenant, service, raw)
	}
	options := map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}}[protocol]
	var protocols http.Protocols
	protocols.SetHTTP1(protocol != "grpc")
	protocols.SetUnencryptedHTTP2(protocol == "grpc")
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	client := connect.NewClient[profilepb.PushRequest, profilepb.PushResponse](&http.Client{Transport: transport, Timeout: time.Minute}, base+"/push.v1.PusherService/Push", options...)
	request := connect.NewRequest(&profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{
		Labels:  []*profilepb.LabelPair{{Name: "__name__", Value: "process_cpu"}, {Name: "service_name", Value: service}},
		Samples: []*profilepb.RawSample{{RawProfile: raw}},
	}}})
	request.Header().Set("X-Scope-OrgID", tenant)
	_, err := client.CallUnary(e.ctx, request)
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeResourceExhausted, connect.CodeOutOfRange, connect.CodeFailedPrecondition:
		if err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	return err
}

func pushJSON(e *environment, base, tenant, service string, raw []byte) error {
	message := map[string]any{"series": []any{map[string]any{
		"labels":  []any{map[string]string{"name": "__name__", "value": "process_cpu"}, map[string]string{"name": "service_name", "value": service}},
		"samples": []any{map[string]string{"rawProfile": base64.StdEncoding.EncodeToString(raw)}},
	}}}
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	status, text, err := post(e.ctx, e.client, base+"/push.v1.PusherService/Push", body, map[string]string{"Content-Type": "application/json", "X-Scope-OrgID": tenant})
	if err == nil && status == http.StatusOK {
		return nil
	}
	return writeResult(status, text, err)
}

// profileTotal returns the total of a service's flame graph, by querier.v1 in JSON.
func profileTotal(ctx context.Context, c *http.Client, base, tenant, service string, fromMS, toMS int64) (int64, error) {
	body, err := json.Marshal(map[string]any{
		"profileTypeID": "process_cpu:cpu:nanoseconds:cpu:nanoseconds", "labelSelector": fmt.Sprintf("{service_name=%q}", service),
		"start": strconv.FormatInt(fromMS, 10), "end": strconv.FormatInt(toMS, 10),
	})
	if err != nil {
		return 0, err
	}
	status, text, err := post(ctx, c, base+"/querier.v1.QuerierService/SelectMergeStacktraces", body, map[string]string{"Content-Type": "application/json", "X-Scope-OrgID": tenant})
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("SelectMergeStacktraces: status %d: %s", status, text)
	}
	var r struct {
		Flamegraph struct {
			Total json.Number `json:"total"`
		} `json:"flamegraph"`
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&r); err != nil {
		return 0, fmt.Errorf("flame graph: %w in %.300s", err, text)
	}
	if r.Flamegraph.Total == "" {
		return 0, nil
	}
	return strconv.ParseInt(strings.Trim(string(r.Flamegraph.Total), `"`), 10, 64)
}
