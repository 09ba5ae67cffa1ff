package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// sized is an extent of one part.
func sized(startMS, endMS, stepMS int64, stored int, writtenMS int64) extent {
	return extent{id: uint64(startMS)<<32 | uint64(endMS), startMS: startMS, endMS: endMS, stepMS: stepMS, writtenMS: writtenMS, parts: []partRef{{storedBytes: stored, rawBytes: 2 * stored}}}
}

func ranges(extents []extent) string {
	var names []string
	for _, e := range extents {
		names = append(names, fmt.Sprintf("%d-%d", e.startMS, e.endMS))
	}
	return strings.Join(names, " ")
}

func TestInsert_KeepsTheExtentsThatAreOfUse(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{ExtentsMax: 3, EntryBytesMax: 1 << 20})
	e := func(start, end int64) extent { return sized(start, end, 10, 1000, 5) }
	for _, tt := range []struct {
		name string
		old  []extent
		add  extent
		want string
	}{
		{"the first", nil, e(0, 100), "0-100"},
		{"next to another", []extent{e(200, 300)}, e(0, 100), "0-100 200-300"},
		{"overlapping", []extent{e(50, 150)}, e(0, 100), "0-100 50-150"},
		{"the same range", []extent{e(0, 100)}, e(0, 100), "0-100"},
		{"longer at the start", []extent{e(10, 100)}, e(0, 100), "0-100"},
		{"longer at the end", []extent{e(0, 90)}, e(0, 100), "0-100"},
		{"shorter at the start", []extent{e(0, 100)}, e(10, 100), ""},
		{"shorter at the end", []extent{e(0, 100)}, e(0, 90), ""},
		{"within another of another step", []extent{sized(0, 100, 5, 1000, 5)}, e(10, 90), "10-90"},
		{"of another step", []extent{sized(200, 300, 5, 1000, 5)}, e(0, 100), "0-100"},
		{"as large as an entry", []extent{e(200, 300)}, sized(0, 100, 10, 1<<20, 5), "0-100"},
		{"filling the entry", []extent{e(200, 300)}, sized(0, 100, 10, 1<<20-1000, 5), "0-100 200-300"},
		{"the oldest is dropped", []extent{sized(200, 300, 10, 1<<19, 7), sized(400, 500, 10, 1<<19, 6)}, e(0, 100), "0-100 200-300"},
		{"the first of equal age is dropped", []extent{sized(200, 300, 10, 1<<19, 6), sized(400, 500, 10, 1<<19, 6)}, e(0, 100), "0-100 400-500"},
		{"the shortest is dropped", []extent{e(200, 300), e(400, 490), e(600, 700)}, e(0, 100), "0-100 200-300 600-700"},
		{"as many as allowed", []extent{e(200, 300), e(400, 490)}, e(0, 100), "0-100 200-300 400-490"},
	} {
		got := ranges(c.insert(tt.old, tt.add))
		check(t, got == tt.want, "%s: %q, want %q", tt.name, got, tt.want)
	}
	check(t, c.extentsLimit() == 3, "without a merge: %d extents", c.extentsLimit())
	c.opts.Merge = concatenate
	check(t, c.extentsLimit() == 6, "with a merge: %d extents", c.extentsLimit())
	c.opts.Merge = nil
}

