package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/metrics"
)

// Prometheus' database deletes out-of-order chunks that a series gets while the chunks of others are collected for a compaction.
func TestStore_LateSamplesAreKeptWhileOthersMoveToBlocks(t *testing.T) {
	const series, rounds, late = 20_000, 3, 40 // more than one chunk of out-of-order samples holds
	s := newStore(t, Options{Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, NoLockfile: true})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	db := s.db.Load()
	db.DisableCompactions()
	write := func(from, to int, times ...int64) {
		app := s.Appender(context.Background())
		for i := from; i < to; i++ {
			for _, at := range times {
				if _, err := app.Append(0, labels.FromStrings("__name__", "m", "i", strconv.Itoa(i)), at, 1); err != nil {
					t.Error(err)
				}
			}
		}
		if err := app.Commit(); err != nil {
			t.Error(err)
		}
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(series / 2)
	written := map[string]int{}
	for round := range int64(rounds) {
		at := startMS + round*4*hourMS
		write(0, series, at, at+4*hourMS-1)
		write(series/2, series, at+hourMS) // the compaction has many series to collect
		stop := make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() {
			for _, i := range order[round*series/2/rounds : (round+1)*series/2/rounds] {
				select {
				case <-stop:
					return
				default:
				}
				var times []int64
				for k := range int64(late) {
					times = append(times, at+3*hourMS+k*1000)
				}
				write(i, i+1, times...)
				written[strconv.Itoa(i)] += late
			}
		})
		if err := db.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
		close(stop)
		writing.Wait()
	}
	q, err := s.Querier(0, startMS+100*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	set, missing, checked := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")), 0, 0
	for set.Next() {
		n := 0
		for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
			n++
		}
		if want := written[set.At().Labels().Get("i")]; want > 0 {
			checked++
			if n < want+2*rounds {
				missing++
			}
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	if missing > 0 || checked == 0 {
		t.Errorf("%d of %d series lack late samples", missing, checked)
	}
	if err := errors.Join(q.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// gateProbe is the handler behind the gate's. It notes whether commits wait after the head was truncated.
type gateProbe struct {
	slog.Handler
	gate   **lateGate
	closed *[]bool
}

func (p gateProbe) Enabled(context.Context, slog.Level) bool { return true }
func (p gateProbe) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p gateProbe) Handle(_ context.Context, r slog.Record) error {
	if r.Message == messageTruncated {
		*p.closed = append(*p.closed, waits(*p.gate))
	}
	return nil
}

// waits reports whether commits wait.
func waits(g *lateGate) bool {
	if !g.commits.TryRLock() {
		return true
	}
	g.commits.RUnlock()
	return false
}

// The senders were away for longer than a range. The database raises the head's minimum time after the message.
func TestLateGate_ClosesBeforeAGapOfTheHead(t *testing.T) {
	var gate *lateGate
	var closed []bool
	probe := gateProbe{slog.DiscardHandler, &gate, &closed}
	s, err := New(Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: time.Hour}, slog.New(probe), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gate = s.gate
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	db := s.db.Load()
	db.DisableCompactions()
	for _, at := range []int64{startMS, startMS + 10*hourMS} {
		if err := appendSeries(s, 1, 3, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(closed) != 1 || !closed[0] {
		t.Errorf("closed after the truncation: %v", closed)
	}
	gate.observe(messageTruncated, "truncateMemory")
	time.Sleep(gateDecision + time.Second)
	if !waits(gate) {
		t.Error("the gate opened, but the database does not go on with another range")
	}
	gate.observe(messageCollected, "")
	if err := appendSeries(s, 1, 3, startMS+13*hourMS+1); err != nil { // another range can be cut
		t.Fatal(err)
	}
	gate.observe(messageTruncated, "truncateMemory")
	first := gate.decideBy
	if gate.observe(messageTruncated, "truncateMemory"); !gate.decideBy.After(first) {
		t.Error("the decision about a second range is not later than that about the first")
	}
	for until := time.Now().Add(gateTimeout / 2); waits(gate); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the gate stays closed, but the database waits for appenders of another range")
		}
	}
}

// The library's source has the messages that the gate follows.
func TestLateGate_MessagesStandInTheDatabase(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := func(file string) string {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "tsdb", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, tt := range []struct{ file, text string }{
		{"head.go", `Info("` + messageTruncated + `", "caller", caller`},
		{"head.go", `return h.truncateSeriesAndChunkDiskMapper("truncateMemory")`},
		{"head.go", `Info("` + messageCheckpointDone + `"`},
		{filepath.Join("wlog", "checkpoint.go"), `Info("` + messageCheckpoint + `"`},
		{"db.go", `Info("` + messageCollected + `"`},
		{"db.go", `Error("` + messageFailed + `"`},
	} {
		if n := strings.Count(source(tt.file), tt.text); n != 1 {
			t.Errorf("%s has %s %d times, want 1", tt.file, tt.text, n)
		}
	}
}

func TestLateGate_ClosesOnlyBetweenItsMessages(t *testing.T) {
	s := newStore(t, Options{OutOfOrderWindow: time.Hour})
	logger := slog.New(gateHandler{slog.DiscardHandler, s.gate}).With("component", "tsdb")
	for _, step := range []struct {
		message, caller string
		closed          bool
	}{
		{messageTruncated, "truncateOOO", false},
		{messageTruncated, "truncateMemory", true},
		{messageCheckpoint, "", false},
		{messageCheckpointDone, "", true},
		{messageTruncated, "truncateMemory", true},
		{messageCollected, "", false},
		{messageCollected, "", false},
		{messageTruncated, "truncateMemory", true},
		{messageFailed, "", false},
	} {
		logger.Info(step.message, "caller", step.caller)
		if waits(s.gate) != step.closed {
			t.Errorf("after %q: closed %v", step.message, !step.closed)
		}
	}
	without := newStore(t, Options{})
	without.gate.observe(messageTruncated, "truncateMemory")
	if !without.gate.commits.TryRLock() {
		t.Error("closed without out-of-order samples")
	}
}

// Between Stage and Commit the database takes late samples already.
func TestLateGate_ClosesOnceAWindowIsStaged(t *testing.T) {
	s := newStore(t, Options{})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	section := sectionOf(t, "storage: {tsdb: {out_of_order_time_window: 10m}}")
	staged, err := s.Stage(&config.Config{StorageConfig: section})
	if err != nil {
		t.Fatal(err)
	}
	s.gate.observe(messageTruncated, "truncateMemory")
	if !waits(s.gate) {
		t.Error("commits do not wait")
	}
	if err := staged.Commit(); err != nil {
		t.Fatal(err)
	}
	s.gate.observe(messageCollected, "")
}
