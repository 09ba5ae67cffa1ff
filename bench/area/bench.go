package area

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// MiB is the unit of goals of memory.
const MiB = 1 << 20

// Bench is one run of an area.
type Bench struct {
	Env
	Outcome
	Dir string // for the logs and data of this run

	lengths map[string]int64
}

// New returns a run of an area.
func New(a Area, env Env) *Bench {
	return &Bench{Env: env, Outcome: Outcome{Sides: a.Sides}, Dir: filepath.Join(env.Cache, "run", a.Name), lengths: map[string]int64{}}
}

// Side is a program that is measured.
type Side struct {
	Name         string // its column
	Program      peer.Program
	Dir          string // its own, for data, configuration and log
	GRPC         string // address of its StoreAPI, if its Launch sets it
	*proc.Server        // nil while none runs
}

// Launch prepares the directory of a side and says how its process is started.
type Launch func(s *Side) (proc.Spec, error)

// Start starts the process of a side.
func (s *Side) Start(ctx context.Context, launch Launch) error {
	spec, err := launch(s)
	if err == nil {
		s.Server, err = proc.Start(ctx, spec)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Stop stops the process of a side, if one runs.
func (s *Side) Stop() error {
	server := s.Server
	if s.Server = nil; server == nil {
		return nil
	}
	return server.Stop()
}

// Log is the file of the log of a side.
func (s *Side) Log() string { return filepath.Join(s.Dir, "log") }

// Program finds a program, and adds its version to those of the run.
func (b *Bench) Program(ctx context.Context, name string) (peer.Program, error) {
	p, err := b.Programs.Get(ctx, name)
	b.Versions = append(b.Versions, p.Version)
	return p, err
}

// SideOf finds a program, and returns a side of it.
func (b *Bench) SideOf(ctx context.Context, column, program, dir string) (*Side, error) {
	p, err := b.Program(ctx, program)
	return b.Side(column, p, dir), err
}

// Side returns a side of a program. Its directory is that of the run with this name.
func (b *Bench) Side(column string, p peer.Program, dir string) *Side {
	return &Side{Name: column, Program: p, Dir: filepath.Join(b.Dir, dir)}
}

// Pair returns the first and the last side of the table: the peer, and ferula or, under -null, the peer once more.
func (b *Bench) Pair(ctx context.Context, name string) ([]*Side, error) {
	theirs, err := b.Program(ctx, name)
	if err != nil {
		return nil, err
	}
	ours, err := b.Programs.Ferula(ctx, name)
	b.Versions = append(b.Versions, ours.Version)
	last := b.Sides[len(b.Sides)-1]
	return []*Side{b.Side(b.Sides[0], theirs, b.Sides[0]), b.Side(last, ours, last)}, err
}

// AtGRPC launches a process with an address for its StoreAPI, Side.GRPC.
func AtGRPC(spec func(s *Side) proc.Spec) Launch {
	return func(s *Side) (_ proc.Spec, err error) {
		s.GRPC, err = proc.FreeAddress()
		return spec(s), err
	}
}

// With calls work while the sides run.
func (b *Bench) With(ctx context.Context, launch Launch, work func() error, sides ...*Side) (err error) {
	for _, s := range sides {
		if err := s.Start(ctx, launch); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Stop()) }()
	}
	return work()
}

// Replica configures a Prometheus as one of an HA pair.
const Replica = "global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []"

// ReceiveWrites is the flag with which a server of a TSDB accepts remote write.
const ReceiveWrites = "--web.enable-remote-write-receiver"

// TSDB says how a server of a TSDB is started.
type TSDB struct {
	Data   blocks.Spec // the zero value: no blocks
	Keep   bool        // keep what an earlier process wrote, and copy no blocks
	Config string      // of Prometheus
	Flags  []string
	GRPC   bool // ferula serves StoreAPI at Side.GRPC
}

// TSDBDir is the directory of the data of a side that TSDB launches.
func (s *Side) TSDBDir() string { return filepath.Join(s.Dir, "data") }