func TestMergeable_PicksNeighbours(t *testing.T) {
	const cheap, large = mergeCheapBytes, 1 << 20
	c := newCache(t, newFakeStore(), Options{ExtentsMax: 3, EntryBytesMax: 100 << 20, Merge: concatenate})
	e := func(number int64, stored int) extent { return sized(100*number, 100*number+90, 10, stored, 5) }
	for _, tt := range []struct {
		name       string
		extents    []extent
		first, end int
	}{
		{"none", nil, -1, -1},
		{"one", []extent{e(0, 1)}, -1, -1},
		{"two", []extent{e(0, 1), e(1, 1)}, 0, 2},
		{"not adjacent", []extent{e(0, 1), e(2, 1)}, -1, -1},
		{"the later two", []extent{e(0, 1), e(2, 1), e(3, 1)}, 1, 3},
		{"cheap", []extent{e(0, 1), e(1, cheap-1)}, 0, 2},
		{"not cheap", []extent{e(0, 1), e(1, cheap)}, -1, -1},
		{"of similar size", []extent{e(0, large), e(1, 4*large)}, 0, 2},
		{"not of similar size", []extent{e(0, large), e(1, 4*large+1)}, -1, -1},
		{"many", []extent{e(0, 1), e(1, large), e(3, large), e(5, large)}, 0, 2},
		{"the smallest", []extent{e(0, 5), e(1, 5), e(3, 2), e(4, 2), e(6, 3), e(7, 3)}, 2, 4},
		{"the first of the smallest", []extent{e(0, 2), e(1, 2), e(3, 2), e(4, 2)}, 0, 2},
		{"and those that follow", []extent{e(0, 2), e(1, 2), e(2, 4), e(3, 8), e(4, 17)}, 0, 4},
		{"as large as an entry", []extent{e(0, 50<<20), e(1, 50<<20)}, 0, 2},
		{"larger than an entry", []extent{e(0, 50<<20), e(1, 50<<20+1)}, -1, -1},
	} {
		first, end := c.mergeable(tt.extents)
		check(t, first == tt.first && end == tt.end, "%s: %d, %d, want %d, %d", tt.name, first, end, tt.first, tt.end)
	}
	for _, tt := range []struct {
		a, b extent
		want bool
	}{
		{sized(0, 90, 10, 1, 1), sized(100, 190, 10, 1, 1), true}, {sized(0, 90, 10, 1, 1), sized(101, 190, 10, 1, 1), false}, {sized(0, 90, 10, 1, 1), sized(91, 190, 10, 1, 1), true},
		{sized(0, 90, 10, 1, 1), sized(90, 190, 10, 1, 1), false}, {sized(0, 90, 10, 1, 1), sized(100, 190, 5, 1, 1), false}, {sized(0, 90, 0, 1, 1), sized(91, 190, 0, 1, 1), true},
		{sized(0, 90, 0, 1, 1), sized(92, 190, 0, 1, 1), false},
	} {
		check(t, adjacent(&tt.a, &tt.b) == tt.want, "%s: %v", ranges([]extent{tt.a, tt.b}), !tt.want)
	}
}

// idle is a compactor that does not run.
func idle(t *testing.T, now *time.Time) *compactor {
	c := newCache(t, newFakeStore(), Options{Now: func() time.Time { return *now }, DeleteAfter: time.Minute})
	return newCompactor(c)
}

func TestCompactor_ListsAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	k := idle(t, &now)
	for i := range mergesWaitingMax {
		k.mergeSoon(fmt.Sprint(i), "key")
	}
	check(t, len(k.merges) == mergesWaitingMax && k.cache.pending.n == mergesWaitingMax, "%d merges", len(k.merges))
	k.mergeSoon("more", "key")
	k.mergeSoon("0", "key")
	check(t, len(k.merges) == mergesWaitingMax && k.cache.pending.n == mergesWaitingMax, "%d merges, one more than allowed", len(k.merges))
	k.merges = k.merges[:1]
	k.mergeSoon("0", "key")
	check(t, len(k.merges) == 1, "an entry is merged twice")
	k.mergeSoon("0", "another key")
	check(t, len(k.merges) == 2, "another key of the same name is not merged")
	for i := range extentsToDeleteMax + 1 {
		k.deleteLater("base", uint64(i), 1)
	}
	check(t, len(k.extentsToDelete) == extentsToDeleteMax, "%d extents", len(k.extentsToDelete))
	k.stop()
	k.merges, k.extentsToDelete = nil, nil
	k.mergeSoon("late", "key")
	k.deleteLater("late", 1, 1)
	check(t, len(k.merges) == 0 && len(k.extentsToDelete) == 0, "work is added after the end")
	k.cache.pending = pending{}
}

