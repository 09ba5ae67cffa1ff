package cache

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func TestExtent_BoundsAreThoseToUse(t *testing.T) {
	start, end := Extent{StartMS: 1, EndMS: 2, StoredStartMS: 0, StoredEndMS: 9}.Bounds()
	check(t, start == 1 && end == 2, "%d to %d", start, end)
}

func TestHeldBudget_FaultsOfTheFile(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{SpillDir: t.TempDir(), PartBytes: 5000, InlineBytes: 1, HeldBytesMax: 1000})
	h, err := c.spill(100, 1)
	check(t, err == nil && h.spilled() && h.write(0, 5, []byte("abc")) == nil, "spill: %v", err)
	for _, scratch := range [][]byte{nil, make([]byte, 2), make([]byte, 3), make([]byte, 9)} {
		got, err := h.read(0, scratch)
		check(t, err == nil && string(got) == "abc", "%q, %v", got, err)
	}
	check(t, h.file.Close() == nil, "close")
	err = h.write(0, 0, []byte("abc"))
	check(t, errors.Is(err, errNoSpace), "write: %v", err)
	_, err = h.read(0, nil)
	check(t, errors.Is(err, os.ErrClosed), "read: %v", err)
	h.release()
	h.release()
	check(t, c.spilled.TryAcquire(c.opts.SpilledBytesMax), "something is still held")
	c.spilled.Release(c.opts.SpilledBytesMax)

	put(t, c, "k", 0, 10, 10, noise(20_000))
	r, err := c.Lookup(context.Background(), "k", 0, 10)[0].Open(context.Background())
	check(t, err == nil && r.(*Reader).held.spilled(), "open: %v", err)
	check(t, r.(*Reader).held.file.Close() == nil, "close")
	_, err = io.ReadAll(r)
	check(t, errors.Is(err, ErrGone) && errors.Is(err, os.ErrClosed), "read: %v", err)
	check(t, r.Close() == nil, "close")
}

func TestMerge_ErrorsOfTheManifestAndOfParts(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{Merge: func(context.Context, io.Writer, []Source) error { return errors.New("must not run") }})
	name := entryName{storeKey("k"), "k"}
	c.compactor.merge(name) // there is nothing to merge
	check(t, c.met.merges.of("other").Get() == 0 && c.met.merges.of("merged").Get() == 0, "a merge is counted")
	store.fail(broken)
	c.compactor.merge(name)
	check(t, c.met.merges.of("other").Get() == 1, "%d failures", c.met.merges.of("other").Get())
	store.fail(nil)
	err := c.mergeExtents(context.Background(), name, []extent{{id: 1, parts: []partRef{{5, 3}}, inline: []byte("wrong")}})
	check(t, errors.Is(err, errCorrupt), "inline: %v", err)
	flush(t, c)
	check(t, results(c, resultAborted) == 1 && c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "the writer was not ended")
	c.inFlight.Release(c.opts.InFlightBytesMax)
}

func TestCompactor_MergesLeftAtItsEndAreNotPending(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{})
	k := newCompactor(c)
	for _, key := range []string{"a", "b", "a"} {
		k.mergeSoon(storeKey(key), key)
	}
	check(t, len(k.merges) == 2 && c.pending.n == 2, "%d merges, %d pending", len(k.merges), c.pending.n)
	k.stop()
	k.mergeSoon(storeKey("c"), "c")
	k.deleteLater("base", 1, 1)
	check(t, len(k.merges) == 2 && len(k.extentsToDelete) == 0, "work is taken after the end")
	k.run()
	check(t, len(k.merges) == 0 && c.pending.n == 0, "%d merges, %d pending", len(k.merges), c.pending.n)
}

func TestReader_CloseEndsTheFetchAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(hang)
		c := newCache(t, store, Options{})
		e := Extent{cache: c, base: "base", key: "k", ext: &extent{id: 1, parts: make([]partRef, 2)}, parts: make([][]byte, 2)}
		r := newReader(context.Background(), &e)
		synctest.Wait()
		check(t, store.count(opGet) == 1 && r.wouldWait(), "%d fetches", store.count(opGet))
		d := took(func() { check(t, r.Close() == nil && r.Close() == nil, "close") })
		check(t, d == 0 && r.ahead == nil, "took %s", d)
		_, err := r.Read(make([]byte, 1))
		check(t, errors.Is(err, os.ErrClosed), "read: %v", err)
	})
}

// damagedExtent has one part with a valid checksum and a block that cannot be decoded.
func damagedExtent(c *Cache) *Extent {
	garbage := append(binary.AppendUvarint(nil, 10), 0xFF, 0xFF, 0xFF)
	part := binary.AppendUvarint(beginPart(nil), 10)
	part = append(binary.AppendUvarint(append(part, methodS2), uint64(len(garbage))), garbage...)
	sealPart(part, 1, 0)
	e := &extent{id: 1, parts: []partRef{{len(part), 10}}}
	blocks, _ := openPart(part, 1, 0, len(part))
	return &Extent{cache: c, base: "base", key: "k", ext: e, parts: [][]byte{blocks}}
}

func TestReader_BlockThatCannotBeDecodedIsGone(t *testing.T) {
	for name, read := range map[string]func(r *Reader) error{
		"into a large buffer": func(r *Reader) error { _, err := r.Read(make([]byte, 100)); return err },
		"into a small buffer": func(r *Reader) error { _, err := r.Read(make([]byte, 5)); return err },
		"to a writer":         func(r *Reader) error { _, err := r.WriteTo(io.Discard); return err },
	} {
		c := newCache(t, newFakeStore(), Options{})
		r := newReader(context.Background(), damagedExtent(c))
		for range 2 {
			err := read(r)
			check(t, errors.Is(err, ErrGone) && errors.Is(err, errCorrupt), "%s: %v", name, err)
		}
		check(t, c.met.unused.of("corrupt").Get() == 1, "%s: counted %d times", name, c.met.unused.of("corrupt").Get())
		check(t, r.Close() == nil, "close")
	}
}

