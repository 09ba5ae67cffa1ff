package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// listSource is a source of series with these values of the label a, each with a chunk of its own.
type listSource struct {
	values   []string
	fails    error // after the last series; nil: io.EOF
	closeErr error
	looks    bool // ahead is known

	at     int // number of calls of next
	closes int
}

func (s *listSource) next() error {
	if s.at == len(s.values) {
		if s.fails != nil {
			return s.fails
		}
		return io.EOF
	}
	s.at++
	return nil
}

func (s *listSource) Labels() []byte { return labelenc.AppendLabel(nil, "a", s.values[s.at-1]) }

func (s *listSource) Chunks() []series.Chunk {
	n := int64(s.values[s.at-1][0])
	return []series.Chunk{{MinMS: n, MaxMS: n + 1, Encoding: chunkenc.EncXOR, Data: []byte(s.values[s.at-1])}}
}

func (s *listSource) ahead() []byte {
	if !s.looks || s.at == len(s.values) {
		return nil
	}
	return labelenc.AppendLabel(nil, "a", s.values[s.at])
}

func (s *listSource) close() error {
	s.closes++
	return s.closeErr
}

// drain returns the values of a set's series and checks their chunks.
func drain(t *testing.T, set series.Set) string {
	t.Helper()
	var values []string
	for set.Next() {
		var value string
		for v := byte('a'); v <= 'z' && value == ""; v++ {
			if bytes.Equal(set.Labels(), labelenc.AppendLabel(nil, "a", string(v))) {
				value = string(v)
			}
		}
		if chunks := set.Chunks(); len(chunks) != 1 || string(chunks[0].Data) != value || chunks[0].MinMS != int64(value[0]) || chunks[0].MaxMS != int64(value[0])+1 || chunks[0].Encoding != chunkenc.EncXOR {
			t.Errorf("series %s has %+v", value, chunks)
		}
		values = append(values, value)
	}
	return strings.Join(values, "")
}

func setOf(from *listSource, windowBytes, holdBytesMax int) *orderedSet {
	return &orderedSet{flag: " (--flag)", open: func() (source, error) { return from, nil }, windowBytes: windowBytes, holdBytesMax: holdBytesMax}
}

var letters = []string{"a", "b", "c", "d", "e"}

func reversed() []string {
	all := slices.Clone(letters)
	slices.Reverse(all)
	return all
}

func TestOrderedSet_ClosesItsSourceOnceAndReturnsItsErrors(t *testing.T) {
	broken, unclosed := errors.New("broken"), errors.New("not closed")
	for name, c := range map[string]struct {
		from *listSource
		want error
	}{
		"good": {&listSource{values: letters}, nil}, "broken": {&listSource{values: letters, fails: broken}, broken},
		"not closed": {&listSource{values: letters, closeErr: unclosed}, unclosed}, "broken and not closed": {&listSource{values: letters, fails: broken, closeErr: unclosed}, broken},
	} {
		set := setOf(c.from, 0, 0)
		if got := drain(t, set); got != "abcde" || !errors.Is(set.Err(), c.want) || c.want == nil && set.Err() != nil {
			t.Errorf("%s: %s, %v, want %v", name, got, set.Err(), c.want)
		}
		if set.Next() || set.close() != nil || c.from.closes != 1 {
			t.Errorf("%s: it is closed %d times", name, c.from.closes)
		}
	}
	set := &orderedSet{open: func() (source, error) { return nil, broken }}
	if set.Next() || !errors.Is(set.Err(), broken) {
		t.Errorf("a source that does not open: %v", set.Err())
	}
	from := &listSource{values: letters}
	set = setOf(from, 1<<20, 1<<20)
	if !set.Next() {
		t.Fatal(set.Err())
	}
	if err := set.close(); err != nil || set.Next() || !errors.Is(set.Err(), errClosed) || from.closes != 1 || set.bytes != 0 || len(set.buffered) != 0 || set.Ahead() != nil {
		t.Errorf("closed early: %v, %v, %d times", err, set.Err(), from.closes)
	}
	if set := setOf(from, 0, 0); set.close() != nil || set.Next() || from.closes != 1 {
		t.Error("a set that was closed before it was read opens its source")
	}
}