func TestCompactor_NextWork(t *testing.T) {
	now := time.Unix(1000, 0)
	k := idle(t, &now)
	_, due, sleep := k.next()
	check(t, len(due) == 0 && sleep == time.Hour, "without work: %v, %s", due, sleep)
	k.deleteLater("a", 1, 1)
	now = now.Add(time.Second)
	k.deleteLater("b", 2, 3)
	k.mergeSoon("m", "key")
	merge, due, sleep := k.next()
	check(t, merge == entryName{"m", "key"} && len(due) == 0 && sleep == 0 && len(k.merges) == 0, "a merge is first: %v, %v, %s", merge, due, sleep)
	k.cache.pending.done()
	merge, due, sleep = k.next()
	check(t, merge == entryName{} && len(due) == 0 && sleep == 59*time.Second, "%v, %v, %s", merge, due, sleep)
	now = now.Add(59*time.Second - 1)
	_, due, sleep = k.next()
	check(t, len(due) == 0 && sleep == time.Millisecond, "just before: %v, %s", due, sleep)
	now = now.Add(1)
	_, due, sleep = k.next()
	check(t, len(due) == 1 && due[0].base == "a" && due[0].id == 1 && due[0].parts == 1 && sleep == time.Second, "the first is due: %v, %s", due, sleep)
	now = now.Add(time.Hour)
	_, due, sleep = k.next()
	check(t, len(due) == 1 && due[0].base == "b" && due[0].parts == 3 && sleep == time.Hour && len(k.extentsToDelete) == 0, "the second is due: %v, %s", due, sleep)
}

func TestBreaker_States(t *testing.T) {
	now := time.Unix(1000, 0)
	var changes []string
	b := newBreaker(2, time.Second, 3*time.Second, func() time.Time { return now }, func(open bool, err error) {
		changes = append(changes, fmt.Sprint(open, " ", err))
	})
	fault := errors.New("fault")
	expect := func(what string, allowed bool, log string) {
		t.Helper()
		check(t, b.allow() == allowed, "%s: allowed %v", what, !allowed)
		check(t, strings.Join(changes, ", ") == log, "%s: %q", what, changes)
	}
	b.failed(fault)
	expect("one failure", true, "")
	b.succeeded()
	b.failed(fault)
	expect("another after a success", true, "")
	b.failed(fault)
	expect("two in a row", false, "true fault")
	now = now.Add(time.Second - 1)
	expect("before the back-off is over", false, "true fault")
	b.failed(fault) // an operation that began before
	now = now.Add(1)
	expect("the probe", true, "true fault")
	expect("during the probe", false, "true fault")
	b.unknown()
	expect("the next probe", true, "true fault")
	b.failed(fault)
	now = now.Add(2*time.Second - 1)
	expect("the doubled back-off", false, "true fault")
	now = now.Add(1)
	expect("the probe after it", true, "true fault")
	b.failed(fault)
	now = now.Add(3*time.Second - 1)
	expect("the longest back-off", false, "true fault")
	now = now.Add(1)
	expect("the probe after the longest", true, "true fault")
	b.succeeded()
	expect("closed", true, "true fault, false <nil>")
	b.failed(fault)
	expect("one failure of the closed one", true, "true fault, false <nil>")
	b.failed(fault)
	expect("it opens again", false, "true fault, false <nil>, true fault")
	now = now.Add(time.Second)
	expect("after the first back-off again", true, "true fault, false <nil>, true fault")
}

func TestReason_OfEveryError(t *testing.T) {
	for want, errs := range map[string][]error{
		"unavailable": {ErrUnavailable}, "too-large": {ErrTooLarge}, "version": {errVersion}, "collision": {errCollision}, "corrupt": {errCorrupt}, "missing": {errMissing},
		"canceled": {context.Canceled}, "timeout": {context.DeadlineExceeded, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}}, "network": {&net.OpError{Op: "dial", Err: errors.New("refused")}},
		"other": {io.EOF, ErrGone},
	} {
		for _, err := range errs {
			check(t, reason(fmt.Errorf("wrapped: %w", err)) == want, "%v: %s, want %s", err, reason(err), want)
		}
	}
}