func TestWriter_AcquireWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, newFakeStore(), Options{WriterWait: 50 * time.Millisecond})
		all := c.opts.InFlightBytesMax
		w := c.Writer("k", 0, 10, 10)
		check(t, w.acquire(all) && w.wait == 50*time.Millisecond, "nothing was in flight")
		time.AfterFunc(20*time.Millisecond, func() { c.inFlight.Release(all) })
		check(t, w.acquire(all) && w.wait == 30*time.Millisecond && !w.aborted(), "%s are left", w.wait)
		d := took(func() { check(t, !w.acquire(1), "there is space") })
		check(t, d == 30*time.Millisecond && w.wait == 0 && *w.abortReason.Load() == resultSlow, "took %s, %s are left", d, w.wait)
		d = took(func() { check(t, !w.acquire(1), "there is space") })
		check(t, d == 0, "took %s more", d)
		w.wait = time.Hour
		d = took(func() { check(t, !w.acquire(all+1), "more than there is") })
		check(t, d == 0, "waited %s for more than there is", d)
		w.Abort()
		c.inFlight.Release(all)
	})
}

func TestMemcached_UsesTLS(t *testing.T) {
	first := make(chan byte, 10)
	address := listen(t, func(conn net.Conn) {
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err == nil {
			first <- b[0]
		}
	})
	for want, config := range map[byte]*tls.Config{22: {InsecureSkipVerify: true}, 'g': nil} { // 22 is a handshake
		m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, TLS: config, Timeout: 10 * time.Second}, quiet)
		check(t, err == nil, "new: %v", err)
		_, _, err = m.Get(context.Background(), "k")
		check(t, err != nil && <-first == want, "%v", err)
		check(t, m.Close() == nil, "close")
	}
}

func TestMemcached_OperationsReleaseTheirPlace(t *testing.T) {
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"127.0.0.1:1"}, OperationsMax: 1, ServerFailures: 3, ServerBackoff: time.Nanosecond}, quiet)
	check(t, err == nil, "new: %v", err)
	ctx := context.Background()
	fails := func(*memcache.Client) ([]byte, error) { panic("impossible size") }
	for range 4 { // the last one is a probe
		_, err = m.do(ctx, "k", fails)
		check(t, err != nil && strings.Contains(err.Error(), "memcached: client: impossible size"), "panic: %v", err)
		time.Sleep(time.Microsecond)
	}
	m.closed = true
	for range 2 {
		_, err = m.do(ctx, "k", fails)
		check(t, errors.Is(err, ErrUnavailable) && len(m.slots) == 0 && !m.servers[0].breaker.probing, "closed: %v, %d slots", err, len(m.slots))
	}
	m.closed = false
	m.slots <- struct{}{}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.do(ended, "k", fails)
	check(t, errors.Is(err, context.Canceled) && !m.servers[0].breaker.probing, "full: %v", err)
	<-m.slots
	value, err := m.do(ctx, "k", func(*memcache.Client) ([]byte, error) { return []byte("v"), nil })
	check(t, string(value) == "v" && err == nil, "%q, %v", value, err)
	check(t, m.Close() == nil, "close")
}

func TestPack_LastTimesOfARun(t *testing.T) {
	text := []byte("x" + strings.Repeat(`[999999999999.999,"1"],[999999999999.999,"1"],`, 20))
	var p packer
	packed := p.appendPacked(nil, text)
	got := make([]byte, len(text))
	check(t, new(unpacker).join(got, packed) == nil && bytes.Equal(got, text), "other bytes: %s", got)
	block := func(headers, values []byte) []byte {
		b := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(headers))), uint64(len(values)))
		return appendS2(append(append(b, headers...), values...), nil)
	}
	header := func(samples uint64, first int64, step uint64) []byte {
		return binary.AppendUvarint(binary.AppendVarint(binary.AppendUvarint([]byte{0}, samples), first), step)
	}
	const one = `[999999999999.999,"1"]`
	for name, test := range map[string]struct {
		headers, values []byte
		length          int
		ok              bool
	}{
		"one sample":           {header(1, timeLimitMS-1, 1), []byte{1, 7}, len(one), true},
		"a time at the limit":  {header(2, timeLimitMS-1, 1), []byte{1, 7, 0}, 2*len(one) + 1, false},
		"no previous value":    {header(1, timeLimitMS-1, 1), []byte{0}, len(one), false},
		"a header cut short":   {[]byte{0x80}, nil, len(one), false},
		"no step":              {header(1, timeLimitMS-1, 0), []byte{1, 7}, len(one), false},
		"no samples":           {header(0, timeLimitMS-1, 1), []byte{1, 7}, len(one), false},
		"one character more":   {header(1, timeLimitMS-1, 1), []byte{1, 7}, len(one) + 1, false},
		"one value more":       {header(1, timeLimitMS-1, 1), []byte{1, 7, 0}, len(one), false},
		"a value of 33":        {header(1, timeLimitMS-1, 1), append([]byte{33}, make([]byte, 40)...), 200, false},
		"unchanged of nothing": {header(1, timeLimitMS-1, 1), append([]byte{0x80}, make([]byte, 40)...), 200, false},
	} {
		got := make([]byte, test.length)
		err := new(unpacker).join(got, block(test.headers, test.values))
		check(t, (err == nil) == test.ok && (err == nil || errors.Is(err, errCorrupt)) && (!test.ok || string(got) == one), "%s: %q, %v", name, got, err)
	}
}
