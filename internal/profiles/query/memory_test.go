package query

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"

	"github.com/ferula-io/ferula/internal/profiles/store"
	instruments "github.com/ferula-io/ferula/metrics"
)

// inUse returns the line of a kind of memory in the metrics of a store.
func inUse(t *testing.T, set *instruments.Set, kind string) string {
	t.Helper()
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for line := range strings.Lines(page.String()) {
		if value, ok := strings.CutPrefix(line, `ferula_profiles_memory_bytes{kind="`+kind+`"} `); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no memory of %s in %s", kind, page.String())
	return ""
}

// Concurrent queries succeed if the memory is enough for one query, on the disk and in a bucket. With less memory they fail
// and release all memory.
func TestEngine_QueriesThatExceedTheMemoryFailAndReleaseIt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 17))
	far, dir, pushed := newFakeRemote(t, r, func(int) bool { return false })
	rows := naiveRows(t, pushed)
	for name, dir := range map[string]string{"disk": dir, "bucket": t.TempDir()} {
		failed, passed := 0, 0
		for memory := int64(1 << 8); memory < 64<<20; memory *= 8 {
			set := instruments.NewSet()
			s, err := store.New(store.Options{Dir: dir, Retention: -1, MemoryBytes: memory, Remote: map[bool]store.Remote{true: far}[name == "bucket"]}, quiet, set)
			if err == nil {
				err = s.Open()
			}
			must(t, err)
			e := New(Options{}, s)
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				req := randomSelect(r)
				req.Tenant = "t"
				result, err := e.SelectSeries(context.Background(), req)
				if err != nil {
					break
				}
				listed := len(result.Warnings) == 0
				result.Close()
				if listed {
					break
				}
			}
			for range 20 {
				req := randomSelect(r)
				req.Tenant = "t"
				result, err := e.SelectSeries(context.Background(), req)
				if err == nil && len(result.Warnings) > 0 {
					t.Fatal(result.Warnings)
				}
				if err == nil {
					if got, want := spell(result), naiveSelect(rows, req); got != want {
						t.Fatalf("%s: with %d bytes:\n%s\nwant\n%s", name, memory, got, want)
					}
					result.Close()
				}
				_, flameErr := e.MergeFlame(context.Background(), &profiles.MergeRequest{Tenant: "t", Type: req.Type, StartMS: req.StartMS, EndMS: req.EndMS})
				_, _, pprofErr := e.MergePprof(context.Background(), &profiles.MergeRequest{Tenant: "t", Type: req.Type, StartMS: req.StartMS, EndMS: req.EndMS})
				for _, err := range []error{err, flameErr, pprofErr} {
					switch {
					case err == nil:
						passed++
					case errors.Is(err, profiles.ErrLimit) && strings.Contains(err.Error(), "bytes"):
						failed++
					default:
						t.Fatal(err)
					}
				}
				if left := inUse(t, set, "queries"); left != "0" {
					t.Fatalf("%s: with %d bytes: %s bytes are still leased", name, memory, left)
				}
			}
			must(t, s.Close())
			if left := inUse(t, set, "symbols"); name == "disk" && left != "0" {
				t.Errorf("%s: %s bytes of symbols are counted after Close", name, left)
			}
		}
		if failed == 0 || passed == 0 {
			t.Errorf("%s: %d queries failed, %d did not", name, failed, passed)
		}
	}
}