func TestGuard_CountsOperationsFailuresAndBytes(t *testing.T) {
	for name, store := range map[string]Store{"local": localFake{newFakeStore()}, "remote": newFakeStore()} {
		fake, ok := store.(*fakeStore)
		if !ok {
			fake = store.(localFake).fakeStore
		}
		set := instruments.NewSet()
		c, err := New(store, Options{Name: "n", BreakerFailures: 2}, quiet, set)
		check(t, err == nil, "%v", err)
		ctx := context.Background()
		g := &c.store
		check(t, g.set(ctx, "k", []byte("value"), 0) == nil, "set")
		v, err := g.get(ctx, "k")
		check(t, err == nil && string(v) == "value", "get: %q, %v", v, err)
		v, err = g.get(ctx, "missing")
		check(t, err == nil && v == nil, "get: %q, %v", v, err)
		has, err := g.hasAll(ctx, []string{"k"})
		check(t, err == nil && has, "has: %v, %v", has, err)
		has, err = g.hasAll(ctx, nil)
		check(t, err == nil && has, "has nothing: %v, %v", has, err)
		check(t, g.delete(ctx, "k") == nil, "delete")
		has, err = g.hasAll(ctx, []string{"k"})
		check(t, err == nil && !has, "has: %v, %v", has, err)
		fake.fail(broken)
		check(t, g.set(ctx, "k", []byte("value"), 0) != nil && g.delete(ctx, "k") != nil, "no error")
		_, err = g.get(ctx, "k")
		check(t, err != nil && errors.Is(err, ErrUnavailable) == (name == "remote"), "%s: %v", name, err)
		var page strings.Builder
		set.WritePrometheus(&page)
		blocked, other := 1, 0 // by the circuit breaker
		if name == "local" {
			blocked, other = 0, 1
		}
		lines := []string{
			`operations_total{cache="n",operation="get"} 3`, `operations_total{cache="n",operation="set"} 2`, `operations_total{cache="n",operation="delete"} 2`, `operations_total{cache="n",operation="has"} 2`,
			`operation_failures_total{cache="n",operation="set",reason="other"} 1`, `operation_failures_total{cache="n",operation="delete",reason="other"} 1`,
			`store_bytes_total{cache="n",direction="read"} 5`, `store_bytes_total{cache="n",direction="written"} 5`,
			`lookups_total{cache="n",result="hit"} 0`, `lookups_total{cache="n",result="partial"} 0`, `lookups_total{cache="n",result="miss"} 0`, fmt.Sprintf(`breaker_open{cache="n"} %d`, blocked),
		}
		if blocked > 0 {
			lines = append(lines, `operation_failures_total{cache="n",operation="get",reason="unavailable"} 1`, `operation_duration_seconds_count{cache="n",operation="get"} 2`)
		}
		if other > 0 {
			lines = append(lines, `operation_failures_total{cache="n",operation="get",reason="other"} 1`)
		}
		for _, line := range lines {
			check(t, strings.Contains(page.String(), metricPrefix+line+"\n"), "%s: no %s in\n%s", name, line, page.String())
		}
		for _, f := range set.Families() {
			check(t, f.Help != "", "%s has no help", f.Name)
		}
		fake.fail(nil)
		check(t, c.Close() == nil, "close")
	}
}

// localFake is a fakeStore in this process.
type localFake struct{ *fakeStore }

func (localFake) Local() bool { return true }

// An operation that fails at its deadline counts as a failure of the store only if it had enough time.
func TestGuard_OperationsWithLittleTimeDoNotOpenTheBreaker(t *testing.T) {
	for _, tt := range []struct {
		err   error
		grace time.Duration
		opens bool
	}{
		{errors.New("refused"), 0, true}, {ErrTooLarge, 0, false}, {ErrUnavailable, 0, false}, {context.DeadlineExceeded, 0, true}, {context.DeadlineExceeded, time.Hour, false},
	} {
		store := newFakeStore()
		c := newCache(t, store, Options{BreakerFailures: 1})
		c.store.grace = tt.grace
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		if !errors.Is(tt.err, context.DeadlineExceeded) {
			cancel()
			ctx, cancel = context.WithCancel(context.Background())
		}
		store.fail(func(context.Context, string, string) error { return tt.err })
		_, err := c.store.get(ctx, "k")
		check(t, errors.Is(err, tt.err), "%v", err)
		check(t, c.store.breaker.allow() != tt.opens, "%v, %s: opened %v", tt.err, tt.grace, !tt.opens)
		cancel()
		store.fail(nil)
	}
}

