package profiles

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

const (
	bucketBlocks = 4
	flameGraph   = "flame graph"
)

// placed is a request whose responses do not depend on the place of the blocks.
type placed struct {
	what     string
	request  proc.Request
	response []byte // the first one
}

// places measures queries of a new ferula serve over the same blocks on its disk, and in a bucket only: the first request of a
// kind and the second. Where the blocks are on the disk, it also measures flame graphs while profiles are pushed.
func places(ctx context.Context, b *area.Bench, pushed []series.RawProfile, totals []int64) error {
	want := sum(totals[:profilesWhole])
	later, err := pushRequests(pushed[profilesWhole:]) // after the time range of the queries
	if err != nil {
		return err
	}
	flame, err := MergeRequest("{}", epochMS, epochMS+hourMS)
	if err != nil {
		return err
	}
	selects, err := proto.Marshal(&profilepb.SelectSeriesRequest{ProfileTypeID: heapType.String(), LabelSelector: "{}",
		Start: epochMS, End: epochMS + hourMS, Step: 60, GroupBy: []string{"service_name"}})
	if err != nil {
		return err
	}
	requests := []placed{{"series by service", Call(seriesPath, selects), nil}, {flameGraph, Call(MergePath, flame), nil}}
	err = inDir("", func(dir string) error {
		disk, bucket := filepath.Join(dir, "disk"), filepath.Join(dir, "bucket")
		err := inStore(disk, unmerged, func(s *store.Store, _ string) (err error) {
			for part := range bucketBlocks {
				n := profilesWhole / bucketBlocks
				err = errors.Join(err, pushAll(ctx, s, pushed[part*n:(part+1)*n]), s.Flush(ctx))
			}
			return err
		})
		if err := errors.Join(err, blocks.Copy(filepath.Join(disk, "profiles"), filepath.Join(bucket, "profiles"))); err != nil {
			return err
		}
		return b.EachRound("blocks on the disk and in a bucket", func(round int) error {
			own := func(name string) string { return filepath.Join(dir, name, fmt.Sprint(round)) }
			err := blocks.Copy(disk, own("copy"))
			if err != nil {
				return err
			}
			err = serve(ctx, b, own("copy"), func(s *server) error {
				flame := requests[1].request
				return errors.Join(s.firstAndSecond(ctx, b, round, "blocks on the disk", requests, want),
					b.LatencyDuring(ctx, round, s.Side, flameGraph, flame, func() error { return nil }),
					b.LatencyDuring(ctx, round, s.Side, flameGraph+area.DuringPushes, flame, func() error { return s.pushAll(ctx, later) }))
			})
			if err != nil {
				return err
			}
			return serve(ctx, b, own("empty"), func(s *server) error {
				return s.firstAndSecond(ctx, b, round, "blocks in a bucket", requests, want)
			}, "--objstore.config={type: FILESYSTEM, config: {directory: "+bucket+"}}",
				"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h")
		})
	})
	b.Note(fmt.Sprintf("Blocks on the disk and in a bucket (a directory): the same %d blocks of %d profiles, read by a ferula serve that was just started; cold is its first request of a kind, warm the second. The responses are equal. During pushes: %d clients push %d profiles meanwhile; latency is the mean of all flame graphs.", bucketBlocks, profilesWhole, clients, profilesPushed))
	return err
}

// firstAndSecond measures the CPU of the first and of the second request of each kind. The responses of all servers must be
// equal.
func (s *server) firstAndSecond(ctx context.Context, b *area.Bench, round int, where string, requests []placed,
	want int64) error {
	err := proc.Until(ctx, 20*time.Second, 50*time.Millisecond, "the bucket is listed", func() error {
		request, err := MergeRequest("{}", epochMS-2*hourMS, epochMS-hourMS)
		if err != nil {
			return err
		}
		_, r, err := s.Fetch(ctx, Call(MergePath, request))
		if err == nil && r.Header.Get("Ferula-Partial-Response") != "" {
			err = area.ErrEmpty
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := range requests {
		q := &requests[i]
		for _, state := range []string{"cold", "warm"} {
			var body []byte
			cpu, err := s.CPUDuring(ctx, func() (err error) { body, _, err = s.Fetch(ctx, q.request); return err })
			if q.response == nil {
				q.response = body
			}
			if err := errors.Join(err, area.SameBytes(where+", "+q.what, body, q.response)); err != nil {
				return err
			}
			b.Add(round, ferula, fmt.Sprintf("CPU: %s, %s, %s", q.what, where, state), area.Seconds, cpu.Seconds())
		}
	}
	if got, err := MergedTotal(requests[1].response); err != nil || got != want {
		return fmt.Errorf("%w: %d of %d bytes: %v", area.ErrUnequal, got, want, err)
	}
	return nil
}
