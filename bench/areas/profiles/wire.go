package profiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

const (
	wirePods  = 4      // of each of the 100 services
	wireRows  = 24_000 // one profile of each pod every minute for an hour
	wireCalls = 50     // in a turn
	wireTurns = 5      // of which a reading is the median
)

// podSet returns the 14 labels of a pod; but for two, name and value have 60 to 90 bytes together.
func podSet(service string, pod int) []byte {
	set := labelenc.AppendLabel(nil, series.LabelName, "process_cpu")
	for i, name := range []string{"app_kubernetes_io_component", "app_kubernetes_io_instance", "app_kubernetes_io_managed_by",
		"app_kubernetes_io_part_of", "cluster", "container", "image", "instance", "namespace", "node", "pod", series.LabelService,
		"topology_kubernetes_io_zone"} {
		value := fmt.Sprintf("%s-%d-%s", service, pod, strings.Repeat("x", 60+2*i-len(name)-len(service)))
		if name == series.LabelService {
			value = service
		}
		set = labelenc.AppendLabel(set, name, value)
	}
	return set
}

// wire measures responses of 6,000 points, each with an exemplar and the labels of its pod.
func wire(ctx context.Context, b *area.Bench) error {
	var sets [][]byte
	for i := range fleetServices * wirePods {
		sets = append(sets, podSet(serviceName(i%fleetServices), i/fleetServices))
	}
	service, pod := groupedRequest(60), seriesRequest(15, "pod")
	pod.StepMS = groupedStepMS
	const protobuf, by = "application/proto", "CPU: protobuf, 6,000 points "
	err := inDir("", func(dir string) error {
		var pushed *fleet
		err := inStore(dir, unmerged, func(s *store.Store, _ string) (err error) {
			pushed, err = pushFleet(ctx, s, sets, wireRows, fleetBlocks, fleetBlocks+1)
			return err
		})
		if err != nil {
			return err
		}
		return serve(ctx, b, dir, func(s *server) (err error) {
			for _, req := range []*series.SeriesRequest{&service, &pod} {
				what := "6,000 points by " + strings.TrimSuffix(req.GroupBy[0], "_name")
				err = errors.Join(err, s.measureSeries(ctx, b, req, pushed, "protobuf, "+what, protobuf, ""),
					s.measureSeries(ctx, b, req, pushed, "JSON, "+what, "application/json", ""),
					s.measureSeries(ctx, b, req, pushed, "protobuf with gzip, "+what, protobuf, "gzip"))
			}
			return err
		})
	})
	b.Measure("profiles/server-exemplars-service", b.Over(with, plain, by+"by service"), by+"by service")
	b.Measure("profiles/server-exemplars-pod", b.Over(with, plain, by+"by pod"), by+"by pod")
	b.Measure("profiles/exemplars-wire", b.Over(with, naive, by+"by pod"), by+"by pod")
	b.Note(fmt.Sprintf("6,000 points: %d services x %d pods, %d rows in %d blocks and a head, 14 labels; by service 61 steps of 60 s, by pod 16. CPU is that of a ferula serve from the request to the last byte, garbage collection included.", fleetServices, wirePods, wireRows, fleetBlocks),
		"The protocol repeats 13 labels in every exemplar. Floor: the CPU of the query without exemplars, and of one thread that writes the bytes of the response with exemplars to a socket; naive: proto.Marshal of the decoded response with exemplars.")
	return err
}

// measureSeries measures a server's costs of a request without exemplars and one with exemplars. Both responses are compared
// with the pushed profiles.
func (s *server) measureSeries(ctx context.Context, b *area.Bench, req *series.SeriesRequest, pushed *fleet,
	what, contentType, accept string) error {
	encode, decode := proto.Marshal, proto.Unmarshal
	if contentType == "application/json" {
		encode, decode = protojson.Marshal, protojson.Unmarshal
	}
	want := pushed.expected(req)
	if len(want) < 6000 {
		return fmt.Errorf("%w: %d exemplars", area.ErrEmpty, len(want))
	}
	var body []byte
	message := &profilepb.SelectSeriesResponse{}
	var calls [2]proc.Request
	for i, side := range []string{plain, with} {
		request, err := encode(&profilepb.SelectSeriesRequest{ProfileTypeID: req.Type.String(), LabelSelector: "{}",
			Start: req.StartMS, End: req.EndMS, Step: float64(req.StepMS) / 1000, GroupBy: req.GroupBy,
			ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_NONE + profilepb.ExemplarType(i)})
		if err != nil {
			return err
		}
		calls[i] = proc.Request{Path: seriesPath, Body: request, Encoding: accept, Header: http.Header{"Content-Type": {contentType}}}
		var response proc.Response
		if body, response, err = s.Fetch(ctx, calls[i]); err != nil {
			return err
		}
		b.Add(1, side, "bytes of the response: "+what, area.Bytes, float64(len(body)))
		plainBody, err := area.Decompressed(response.Encoding, body)
		if err == nil {
			err = decode(plainBody, message)
		}
		if err == nil {
			err = compare(want, i == 1, pointsOfMessage(message))
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", what, side, err)
		}
	}
	return inTurns(b, what, wireTurns, func(b *area.Bench, round, turn int) error {
		for i := range calls {
			i = (i + turn) % len(calls)
			err := b.Costs(ctx, round, []string{plain, with}[i], s.Server, area.Work{What: what, Repeats: wireCalls, Mallocs: true,
				Send: func() (proc.Response, error) { return s.Get(ctx, calls[i], io.Discard) }})
			if err != nil {
				return err
			}
		}
		write, err := writeCPU(body)
		if err != nil {
			return err
		}
		b.Add(round, floor, "CPU: "+what, area.Seconds, b.Median(plain, "CPU: "+what)+write.Seconds())
		marshal, err := area.CPUOf(wireCalls/wireTurns, func() error { _, err := proto.Marshal(message); return err })
		b.Add(round, naive, "CPU: "+what, area.Seconds, marshal.Seconds())
		return err
	})
}

// writeCPU returns the CPU that one thread needs to write a response to a connection of this machine.
func writeCPU(body []byte) (used time.Duration, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	drained := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
			err = errors.Join(err, conn.Close())
		}
		drained <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := func() time.Duration {
		var u unix.Rusage
		err = errors.Join(err, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := thread()
	for range wireCalls {
		if _, werr := conn.Write(body); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	used = (thread() - start) / wireCalls
	return used, errors.Join(err, conn.Close(), <-drained)
}