func TestDecodeManifest_LimitsOfFields(t *testing.T) {
	one := func(change func(*extent)) []extent {
		e := extent{id: 1, startMS: 0, endMS: 10, stepMS: 1, parts: []partRef{{30, 100}}}
		change(&e)
		return []extent{e}
	}
	many := func(n int) (extents []extent) {
		for range n {
			extents = append(extents, one(func(*extent) {})...)
		}
		return extents
	}
	for name, tt := range map[string]struct {
		extents []extent
		ok      bool
	}{
		"most extents":                {many(manifestExtents), true},
		"more extents":                {many(manifestExtents + 1), false},
		"no part":                     {one(func(e *extent) { e.parts = nil }), false},
		"largest part":                {one(func(e *extent) { e.parts[0].storedBytes = 1 << 30 }), true},
		"larger part":                 {one(func(e *extent) { e.parts[0].storedBytes = 1<<30 + 1 }), false},
		"longest response":            {one(func(e *extent) { e.parts[0].rawBytes = 1 << 40 }), true},
		"longer response":             {one(func(e *extent) { e.parts[0].rawBytes = 1<<40 + 1 }), false},
		"most parts":                  {one(func(e *extent) { e.parts = make([]partRef, manifestPartsMax) }), true},
		"more parts":                  {one(func(e *extent) { e.parts = make([]partRef, manifestPartsMax+1) }), false},
		"longest range":               {one(func(e *extent) { e.endMS = 1 << 62 }), true},
		"longer range":                {one(func(e *extent) { e.endMS = 1<<62 + 1 }), false},
		"range without an end":        {one(func(e *extent) { e.startMS, e.endMS = 1<<62, -1<<62 }), false},
		"one step":                    {one(func(e *extent) { e.endMS = 0 }), true},
		"no step":                     {one(func(e *extent) { e.stepMS = 0 }), true},
		"a negative step":             {one(func(e *extent) { e.stepMS = -1 }), false},
		"inline":                      {one(func(e *extent) { e.inline = make([]byte, 30) }), true},
		"inline, of another length":   {one(func(e *extent) { e.inline = make([]byte, 29) }), false},
		"inline, and a second part":   {one(func(e *extent) { e.inline, e.parts = make([]byte, 30), []partRef{{30, 1}, {30, 1}} }), false},
		"no extents":                  {nil, true},
		"an extent of a single byte":  {one(func(e *extent) { e.inline, e.parts[0].storedBytes = []byte{1}, 1 }), true},
		"two extents, the second bad": {append(many(1), one(func(e *extent) { e.parts = nil })...), false},
	} {
		got, err := decodeManifest(appendManifest(nil, "key", tt.extents), "key")
		check(t, (err == nil) == tt.ok && (err == nil || errors.Is(err, errCorrupt)) && (err != nil || len(got) == len(tt.extents)), "%s: %d extents, %v", name, len(got), err)
	}
	m := appendManifest(nil, "key", many(1))
	_, err := decodeManifest(reseal(append(m, 0)), "key")
	check(t, errors.Is(err, errCorrupt), "a byte at the end: %v", err)
}

func TestCutBlock_Lengths(t *testing.T) {
	block := func(raw uint64, method byte, length uint64, data int) []byte {
		b := binary.AppendUvarint(nil, raw)
		b = binary.AppendUvarint(append(b, method), length)
		return append(b, make([]byte, data)...)
	}
	for name, tt := range map[string]struct {
		src []byte
		ok  bool
	}{
		"whole": {block(5, 1, 3, 3), true}, "with more": {block(5, 1, 3, 9), true}, "cut": {block(5, 1, 3, 2), false}, "no data": {block(5, 1, 0, 0), true},
		"no response bytes": {block(0, 1, 3, 3), false}, "one": {block(1, 1, 3, 3), true}, "most": {block(blockBytesMax, 1, 3, 3), true}, "more": {block(blockBytesMax+1, 1, 3, 3), false},
		"nothing": {nil, false}, "a length only": {[]byte{5}, false}, "no length": {[]byte{5, 1}, false}, "half a length": {[]byte{5, 1, 0x80}, false},
	} {
		b, rest, err := cutBlock(tt.src)
		check(t, (err == nil) == tt.ok && (err == nil || errors.Is(err, errCorrupt)), "%s: %+v, %d, %v", name, b, len(rest), err)
	}
	b, rest, err := cutBlock(block(5, 1, 3, 9))
	check(t, err == nil && b.rawBytes == 5 && b.method == 1 && len(b.data) == 3 && len(rest) == 6, "%+v, %d, %v", b, len(rest), err)
	check(t, errors.Is(new(decoder).decode(make([]byte, 1), block9()), errCorrupt), "an unknown method")
}

func block9() block { return block{rawBytes: 1, method: 9, data: []byte{1}} }