// TSDB launches Prometheus, or ferula serve, on blocks of its own.
func (b *Bench) TSDB(ctx context.Context, t TSDB) Launch {
	return func(s *Side) (spec proc.Spec, err error) {
		switch {
		case t.Keep:
		case t.Data.Series == 0:
			err = os.RemoveAll(s.TSDBDir())
		default:
			var from string
			if from, err = blocks.Ensure(ctx, b.Cache, t.Data); err == nil {
				err = blocks.Copy(from, s.TSDBDir())
			}
		}
		config, flags := filepath.Join(s.Dir, "prometheus.yml"), t.Flags
		err = errors.Join(err, os.MkdirAll(s.TSDBDir(), 0o755), os.WriteFile(config, []byte(t.Config+"\n"), 0o644))
		if t.GRPC && err == nil {
			s.GRPC, err = proc.FreeAddress()
			flags = append(slices.Clone(flags), "--grpc-address="+s.GRPC)
		}
		return s.Program.Serve(s.Log(), s.TSDBDir(), config, flags...), err
	}
}

// EachRound calls a function for every round.
func (b *Bench) EachRound(what string, round func(n int) error) error {
	for n := 1; n <= b.Rounds; n++ {
		if err := round(n); err != nil {
			return err
		}
		b.Logf("round %d of %d: %s", n, b.Rounds, what)
	}
	return nil
}

// InTurn takes a reading of every side in every round.
func (b *Bench) InTurn(what string, sides []*Side, reading func(round int, s *Side) error) error {
	return b.EachRound(what, func(round int) error {
		for _, s := range sides {
			if err := reading(round, s); err != nil {
				return fmt.Errorf("%s: %s: %w", s.Name, what, err)
			}
		}
		return nil
	})
}

// SameLength returns an error if a response is empty, or not as long as the first one with this name from this side.
func (b *Bench) SameLength(side, what string, n int64) error {
	first, ok := b.lengths[side+what]
	if !ok {
		b.lengths[side+what] = n
	}
	switch {
	case n == 0:
		return fmt.Errorf("%s: %s: %w", side, what, ErrEmpty)
	case ok && n != first:
		return fmt.Errorf("%s: %s: %w: %d bytes, %d before", side, what, ErrUnequal, n, first)
	}
	return nil
}

// Drain sends a request to a side and drains the response, which must have the length of the first one with this name.
func (b *Bench) Drain(ctx context.Context, s *Side, what string, r proc.Request) (proc.Response, error) {
	a, err := s.Get(ctx, r, io.Discard)
	if err == nil {
		err = b.SameLength(s.Name, what, a.Bytes)
	}
	return a, err
}

// Length returns the length of the responses with this name from this side, in bytes, or 0.
func (b *Bench) Length(side, what string) float64 { return float64(b.lengths[side+what]) }

// SameResponses sends a request to all sides. It returns the response, which must be the same from all of them.
func (b *Bench) SameResponses(ctx context.Context, what string, r proc.Request, sides ...*Side) (first []byte, err error) {
	for i, s := range sides {
		body, a, err := s.Fetch(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.Name, what, err)
		}
		if a.Encoding != r.Encoding {
			return nil, fmt.Errorf("%s: %s: %w: encoding %q", s.Name, what, ErrUnequal, a.Encoding)
		}
		b.Add(1, s.Name, "bytes on the wire: "+what, Bytes, float64(a.Wire))
		if err := b.SameLength(s.Name, what, a.Bytes); err != nil {
			return nil, err
		}
		if body, err = Decompressed(a.Encoding, body); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.Name, what, err)
		}
		if i == 0 {
			first = body
		}
		if err := SameBytes(what, first, body); err != nil {
			return nil, err
		}
	}
	b.Logf("responses are equal: %s, %d bytes", what, len(first))
	return first, nil
}