func TestOrderedSet_WindowAndLimitAreExact(t *testing.T) {
	one := &listSource{values: []string{"e"}, at: 1}
	var h bufferedSeries
	h.copy(one.Labels(), one.Chunks())
	held := h.bytes()
	for name, c := range map[string]struct {
		values       []string
		looks        bool
		window, hold int
		want         string
		err          error
	}{
		"sorted, no window":              {letters, false, 0, 0, "abcde", nil},
		"two in the wrong order fit":     {[]string{"b", "a"}, false, size(one), size(one), "ab", nil},
		"a byte less":                    {[]string{"b", "a"}, false, size(one) - 1, size(one), "b", ErrLimit},
		"all fit":                        {reversed(), false, 1 << 20, 1 << 20, "abcde", nil},
		"what follows is known":          {[]string{"b", "a", "d", "c"}, true, 0, held, "abcd", nil},
		"held up to the limit":           {reversed(), true, 0, 3 * held, "abcde", nil},
		"a byte beyond the limit":        {reversed(), true, 0, 3*held - 1, "", ErrLimit},
		"twice":                          {[]string{"a", "b", "b"}, false, 0, 0, "ab", ErrCorrupt},
		"twice, sorted in the window":    {[]string{"b", "a", "b"}, false, 1 << 20, 1 << 20, "ab", ErrCorrupt},
		"smaller than the series before": {[]string{"b", "c", "a"}, false, 0, 0, "bc", ErrLimit},
	} {
		set := setOf(&listSource{values: c.values, looks: c.looks}, c.window, c.hold)
		got := drain(t, set)
		if got != c.want || !errors.Is(set.Err(), c.err) || c.err == nil && set.Err() != nil {
			t.Errorf("%s: %s, %v, want %s, %v", name, got, set.Err(), c.want, c.err)
		}
		if errors.Is(c.err, ErrLimit) && !strings.Contains(set.Err().Error(), fmt.Sprintf("need more than %d bytes to sort, the limit is %d (--flag)", c.window, c.hold)) {
			t.Errorf("%s: %v", name, set.Err())
		}
	}
	set := setOf(&listSource{values: []string{"c", "a", "b", "a"}}, 0, 0)
	if set.unordered = true; drain(t, set) != "caba" || set.Err() != nil {
		t.Errorf("unordered: %v", set.Err())
	}
	if got := labelenc.Text([]byte{200}); got != `"\xc8"` {
		t.Errorf("labels that cannot be decoded: %s", got)
	}
}

func TestStallGuard_CancelsWithItsOwnError(t *testing.T) {
	ctx, cancel, guard := withStallGuard(t.Context(), 0)
	guard.start()
	guard.stop()
	if cancel(); guard.timer != nil || !errors.Is(ctx.Err(), context.Canceled) || errors.Is(context.Cause(ctx), ErrStalled) {
		t.Errorf("no limit: %v", context.Cause(ctx))
	}
	ctx, cancel, _ = withStallGuard(t.Context(), time.Nanosecond)
	<-ctx.Done()
	cancel()
	other := errors.New("other")
	if err := stalled(ctx, other); !errors.Is(err, ErrStalled) || err.Error() != "remote read server sends nothing for 1ns" {
		t.Errorf("stalled: %v", err)
	}
	if err := stalled(ctx, nil); err != nil {
		t.Errorf("no error: %v", err)
	}
	ctx, cancel, guard = withStallGuard(t.Context(), time.Hour)
	if err := stalled(ctx, other); !errors.Is(err, other) {
		t.Errorf("another error: %v", err)
	}
	if cancel(); guard.timer.Stop() || !errors.Is(stalled(ctx, other), other) {
		t.Error("the timer runs after the request")
	}
}

// A querier keeps its sets until it is closed. Of several responses, those that were read must not stay in memory.
func TestOrderedSet_ReadToItsEnd_ReleasesTheResponse(t *testing.T) {
	var response weak.Pointer[listSource]
	set := &orderedSet{open: func() (source, error) {
		from := &listSource{values: letters}
		response = weak.Make(from)
		return from, nil
	}}
	if got := drain(t, set); got != "abcde" || set.Err() != nil {
		t.Fatal(got, set.Err())
	}
	runtime.GC()
	if response.Value() != nil {
		t.Error("the set still has the response")
	}
	if err := set.close(); err != nil || set.Next() || set.Ahead() != nil {
		t.Error(err)
	}
}