// stored puts one extent of this part into a local store.
func stored(t *testing.T, c *Cache, blocks []byte, raw int) Extent {
	t.Helper()
	part := append(beginPart(nil), blocks...)
	sealPart(part, 77, 0)
	ctx := context.Background()
	base := storeKey("k")
	e := extent{id: 77, startMS: 0, endMS: 10, stepMS: 1, writtenMS: time.Now().UnixMilli(), parts: []partRef{{len(part), raw}}}
	check(t, c.store.set(ctx, partKey(base, 77, 0), part, 0) == nil && c.store.set(ctx, base, appendManifest(nil, "k", []extent{e}), 0) == nil, "set")
	found := c.Lookup(ctx, "k", 0, 10)
	check(t, len(found) == 1, "found %d", len(found))
	return found[0]
}

// The blocks of a part have as many response bytes as the manifest states.
func TestReader_LengthsOfBlocksAndManifestMustAgree(t *testing.T) {
	text := []byte("0123456789")
	blocks := new(encoder).appendBlock(nil, text, CodecNone)
	two := new(encoder).appendBlock(append([]byte(nil), blocks...), text, CodecNone)
	other := binary.AppendUvarint(nil, 10)
	other = append(binary.AppendUvarint(append(other, methodNone), 9), text[:9]...)
	for name, tt := range map[string]struct {
		blocks []byte
		raw    int
		ok     bool
	}{
		"equal": {blocks, 10, true}, "two blocks": {two, 20, true}, "short": {blocks, 11, false}, "long": {blocks, 9, false}, "one block too many": {two, 10, false}, "a block of another length": {other, 10, false},
	} {
		for _, copies := range []bool{false, true} {
			store := newFakeStore()
			c := newCache(t, store, Options{})
			r, err := stored(t, c, tt.blocks, tt.raw).Open(context.Background())
			check(t, err == nil, "%s: open: %v", name, err)
			var got strings.Builder
			if copies {
				_, err = io.Copy(&got, r)
			} else {
				var b []byte
				b, err = io.ReadAll(r)
				got.Write(b)
			}
			check(t, (err == nil) == tt.ok && (err == nil || errors.Is(err, ErrGone) && errors.Is(err, errCorrupt)), "%s: %q, %v", name, got.String(), err)
			check(t, r.Close() == nil, "close")
			flush(t, c)
			check(t, len(c.Lookup(context.Background(), "k", 0, 10)) == 1 == tt.ok, "%s: it is found again", name)
			n := uint64(0)
			if !tt.ok {
				n = 1
			}
			check(t, c.met.unused.of("corrupt").Get() == n, "%s: counted %d times", name, c.met.unused.of("corrupt").Get())
		}
	}
}

// failAfter fails once n bytes were written.
type failAfter struct{ n int }

func (f *failAfter) Write(p []byte) (int, error) {
	if len(p) > f.n {
		n := f.n
		f.n = 0
		return n, io.ErrShortWrite
	}
	f.n -= len(p)
	return len(p), nil
}

func TestReader_WriteToReturnsTheErrorOfTheWriter(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{PartBytes: 32 << 10})
	put(t, c, "k", 0, 100, 10, noise(300<<10))
	for _, n := range []int{0, 1000, 200 << 10} {
		r, err := c.Lookup(context.Background(), "k", 0, 100)[0].Open(context.Background())
		check(t, err == nil, "open: %v", err)
		written, err := r.(*Reader).WriteTo(&failAfter{n})
		check(t, errors.Is(err, io.ErrShortWrite) && written == int64(n), "%d bytes: %d, %v", n, written, err)
		rest, err := io.ReadAll(r)
		check(t, err == nil && len(rest) == 300<<10-n, "the rest: %d bytes, %v", len(rest), err)
		check(t, r.Close() == nil, "close")
	}
}

