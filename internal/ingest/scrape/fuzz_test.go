package scrape

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/scrape"
)

// loopOf returns a loop that appends to a storage but does not run.
func loopOf(t testing.TB) (*loop, *recording) {
	t.Helper()
	cfg, err := config.Load("scrape_configs: [{job_name: j}]", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	to := newRecording()
	m, err := newManager(&scrape.Options{}, to, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.newPool(cfg.ScrapeConfigs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.cancel)
	found, _, _ := p.targets([]*targetgroup.Group{{Targets: []model.LabelSet{{model.AddressLabel: "a"}}}})
	for hash, f := range found {
		l := p.newLoop(f.Target, hash, newCache())
		t.Cleanup(l.cancel)
		return l, to
	}
	t.Fatal("there is no target")
	return nil, nil
}

// samePages appends the same pages with layouts and with the parser only, which
// TestManager_StoresWhatPrometheusStores compares with Prometheus, and returns how many pages had a known layout.
func samePages(t *testing.T, media string, bodies [][]byte) (known int) {
	t.Helper()
	var loops [2]*loop
	var to [2]*recording
	for i := range loops {
		loops[i], to[i] = loopOf(t)
	}
	for n, body := range bodies {
		var texts [2]string
		for i, l := range loops {
			if i == 1 {
				l.cache.pause = 1
			}
			was := l.cache.layout
			app := to[i].AppenderV2(t.Context()).(*recordingAppender)
			p := l.newPage(app, time.Now())
			err := p.append(bytes.Clone(body), media)
			if err != nil {
				_, _ = l.appendFailed(app, time.Now())
			}
			_ = app.Commit()
			texts[i] = fmt.Sprint(to[i].committed(""), p.total, p.kept, p.added, err, l.cache.meta.LengthMetadata(), l.cache.meta.SizeMetadata())
			if was != nil && was == l.cache.layout {
				known++
			}
		}
		if texts[0] != texts[1] {
			t.Fatalf("page %d of %q: %s", n, bodies, difference(texts[0], texts[1]))
		}
	}
	return known
}

func many(name string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s{x=\"%d\"} %d\n", name, i, i)
	}
	return b.String()
}

func FuzzPages(f *testing.F) {
	f.Add([]byte("# TYPE a counter\na 1\nb{x=\"1\"} 2\n\xff# TYPE a counter\na 1.5\nb{x=\"1\"} -0\n"), false)
	f.Add([]byte("a 1\nb 2\n\xffb 2\na 1\n\xffa 1\nb 2\n\xffb 7\na 9\n\xffb 7\n# HELP a\na 9\n"), false)
	f.Add([]byte("# TYPE a counter\na_total 1\n# EOF\n\xffa_total 1\n# TYPE a counter\n# EOF\n\xffa_total 1 # {x=\"1\"} 1\n# EOF\n"), true)
	f.Add([]byte("a 1 # {x=\"1\"} 1\n# EOF\n\xffa 2 # {} 1 1.5\n# EOF\n\xffa 1\n# EOF\n\xffa 3 # {y=\"a b\",x=\"\"} 1 2\n# EOF\n"), true)
	f.Add([]byte("a 1\nb 2\n\xffa 1\nc 1\nb 2\n\xffb 1\nc 2\n# TYPE d gauge\nd 1\n\xffd 3\n"), false)
	f.Fuzz(func(t *testing.T, pages []byte, open bool) {
		media := plainText
		if open {
			media = openMetrics
		}
		samePages(t, media, bytes.Split(pages, []byte{0xff}))
	})
}

// Random pages with and without layouts have the same effect.
func TestPage_LayoutsChangeNothing(t *testing.T) {
	known := 0
	for _, x := range exemplarTexts { // in a page whose layout is known, also with another order
		text := "a 1\nb 2 # {x=\"1\"} 1 1.5\n# EOF\n|a 2\nb 3\n# EOF\n|a 3" + x + "\nb 4\n# EOF\n|a 3\nb 4" + x +
			"\n# EOF\n|b 4" + x + "\na 3\n# EOF\n|a 1\nb 3\n# EOF\n|b 4\na 3" + x + "\n# EOF\n"
		known += samePages(t, openMetrics, bytes.Split([]byte(text), []byte("|")))
		samePages(t, plainText, bytes.Split([]byte(text), []byte("|")))
	}
	for _, text := range []string{
		"a 1\nb 2\n|b 2\na 1\n|a 3\nb 2\n|b 2\na 1\n|a 1\na 2\n|a 1\nb 2\n", // a line twice instead of another
		"a 1\nb 2\n|b 2\na 1\n|a 3\nb 2\n|b 2\na 1\n|a 1\n|a 1\nb 2\n",
		"a 1\nb 2\n# EOF\n|b 2\na 1\n# EOF\n|a 3\nb 2\n# EOF\n|b 2\na 1\n# EOF\n|b 2\n# EOF\na 1\n", // an early end
		// An end without a line feed that is missing later, other spaces, and a comment twice instead of another.
		"a 1\nb 2\n# EOF|b 2\na 1\n# EOF|a 3\nb 2\n# EOF|b 2\na 1\n# EOF|a 1\nb 2\n",
		"a 1\nb 2\n# EOF\n|b 2\na 1\n# EOF\n|a 3\nb 2\n# EOF\n|b 2\na  1\n# EOF\n|b 2\na\t1\n# EOF\n",
		"# TYPE a gauge\na 1\nb 2\n# EOF\n|b 2\n# TYPE a gauge\na 1\n# EOF\n|# TYPE a gauge\na 3\nb 2\n# EOF\n|" +
			"# EOF\nb 2\na 1\n# EOF\n",
		"a 1\nfull 1\nb 1\n|a 2\nfull 2\nb 2\n|a 3\nfull 99\nb 3\n|a 4\nfull 4\nb 4\n", // the storage ends a page
		"a 1\nlate 2\n|a 1\nlate 60\n|a 1\nlate 3\n|a 1\n",
		"# TYPE a counter\na 1\n|# TYPE a gauge\na 1\n|a 2\n|a 3\n",
		// New lines among others: refused ones, without a name, twice, known already, not in a line of their own.
		"a 1\nb 1\n|a 2\nlate 60\nb 2\n|a 3\nb 3\n|a 4\nb 4\nfull 99\n|a 5\nlost 99\nb 5\n|b 6\nc 1\n|c 1\nb 7\nd 2\n",
		"a 1\nlate 1\nb 1\n|c 2\na 2\nlate 60\nb 2\n|a 3\nlate 2\nb 3\n|c 4\na 4\nfull 99\nlate 1\n|a 1\n",
		"a 1\nb 1\n|a 1\n{x=\"1\"} 1\nb 1\n|a 1\nb 1\n|a 1\nc 1\nb 1\nc 1\n|a 1\nb 1\n|b 1\na 1\nc 1\n|a 1\nb 1\na 1\n",
		"a 1\nb 1\n|c{x=\"\na 5\n\"} 1\nb 1\n|a 1\nb 1\n|# HELP \"c\na 2\n#\" c\nb 1\n|a 1\nb 1\n|a 1\n\nb 1\n|a 1\n b 1\n|c\na 1\n",
		"# TYPE a counter\na 1\nb 1\n# EOF\n|# TYPE a gauge\n# TYPE c histogram\nc_bucket{le=\"1\"} 2\nb 1\n# EOF\n|b 2 1\nc 1 5\n# EOF\n" +
			"|# TYPE c summary\nc{quantile=\"1\"} 1\nb 1\n# EOF\n|c 5\nb 1\n# EOF\n# EOF\n|b 1\n# EOF\n",
		// A name in quotes goes on in the next line, in which a series of another order is part of the name.
		"# HELP \"c\n#\" c\na 1\nb 2\n# EOF\n|b 2\n# HELP \"c\n#\" c\na 1\n# EOF\n|# HELP \"c\na 2\n#\" c\nb 2\n# EOF\n",
		// After fewer series, pages with an error remove from the cache what they do not have.
		many("n", 1500) + "|a 1\n|a 1\n|a 1\n|" + many("m", 1100) + "full 99\n|a 1\n",
		"a 1\n" + many("n", 100) + "b 1\n|a 1\nb 1\n|a 1\nc 1\n" + many("n", 64) + "b 1\n|a 1\nb 1\n|a 1\n" + many("n", 63) + "b 1\n|a 1\n" +
			many("n", 63) + many("m", 64) + "b 1\n|b 1\n",
	} {
		for _, media := range []string{plainText, openMetrics} {
			known += samePages(t, media, bytes.Split([]byte(text), []byte("|")))
		}
	}
	for seed := range uint64(max(20, *histories)) {
		h := &history{r: rand.New(rand.NewPCG(*historySeed+seed, 7))}
		media, bodies := "", [][]byte{}
		for range 40 {
			a := h.next()
			if media == "" {
				media = a.media
			}
			if a.status == 0 {
				bodies = append(bodies, []byte(a.body))
			}
		}
		known += samePages(t, media, bodies)
	}
	if known == 0 {
		t.Error("no page had a known layout")
	}
}

// A number is what Prometheus' parser reads, or left to it.
func TestNumber_HasTheBitsOfParseFloat(t *testing.T) {
	check := func(text string) {
		want, err := strconv.ParseFloat(text, 64)
		if math.IsNaN(want) {
			want = math.Float64frombits(value.NormalNaN)
		}
		if v, n := number([]byte(text + "\nmore 1\n")); n != 0 && (err != nil || n != len(text) || math.Float64bits(v) != math.Float64bits(want)) {
			t.Errorf("%q: %v with %d bytes, want %v, %v", text, v, n, want, err)
		} else if n == 0 && err == nil && len(text) > 0 && !bytes.ContainsAny([]byte(text), "pP_") {
			t.Errorf("%q is not read", text)
		}
	}
	edges := []string{"9007199254740991", "9007199254740992", "9007199254740993", "90071992547409.91", "1844674407370955161",
		"18446744073709551617", "0.123456789012345678", "0.0000000000000000001", "0000000000000000001.5", "-0.000000000000000000"}
	for _, text := range append(edges, valueTexts...) {
		check(text)
	}
	r := rand.New(rand.NewPCG(*historySeed, 1))
	for range 20000 {
		v := math.Float64frombits(r.Uint64())
		check(strconv.FormatFloat(v, "feg"[r.IntN(3)], -1, 64))
		check(strconv.FormatFloat(r.Float64()*math.Pow10(r.IntN(18)), 'f', r.IntN(20), 64))
	}
	for _, text := range []string{"", "1", "-\n", "\n", " 1\n", "- 1\n"} { // not whole values
		if v, n := number([]byte(text)); n != 0 {
			t.Errorf("%q: %v", text, v)
		}
	}
}
