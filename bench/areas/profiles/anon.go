package profiles

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
)

const (
	anonEvery    = 10 * time.Second // interval of the pushes of a pod
	anonWatch    = 100 * time.Millisecond
	anonVariants = 20 // different profiles of a service
	anonBehind   = 5 * time.Second

	anonPushing  = "RssAnon: greatest while 2,000 pods push every 10 s"
	anonQuerying = "RssAnon: growth during a flame graph of {}"
)

// podFleet pushes in real time.
type podFleet struct {
	labels [][]byte // by pod
	raws   [][]byte // by service and variant; without a time
	totals []int64
}

func newPodFleet(pods int) (*podFleet, error) {
	f, m := &podFleet{}, newHeapMaker(fleetServices)
	for i := range fleetServices * pods {
		f.labels = append(f.labels, labelsOf("memory", serviceName(i%fleetServices), i/fleetServices))
	}
	for i := range fleetServices * anonVariants {
		raw, total, err := m.profile(i, 0)
		if err != nil {
			return nil, err
		}
		f.raws, f.totals = append(f.raws, raw), append(f.totals, total)
	}
	return f, nil
}

// request returns the n-th push of the fleet, with the given time, and the total of the bytes that its profile records. The
// time is compressed as a second member of the gzip stream. This is valid because the fields of a protobuf message may be in
// any order.
func (f *podFleet) request(n int, timeNS int64, scratch *bytes.Buffer, w *gzip.Writer) ([]byte, int64, error) {
	pod := n % len(f.labels)
	service, variant := pod%fleetServices, (n/len(f.labels)+pod/fleetServices)%anonVariants
	at := variant*fleetServices + service
	scratch.Reset()
	scratch.Write(f.raws[at])
	w.Reset(scratch)
	const timeTag = 9 << 3
	if _, err := w.Write(binary.AppendUvarint([]byte{timeTag}, uint64(timeNS))); err != nil {
		return nil, 0, err
	}
	if err := w.Close(); err != nil {
		return nil, 0, err
	}
	b, err := pushRequest(&series.RawProfile{Labels: f.labels[pod], ID: idOf(n), Raw: scratch.Bytes()})
	return b, f.totals[at], err
}

// push pushes for the duration d, and returns the total of the bytes that the acknowledged profiles record.
func (f *podFleet) push(ctx context.Context, s *server, d time.Duration) (total int64, err error) {
	pods := len(f.labels)
	pushes := int(d/anonEvery) * pods
	begun := time.Now()
	totals, errs := make([]int64, clients), make([]error, clients)
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			var scratch bytes.Buffer
			w, err := gzip.NewWriterLevel(&scratch, gzip.NoCompression)
			for n := c; n < pushes && err == nil; n += clients {
				due := begun.Add(time.Duration(n) * (anonEvery / time.Duration(pods)))
				if late := time.Since(due); late > anonBehind {
					err = fmt.Errorf("the server is %s behind after %d of %d pushes", late, n, pushes)
					break
				}
				if err = wait(ctx, time.Until(due)); err != nil {
					break
				}
				var request []byte
				var sum int64
				if request, sum, err = f.request(n, due.UnixNano(), &scratch, w); err == nil {
					_, err = s.call(ctx, pushPath, request)
					totals[c] += sum
				}
			}
			errs[c] = err
		})
	}
	running.Wait()
	for c, t := range totals {
		if errs[c] != nil {
			return 0, errs[c] // the other clients have similar errors
		}
		total += t
	}
	return total, nil
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// anonymous measures the memory of a server to which a fleet pushes in real time, and of a query over all of it.
func anonymous(ctx context.Context, env area.Env, out *area.Outcome) error {
	d := 10 * time.Minute
	if env.Short {
		d = time.Minute
	}
	return anonymousOf(ctx, env, out, fleetPods, d)
}

func anonymousOf(ctx context.Context, env area.Env, out *area.Outcome, pods int, d time.Duration) (err error) {
	f, err := newPodFleet(pods)
	if err != nil {
		return err
	}
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	s, err := serve(ctx, env, out, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	from := time.Now()
	peak, stop := make(chan int64), make(chan struct{})
	go func() { peak <- greatest(s, stop) }()
	want, err := f.push(ctx, s, d)
	close(stop)
	most := <-peak
	if err != nil {
		return err
	}
	if want == 0 || most == 0 {
		return fmt.Errorf("%w: %d bytes were pushed, RssAnon is %d", area.ErrEmpty, want, most)
	}
	var got int64
	grown, err := s.GrowthDuring(ctx, func() (err error) {
		got, err = s.total(ctx, from.UnixMilli()-1, time.Now().UnixMilli())
		return err
	})
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: the flame graph has %d of %d bytes", area.ErrUnequal, got, want)
	}
	out.Recorder.Add(1, ferula, anonPushing, area.Bytes, float64(most))
	out.Recorder.Add(1, ferula, anonQuerying, area.Bytes, float64(grown.Bytes()))
	const mib = 1 << 20
	env.Logf("RssAnon %d MiB while pushing for %s, %d MiB more for a query", most/mib, d, grown.Bytes()/mib)
	out.Measure("profiles/fleet-anon-mib", float64(most)/mib, anonPushing)
	out.Measure("profiles/query-all-anon-mib", float64(grown.Bytes())/mib, anonQuerying)
	out.Notes = append(out.Notes, fmt.Sprintf("RssAnon: %d services x %d pods push a profile of %d samples every %s for %s; every pod has %d different ones of the %d stacks of its service. The flame graph of {} that follows has every byte that was acknowledged; its growth is above the memory after a collection.", fleetServices, pods, samples, anonEvery, d, anonVariants, stacks))
	return nil
}

// greatest returns the greatest RssAnon until stop is closed.
func greatest(s *server, stop <-chan struct{}) (most int64) {
	tick := time.NewTicker(anonWatch)
	defer tick.Stop()
	for {
		if now, err := proc.Anon(s.Pid()); err == nil {
			most = max(most, now)
		}
		select {
		case <-stop:
			return most
		case <-tick.C:
		}
	}
}
