package exposition

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

func TestFilled_EveryKindIsEqual(t *testing.T) {
	for _, k := range kinds {
		all, err := filled(k.name, func(l library) { k.make(l) })
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := floorOf(page(all[2])); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
	}
	if _, err := filled("mixed", func(l library) { mixed(l, 200) }); err != nil {
		t.Error(err)
	}
}

func TestManyRangesSides_HaveManyRanges(t *testing.T) {
	sides, err := manyRangesSides("many")
	if err != nil || len(sides) != 3 {
		t.Fatalf("%d sides, %v", len(sides), err)
	}
	l := newFerula()
	fillRanges(l)
	if n := lines(page(l)); n < 40 {
		t.Errorf("%d lines", n)
	}
}

// With level 6 the compressed page of ferula has the text that it has with its own level.
func TestGzip6_IsThePage(t *testing.T) {
	l := newFerula()
	mixed(l, 200)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	l.gzip6().ServeHTTP(w, r)
	zr, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zr)
	if err != nil || !bytes.Equal(text, page(l)) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func TestFilled_UnequalPagesAreErrors(t *testing.T) {
	made := 0
	_, err := filled("x", func(l library) {
		made++
		c := l.counter("c_total")
		for range made {
			c.Inc()
		}
	})
	if !errors.Is(err, area.ErrUnequal) {
		t.Errorf("got %v, want ErrUnequal", err)
	}
	if _, err = filled("x", func(library) {}); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
}

func TestAllocated_CountsAllocations(t *testing.T) {
	var kept []byte
	count, bytes := allocated(func(n int) {
		for range n {
			kept = make([]byte, 1<<10)
		}
	})
	if count != 1 || bytes != 1<<10 || len(kept) == 0 {
		t.Errorf("%v allocations of %v bytes", count, bytes)
	}
}

func TestMix_PagesHaveTheirSharesAndStayEqual(t *testing.T) {
	for _, m := range []mix{plainMix, liveMix} {
		var all [3]library
		for i, maker := range makers {
			all[i] = maker.make()
			repeated(fills, m.fill(all[i], 1000))
		}
		if err := samePages(m.name, all); err != nil {
			t.Error(err)
		}
		for prefix, share := range map[string]float64{"p_": m.buckets, "s": m.quantilers} {
			n := 0
			for line := range strings.Lines(string(page(all[2]))) {
				if strings.HasPrefix(line, prefix) {
					n++
				}
			}
			if got := float64(n) / 1000; got > share || got < share-0.02 {
				t.Errorf("%s: %.3f of the lines begin with %q, want about %.3f", m.name, got, prefix, share)
			}
		}
	}
}
