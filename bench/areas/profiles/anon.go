package profiles

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
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

// Fleet makes the pushes of 100 services with some pods each. Any number of goroutines may share it.
type Fleet struct {
	labels [][]byte // by pod
	raws   [][]byte // by service and variant; without a time
	totals []int64
}

// NewFleet returns a fleet with the given number of pods of a service.
func NewFleet(pods int) (*Fleet, error) {
	f, m := &Fleet{}, newHeapMaker(fleetServices)
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

// Request returns an encoded push.v1.PushRequest, the n-th of the fleet, of one heap profile of 200 samples. It also returns
// the bytes that the profile records as allocated. The time is compressed as a second member of the gzip stream. This is valid
// because the fields of a protobuf message may be in any order.
func (f *Fleet) Request(n int, timeNS int64) (body []byte, total int64, err error) {
	pod := n % len(f.labels)
	service, variant := pod%fleetServices, (n/len(f.labels)+pod/fleetServices)%anonVariants
	at := variant*fleetServices + service
	var raw bytes.Buffer
	raw.Write(f.raws[at])
	w, err := gzip.NewWriterLevel(&raw, gzip.NoCompression)
	if err != nil {
		return nil, 0, err
	}
	const timeTag = 9 << 3
	_, err = w.Write(binary.AppendUvarint([]byte{timeTag}, uint64(timeNS)))
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, 0, err
	}
	body, err = pushRequest(&series.RawProfile{Labels: f.labels[pod], ID: idOf(n), Raw: raw.Bytes()})
	return body, f.totals[at], err
}

// push pushes for the duration d, and returns the total of the bytes that the acknowledged profiles record.
func (f *Fleet) push(ctx context.Context, s *server, d time.Duration) (int64, error) {
	pods := len(f.labels)
	pushes := int(d/anonEvery) * pods
	begun := time.Now()
	var total atomic.Int64
	err := proc.Parallel(clients, func(c int) error {
		for n := c; n < pushes; n += clients {
			due := begun.Add(time.Duration(n) * (anonEvery / time.Duration(pods)))
			if late := time.Since(due); late > anonBehind {
				return fmt.Errorf("the server is %s behind after %d of %d pushes", late, n, pushes)
			}
			if err := proc.Wait(ctx, time.Until(due)); err != nil {
				return err
			}
			request, sum, err := f.Request(n, due.UnixNano())
			if err == nil {
				_, err = s.call(ctx, PushPath, request)
			}
			if err != nil {
				return err
			}
			total.Add(sum)
		}
		return nil
	})
	return total.Load(), err
}

// anonymous measures the memory of a server to which a fleet pushes in real time, and of a query over all of it.
func anonymous(ctx context.Context, b *area.Bench) error {
	d := 10 * time.Minute
	if b.Short {
		d = time.Minute
	}
	f, err := NewFleet(fleetPods)
	if err != nil {
		return err
	}
	return inDir("", func(dir string) error {
		return serve(ctx, b, dir, func(s *server) error { return anonymousOf(ctx, b, s, f, d) })
	})
}

func anonymousOf(ctx context.Context, b *area.Bench, s *server, f *Fleet, d time.Duration) error {
	from, most := time.Now(), int64(0)
	stop := proc.Watch(s.Pid(), anonWatch, func(_ time.Duration, anon int64) { most = max(most, anon) })
	want, err := f.push(ctx, s, d)
	stop()
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
	if err == nil && got != want {
		err = fmt.Errorf("%w: the flame graph has %d of %d bytes", area.ErrUnequal, got, want)
	}
	if err != nil {
		return err
	}
	b.Add(1, ferula, anonPushing, area.Bytes, float64(most))
	b.Add(1, ferula, anonQuerying, area.Bytes, float64(grown.Bytes()))
	b.Own("profiles/fleet-anon-mib", area.MiB, anonPushing)
	b.Own("profiles/query-all-anon-mib", area.MiB, anonQuerying)
	b.Note(fmt.Sprintf("RssAnon: %d services x %d pods push a profile of %d samples every %s for %s; every pod has %d different ones of the %d stacks of its service. The flame graph of {} that follows has every byte that was acknowledged; its growth is above the memory after a collection.", fleetServices, fleetPods, samples, anonEvery, d, anonVariants, stacks))
	return nil
}