func TestWriter_ResultsAreCounted(t *testing.T) {
	for want, tt := range map[string]struct {
		before func(context.Context, string, string) error
		write  func(c *Cache)
	}{
		resultStored:  {nil, func(c *Cache) { put(t, c, "k", 0, 10, 10, []byte("x")) }},
		resultStore:   {broken, func(c *Cache) { put(t, c, "k", 0, 10, 10, []byte("x")) }},
		resultAborted: {nil, func(c *Cache) { c.Writer("k", 0, 10, 10).Commit() }},
		resultTooLarge: {func(_ context.Context, op, _ string) error {
			if op == opSet {
				return ErrTooLarge
			}
			return nil
		}, func(c *Cache) { put(t, c, "k", 0, 10, 10, noise(100<<10)) }},
		resultTooLarge + " range": {nil, func(c *Cache) { put(t, c, "k", 11, 10, 10, []byte("x")) }},
		resultTooLarge + " step":  {nil, func(c *Cache) { put(t, c, "k", 0, 10, -1, []byte("x")) }},
		resultTooLarge + " entry": {nil, func(c *Cache) { put(t, c, "k", 0, 10, 1, noise(1<<20)) }},
		resultStored + " no step": {nil, func(c *Cache) { put(t, c, "k", 10, 10, 0, []byte("x")) }},
		resultOutdated: {nil, func(c *Cache) {
			put(t, c, "k", 0, 10, 1, []byte("x"))
			c.met.extents.of(resultStored).Set(0)
			put(t, c, "k", 1, 9, 1, []byte("x"))
		}},
		resultAborted + " by its caller": {nil, func(c *Cache) {
			w := c.Writer("k", 0, 10, 1)
			_, _ = w.Write(noise(100 << 10))
			w.Abort()
			w.Abort()
			w.Commit()
		}},
	} {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, EntryBytesMax: 500_000})
		store.fail(tt.before)
		tt.write(c)
		flush(t, c)
		store.fail(nil)
		result, _, _ := strings.Cut(want, " ")
		for _, r := range []string{resultStored, resultAborted, resultSlow, resultQueueFull, resultTooLarge, resultStore, resultOutdated} {
			n := uint64(0)
			if r == result {
				n = 1
			}
			check(t, results(c, r) == n, "%s: %s is counted %d times", want, r, results(c, r))
		}
		check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "%s: bytes are still in flight", want)
		c.inFlight.Release(c.opts.InFlightBytesMax)
	}
}

func TestMemory_ShardsHoldSeveralParts(t *testing.T) {
	for _, tt := range []struct {
		opts     MemoryOptions
		shards   int
		bytesMax int64
		itemsMax int
	}{
		{MemoryOptions{}, 16, 16 << 20, 0}, {MemoryOptions{BytesMax: 1 << 40}, 16, 1 << 36, 0}, {MemoryOptions{BytesMax: 64 << 20}, 8, 8 << 20, 0}, {MemoryOptions{BytesMax: 64<<20 - 1}, 4, (64<<20 - 1) / 4, 0},
		{MemoryOptions{BytesMax: 8 << 20}, 1, 8 << 20, 0}, {MemoryOptions{BytesMax: 16 << 20}, 2, 8 << 20, 0}, {MemoryOptions{BytesMax: 1000}, 1, 1000, 0},
		{MemoryOptions{ItemsMax: 1}, 1, 256 << 20, 1}, {MemoryOptions{ItemsMax: 255}, 1, 256 << 20, 255}, {MemoryOptions{ItemsMax: 256}, 2, 128 << 20, 128}, {MemoryOptions{ItemsMax: 1 << 30}, 16, 16 << 20, 1 << 26},
	} {
		m := newMemory(t, tt.opts)
		s := &m.shards[0]
		check(t, len(m.shards) == tt.shards && s.bytesMax == tt.bytesMax && s.itemsMax == tt.itemsMax, "%+v: %d shards of %d bytes and %d items", tt.opts, len(m.shards), s.bytesMax, s.itemsMax)
	}
	for _, bad := range []MemoryOptions{{BytesMax: -1}, {ItemsMax: -1}} {
		_, err := NewMemory(bad, nil)
		check(t, err != nil, "%+v is accepted", bad)
	}
}

func TestMemory_CountsAndMarks(t *testing.T) {
	ctx := context.Background()
	set := instruments.NewSet()
	now := time.Unix(1000, 0)
	m, err := NewMemory(MemoryOptions{BytesMax: 1000, Name: "n", Now: func() time.Time { return now }}, set)
	check(t, err == nil, "%v", err)
	fits := make([]byte, 1000-memoryItemBytes-1)
	check(t, m.Set(ctx, "k", fits, 0) == nil, "a value as large as the store is refused")
	check(t, errors.Is(m.Set(ctx, "k2", fits, 0), ErrTooLarge), "a larger one is accepted")
	check(t, m.Delete(ctx, "k") == nil && m.Delete(ctx, "k") == nil && m.Bytes() == 0, "%d bytes are left", m.Bytes())
	check(t, m.Set(ctx, "k", []byte("1"), time.Second) == nil, "set")
	now = now.Add(time.Second)
	_, ok, _ := m.Get(ctx, "k")
	check(t, !ok && m.Bytes() == 0, "it is not expired")
	check(t, m.Set(ctx, "k", []byte("1"), 0) == nil && !m.shards[0].items["k"].used.Load(), "a new value is marked")
	_, _, _ = m.Get(ctx, "k")
	check(t, m.shards[0].items["k"].used.Load(), "a value that was read is not marked")
	check(t, m.Set(ctx, "k", []byte("2"), 0) == nil && m.shards[0].items["k"].used.Load(), "a value that replaces it is not marked")
	m.check(t)
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{`memory_expired_total{cache="n"} 1`, `memory_rejected_total{cache="n"} 1`, `memory_evicted_total{cache="n"} 0`, `memory_items{cache="n"} 1`} {
		check(t, strings.Contains(page.String(), metricPrefix+line+"\n"), "no %s in\n%s", line, page.String())
	}
	for _, f := range set.Families() {
		check(t, f.Help != "", "%s has no help", f.Name)
	}
	check(t, m.Close() == nil, "close")
	has, err := m.HasAll(ctx, []string{"k"})
	check(t, err == nil && !has, "%v, %v", has, err)
}

