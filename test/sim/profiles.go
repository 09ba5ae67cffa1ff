package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	cryptorand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
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

// profilesScenario is a server that receives profiles of all sizes, with limits that
// change from start to start.
type profilesScenario struct {
	env   *environment
	rng   *rand.Rand
	srv   *server
	model *profileModel
	begin time.Time
	old   time.Time // when the only block of the directory was written, before the first start; zero: there is none
}

const (
	profileTenant  = "sim"
	profileRSSMax  = 900 // MiB; heads and queries together use far less
	profileService = "service"
	oldService     = "old"
)

func newProfilesScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	srv, err := newServer(e, filepath.Join(dir, "serve"), serveConfig{retentionFile: "1y"})
	if err != nil {
		return nil, err
	}
	w := &profilesScenario{env: e, rng: rng, srv: srv, model: newProfileModel(), begin: time.Now()}
	w.setLimits(rng)
	if rng.IntN(2) == 0 {
		// As if the clock was ahead of the data: it is older than the retention time, and none is younger.
		w.old = w.begin.Add(-20 * 24 * time.Hour)
		return w, w.restore(rng, w.old, oldService)
	}
	return w, nil
}

// restore puts a block that another server has written into the directory of the server, which is not running.
func (w *profilesScenario) restore(rng *rand.Rand, at time.Time, service string) error {
	into := filepath.Join(w.srv.dir, "data", "profiles", profileapi.AnonymousTenant)
	total, err := writeForeignBlock(w.env.ctx, into, filepath.Join(w.srv.dir, "foreign"), at, service,
		stacks{1 + rng.IntN(200), 1 + rng.IntN(60), 1 + rng.Int64N(1000)})
	w.model.acked[service] += total
	return err
}

// setLimits raises limits or leaves them at their defaults.
func (w *profilesScenario) setLimits(rng *rand.Rand) {
	raise := rng.IntN(2) == 0 || w.srv.cfg.profileFlags == nil // so that no two consecutive starts have the defaults
	w.srv.cfg.profileFlags = nil
	if raise {
		w.srv.cfg.profileFlags = []string{"--profiles.limit.samples=1000000", "--profiles.limit.symbols=1000000",
			"--profiles.limit.decompressed-size=128MB", "--profiles.limit.rate=512MB", "--profiles.limit.burst=512MB", "--profiles.limit.profile-size=64MB"}
	}
}

func (w *profilesScenario) start() error {
	w.srv.mintMS = w.begin.UnixMilli()
	return w.srv.run()
}

// again starts the server again with other limits.
func (w *profilesScenario) again(rng *rand.Rand) error {
	w.setLimits(rng)
	blocks, err := filepath.Glob(filepath.Join(w.srv.dir, "data", "profiles", profileapi.AnonymousTenant, "0*"))
	if len(blocks) > 1 {
		w.old = time.Time{} // a head was written as a block: the retention applies to the old one
	}
	return errors.Join(err, w.srv.run())
}

func (w *profilesScenario) stop() error { return w.srv.stop() }

func (w *profilesScenario) steps() []step {
	first := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
	// Within all limits: without it, the limits may refuse every push of a scenario, and nothing would be compared.
	list := []step{{"push a small profile", func() error { return w.push(first, stacks{10, 5, 1}) }}}
	if !w.old.IsZero() {
		list = append(list, step{"wait for the retention", func() error {
			time.Sleep(2500 * time.Millisecond) // the store maintains its blocks every 2 s
			return nil
		}})
	}
	for range 5 + w.rng.IntN(5) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		switch rng.IntN(8) {
		case 0:
			list = append(list, step{"push small profiles", func() error { return w.push(rng, stacks{1 + rng.IntN(200), 1 + rng.IntN(60), 1 + rng.Int64N(1000)}) }})
		case 1, 2:
			list = append(list, step{"push a wide profile", func() error { return w.push(rng, stacks{pick(rng, 15_000, 60_000, 510_000), 2, 7}) }})
		case 3:
			list = append(list, step{"push deep stacks", func() error { return w.push(rng, stacks{pick(rng, 50, 250), pick(rng, 900, 4000), 3}) }})
		case 6:
			list = append(list, step{"senders that stall", func() error { return w.stalledSenders(rng) }})
		case 4:
			list = append(list, step{"kill, start with other limits", func() error {
				w.srv.kill()
				return w.again(rng)
			}})
		case 7:
			list = append(list, step{"kill, restore a block of another server", func() error {
				w.srv.kill()
				w.old = time.Time{} // a later block was written: the retention applies to the old one
				return errors.Join(w.restore(rng, time.Now(), fmt.Sprint(profileService, rng.IntN(3))), w.srv.run())
			}})
		case 5:
			list = append(list, step{"stop, start with other limits", func() error {
				if err := w.srv.stop(); err != nil {
					return err
				}
				return w.again(rng)
			}})
		}
	}
	return list
}

// stalledSenders sends pushes whose bodies do not end. In the meantime another push must be
// acknowledged.
func (w *profilesScenario) stalledSenders(rng *rand.Rand) error {
	release, err := w.srv.stall(60, "POST /push.v1.PusherService/Push HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100000", []byte(`{"series":[`))
	if err != nil {
		return err
	}
	defer release()
	unknown := len(slices.Concat(slices.Collect(maps.Values(w.model.maybe))...))
	if err := w.push(rng, stacks{10, 5, 1}); err != nil {
		return err
	}
	if len(slices.Concat(slices.Collect(maps.Values(w.model.maybe))...)) > unknown {
		return errors.New("a push got no acknowledgement while other senders stalled")
	}
	return nil
}

func (w *profilesScenario) push(rng *rand.Rand, s stacks) error {
	raw, err := s.encode(time.Now())
	if err != nil {
		return err
	}
	service := fmt.Sprint(profileService, rng.IntN(3))
	err = pushProfile(w.env, w.srv.base(), pick(rng, "json", "connect", "grpc", "grpc-web"), profileTenant, service, raw)
	switch {
	case err == nil:
		w.model.acked[service] += s.total()
	case errors.Is(err, errRefused): // over a limit: none of its samples may be stored
	default:
		w.model.maybe[service] = append(w.model.maybe[service], s.total())
	}
	return nil
}

func (w *profilesScenario) check() error {
	if err := w.srv.proc.unexpectedExit(); err != nil {
		return err
	}
	if !w.old.IsZero() {
		total, err := profileTotal(w.env.ctx, w.env.client, w.srv.base(), profileTenant, oldService,
			w.old.Add(-time.Minute).UnixMilli(), w.old.Add(time.Minute).UnixMilli())
		if err := errors.Join(err, w.model.check(oldService, total)); err != nil {
			return err
		}
	}
	from, to := w.begin.Add(-time.Minute).UnixMilli(), time.Now().Add(time.Minute).UnixMilli()
	for i := range 3 {
		service := fmt.Sprint(profileService, i)
		total, err := profileTotal(w.env.ctx, w.env.client, w.srv.base(), profileTenant, service, from, to)
		if err != nil {
			return err
		}
		if err := w.model.check(service, total); err != nil {
			return err
		}
		if total > 0 {
			w.env.proved(1)
		}
	}
	if mib, err := w.srv.proc.rssAnonMiB(); err != nil || mib > profileRSSMax {
		return fmt.Errorf("%d MiB of anonymous memory, limit %d (%v)", mib, profileRSSMax, err)
	}
	return nil
}

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
	id := ulid.MustNew(uint64(at.UnixMilli()), cryptorand.Reader)
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