// SameResults sends a query to all sides. The results must be complete and, within a tolerance, the same from all of them.
func (b *Bench) SameResults(ctx context.Context, q Query, tolerance float64, sides ...*Side) error {
	var first model.Matrix
	for _, s := range sides {
		got, err := q.Result(ctx, s.Server)
		if first == nil {
			first = got
		}
		if err == nil {
			err = errors.Join(q.Complete(got), SameMatrix(q.What, got, first, tolerance))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	b.Logf("responses are equal: %s", q.What)
	return nil
}

// Work is what a process does for one reading.
type Work struct {
	What    string
	Repeats int  // requests in a row
	Mallocs bool // count allocations, too, with one request more
	Send    func() (proc.Response, error)
}

// Costs takes a reading of the costs of a request: CPU, times and write calls, and allocations.
func (b *Bench) Costs(ctx context.Context, round int, side string, server *proc.Server, w Work) error {
	var first, last time.Duration
	var wrote proc.IO
	before, err := server.IO()
	if err != nil {
		return err
	}
	cpu, err := server.CPUDuring(ctx, func() error {
		for range w.Repeats {
			a, err := w.Send()
			if err != nil {
				return err
			}
			first, last = first+a.FirstByte, last+a.Elapsed
		}
		after, err := server.IO()
		wrote = after.Sub(before)
		return err
	})
	if err != nil {
		return err
	}
	n := float64(w.Repeats)
	b.Add(round, side, "CPU: "+w.What, Seconds, cpu.Seconds()/n)
	if first > 0 { // the client knows it
		b.Add(round, side, "first byte: "+w.What, Seconds, first.Seconds()/n)
	}
	b.Add(round, side, "last byte: "+w.What, Seconds, last.Seconds()/n)
	b.Add(round, side, "write calls: "+w.What, Count, float64(wrote.Writes)/n)
	if !w.Mallocs {
		return nil
	}
	mallocs, err := server.MallocsDuring(ctx, func() error { _, err := w.Send(); return err })
	b.Add(round, side, "mallocs: "+w.What, Count, float64(mallocs))
	return err
}

// Idle is the name of readings of memory before a request, and GrowthOf begins those of its growth.
const (
	Idle     = "RssAnon, idle"
	GrowthOf = "growth of RssAnon: "
)

// Growth starts a side anew, and takes a reading of the growth of its memory during work.
func (b *Bench) Growth(ctx context.Context, round int, s *Side, launch Launch, what string, work func() error) (g proc.Growth, err error) {
	err = b.With(ctx, launch, func() error {
		g, err = s.GrowthDuring(ctx, work)
		b.Add(round, s.Name, GrowthOf+what, Bytes, float64(g.Bytes()))
		return err
	}, s)
	return g, err
}

// Around calls work within measure of every side.
func Around(sides []*Side, measure func(s *Side, work func() error) error, work func() error) error {
	for _, s := range sides {
		inner := work
		work = func() error { return measure(s, inner) }
	}
	return work()
}

// BytesBelow returns the bytes of the files below a directory, or of a file.
func BytesBelow(path string) (size float64, err error) {
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += float64(info.Size())
		}
		return err
	})
	return size, err
}

// CPUOf returns the CPU time of this process for one of n calls, with the collection of their garbage.
func CPUOf(n int, call func() error) (time.Duration, error) {
	runtime.GC()
	before := proc.SelfCPU()
	for range n {
		if err := call(); err != nil {
			return 0, err
		}
	}
	runtime.GC()
	return (proc.SelfCPU() - before) / time.Duration(n), nil
}

// Modules returns the versions of these modules in this program.
func Modules(paths ...string) (found []string) {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if slices.Contains(paths, dep.Path) {
			found = append(found, strings.TrimPrefix(dep.Path, "github.com/")+" "+dep.Version)
		}
	}
	return found
}

// DuringPushes names the reading of a latency while data are pushed.
const DuringPushes = ", during pushes"

// LatencyDuring records the mean duration of a request that is sent again and again while work runs, three times at least.
func (b *Bench) LatencyDuring(ctx context.Context, round int, s *Side, what string, r proc.Request, work func() error) (err error) {
	done := make(chan error, 1)
	go func() { done <- work() }()
	sum, n := time.Duration(0), 0
	for running := true; running || n < 3; n++ {
		a, failed := s.Get(ctx, r, io.Discard)
		if failed != nil && running {
			return errors.Join(failed, <-done)
		}
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		sum += a.Elapsed
		select {
		case err = <-done:
			running = false
		default:
		}
	}
	b.Add(round, s.Name, "latency: "+what, Seconds, sum.Seconds()/float64(n))
	return err
}