func TestParseConfig_SizesOfParts(t *testing.T) {
	for size, want := range map[string][2]int64{"10KB": {4096, 4096}, "100KB": {12_500, 25_000}, "40MB": {512 << 10, 10_000_000}, "1MiB": {131_072, 262_144}} {
		c, _, err := ParseConfig(fmt.Appendf(nil, "type: IN-MEMORY\nconfig: {max_size: %s}", size))
		check(t, err == nil && int64(c.PartBytes) == want[0] && c.EntryBytesMax == want[1], "%s: parts of %d bytes, entries of %d, %v", size, c.PartBytes, c.EntryBytesMax, err)
	}
	for size, want := range map[string]int{"4608": partBytesMin, "4607": 0, "1MiB": 512 << 10, "513KiB": 512 << 10, "512KiB": 512<<10 - 512} {
		c, _, err := ParseConfig(fmt.Appendf(nil, "type: MEMCACHED\nconfig: {addresses: [a], max_item_size: %s}", size))
		check(t, c.PartBytes == want && (err == nil) == (want > 0), "%s: parts of %d bytes, %v", size, c.PartBytes, err)
	}
	_, _, err := ParseConfig([]byte("type: IN-MEMORY\nconfig: {max_size_items: -1}"))
	check(t, err != nil, "negative items")
	_, _, err = ParseConfig([]byte("type: IN-MEMORY\nconfig: {max_size_items: 0, validity: 0s}"))
	check(t, err == nil, "%v", err)
	for key, want := range map[string]int{"max_get_multi_concurrency: 7": 7, "pool_size: 8, max_get_multi_concurrency: 7": 8} {
		c, _, err := ParseConfig([]byte("type: REDIS\nconfig: {addr: a, " + key + "}"))
		check(t, err == nil && c.Redis.ConnectionsMax == want, "%s: %d connections, %v", key, c.Redis.ConnectionsMax, err)
	}
}

func TestNewMemcached_RefusesNegativeLimits(t *testing.T) {
	for name, opts := range map[string]MemcachedOptions{
		"timeout": {Timeout: -1}, "interval": {UpdateInterval: -1}, "connections": {IdleConnectionsMax: -1}, "operations": {OperationsMax: -1}, "item": {ItemBytesMax: -1},
	} {
		opts.Addresses = []string{"127.0.0.1:1"}
		_, err := NewMemcached(opts, quiet)
		check(t, err != nil, "%s", name)
	}
	for name, opts := range map[string]RedisOptions{"address": {}, "connections": {ConnectionsMax: -1}, "idle": {IdleConnectionsMin: -1}, "database": {Database: -1}} {
		if name != "address" {
			opts.Address = "127.0.0.1:1"
		}
		_, err := NewRedis(opts, quiet)
		check(t, err != nil, "%s", name)
	}
}

func TestMemcached_LargestItem(t *testing.T) {
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"127.0.0.1:1"}, ItemBytesMax: 1000}, quiet)
	check(t, err == nil, "%v", err)
	defer m.Close()
	for n, want := range map[int]bool{1000 - itemOverheadBytes - 3: false, 1000 - itemOverheadBytes - 2: true} {
		err := m.Set(context.Background(), "key", make([]byte, n), 0)
		check(t, err != nil && errors.Is(err, ErrTooLarge) == want, "%d bytes: %v", n, err)
	}
}
