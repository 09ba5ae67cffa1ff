package ingest

import (
	"bytes"
	"compress/gzip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

func zipped(t testing.TB, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	return b.Bytes()
}

// Pyroscope's SDK in Rust sends format=folded, and compresses it if it is configured so.
func TestHandler_FoldedStacksHaveThreeFormatsAndMayBeCompressed(t *testing.T) {
	in, store := newIngester(t, Limits{DecompressedBytes: 1000})
	text := []byte("main;work 3\nmain 1\n")
	for format, body := range map[string][]byte{"folded": text, "groups": text, "": text, "lines": []byte("main;work\nmain\nmain;work\nmain;work\n")} {
		bodies := [][]byte{body}
		if format != "" {
			bodies = append(bodies, zipped(t, body))
		}
		for _, body := range bodies {
			before := len(store.list())
			if code, text := ingest(t, in, "name=app&format="+format, "binary/octet-stream", body); code != 200 {
				t.Errorf("%q: %d %s", format, code, text)
				continue
			}
			if got := store.list()[before].stacks("cpu"); len(got) != 2 || got["main;work"] != 3*1e7 || got["main"] != 1e7 {
				t.Errorf("%q: %v", format, got)
			}
		}
	}
	before := len(store.list())
	if code, text := ingest(t, in, "name=app&format=groups", "", testProfile(t, nil)); code != 200 { // a pprof in spite of its format
		t.Error(code, text)
	}
	if got := store.list()[before].stacks("cpu"); got["main;work"] != 3e7 {
		t.Errorf("%v", got)
	}
	for _, tt := range []struct {
		contentType string
		body        []byte
		status      int
		text        string
	}{
		{"", zipped(t, bytes.Repeat([]byte("a 1\n"), 251)), 400, "more than 1000 bytes when decompressed"},
		{"", zipped(t, text)[:20], 400, "gzip: "},
		{"binary/octet-stream+trie", text, 415, "format trie"},
		{"binary/octet-stream+tree", text, 415, "format tree"},
	} {
		query := "name=app"
		if tt.contentType == "" {
			query += "&format=folded"
		}
		if code, text := ingest(t, in, query, tt.contentType, tt.body); code != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%d %s, want %d %s", code, text, tt.status, tt.text)
		}
	}
}

func TestHandler_SuffixOfTheNameIsTheTypeOfFoldedStacks(t *testing.T) {
	in, store := newIngester(t, Limits{})
	for _, tt := range []struct {
		name, units       string
		labels, valueType string
		value             int64
	}{
		{"shop.cpu{region=eu}", "", "__name__=process_cpu,region=eu,service_name=shop", "cpu nanoseconds cpu", 3e7},
		{"shop.web.wall", "samples", "__name__=wall,service_name=shop.web", "wall nanoseconds wall", 3e7},
		{"shop.cpu", "nanoseconds", "__name__=process_cpu,service_name=shop", "cpu nanoseconds cpu", 3},
		{"shop.itimer", "", "__name__=process_cpu,service_name=shop", "cpu nanoseconds cpu", 3e7},
		{"shop.inuse_objects", "objects", "__name__=memory,service_name=shop", "inuse_objects count space", 3},
		{"shop.inuse_space", "bytes", "__name__=memory,service_name=shop", "inuse_space bytes space", 3},
		{"shop.alloc_objects", "objects", "__name__=memory,service_name=shop", "alloc_objects count space", 3},
		{"shop.alloc_space", "bytes", "__name__=memory,service_name=shop", "alloc_space bytes space", 3},
		{"shop.goroutines", "goroutines", "__name__=goroutines,service_name=shop", "goroutine count goroutine", 3},
		{"shop.mutex_count", "lock_samples", "__name__=mutex,service_name=shop", "contentions count contentions", 3},
		{"shop.mutex_duration", "lock_nanoseconds", "__name__=mutex,service_name=shop", "delay nanoseconds contentions", 3},
		{"shop.block_count", "lock_samples", "__name__=block,service_name=shop", "contentions count contentions", 3},
		{"shop.block_duration", "lock_nanoseconds", "__name__=block,service_name=shop", "delay nanoseconds contentions", 3},
		// No suffix: the units are the type.
		{"shop.web", "lock_samples", "__name__=mutex,service_name=shop.web", "contentions count contentions", 3},
		{"shop.web", "goroutines", "__name__=goroutines,service_name=shop.web", "goroutine count goroutine", 3},
		{"shop.web", "bytes", "__name__=memory,service_name=shop.web", "inuse_space bytes space", 3},
		{"shop.seconds", "", "__name__=process_cpu,service_name=shop.seconds", "cpu nanoseconds cpu", 3e7},
		{".cpu", "apples", "__name__=process_cpu,service_name=.cpu", "samples apples samples", 3},
		// Explicit labels win.
		{"shop.cpu{service_name=store}", "", "__name__=process_cpu,service_name=store", "cpu nanoseconds cpu", 3e7},
	} {
		before := len(store.list())
		if code, text := ingest(t, in, "name="+url.QueryEscape(tt.name)+"&units="+tt.units, "", []byte("main 3")); code != 200 {
			t.Errorf("%s: %d %s", tt.name, code, text)
			continue
		}
		got := store.list()[before]
		types := got.profile.SampleType[0].Type + " " + got.profile.SampleType[0].Unit + " " + got.profile.PeriodType.Type
		if got.labels != tt.labels || types != tt.valueType || got.profile.Sample[0].Value[0] != tt.value {
			t.Errorf("%s of %q: %s, %s, %d", tt.name, tt.units, got.labels, types, got.profile.Sample[0].Value[0])
		}
	}
	if code, text := ingest(t, in, "name=shop.cpu&format=pprof", "", testProfile(t, nil)); code != 200 {
		t.Fatal(code, text)
	}
	if all := store.list(); all[len(all)-1].labels != "__name__=process_cpu,service_name=shop.cpu" {
		t.Errorf("a pprof has its own types, and the name no suffix: %s", all[len(all)-1].labels)
	}
}

func TestHandler_FramesOfFoldedStacksHaveTheirFilesAndLines(t *testing.T) {
	in, store := newIngester(t, Limits{})
	for frame, want := range map[string]profile.Function{
		"app/main.py:12 - work":                  {Filename: "app/main.py", StartLine: 12},
		"app/main.py:12 work":                    {Filename: "app/main.py", StartLine: 12},
		"work (app/main.py:12)":                  {Filename: "app/main.py", StartLine: 12},
		"block in work - app/my main.rb:12":      {Filename: "app/my main.rb", StartLine: 12},
		"my app/main.rb:7 - block in <main>":     {Filename: "my app/main.rb", StartLine: 7},
		`C:\app\main.py:1 - a - b`:               {Filename: `C:\app\main.py`, StartLine: 1},
		"<string>:1 - <module>":                  {Filename: "<string>", StartLine: 1},
		"app.py:0 - work":                        {Filename: "app.py"},
		"work":                                   {},
		"sleep [c function] - (unknown)":         {},
		"work (app/main.py)":                     {},
		"std::map<int>::at(int) (inlined)":       {},
		"operator - 7:3":                         {},
		"a.py:99999999999 - work":                {},
		"java.lang.Thread.run (Thread.java:748)": {Filename: "Thread.java", StartLine: 748},
	} {
		before := len(store.list())
		if code, text := ingest(t, in, "name=app", "", []byte("main;"+frame+" 3")); code != 200 {
			t.Errorf("%s: %d %s", frame, code, text)
			continue
		}
		leaf := store.list()[before].profile.Sample[0].Location[0].Line[0]
		if leaf.Function.Name != frame || leaf.Function.Filename != want.Filename || leaf.Line != want.StartLine {
			t.Errorf("%s: name %q, file %q, line %d", frame, leaf.Function.Name, leaf.Function.Filename, leaf.Line)
		}
	}
}

func TestHandler_FunctionsOfRubyAndPythonAreNamedWithTheirFiles(t *testing.T) {
	in, store := newIngester(t, Limits{})
	raw := testProfile(t, func(p *profile.Profile) {
		p.Function[0].Filename, p.Function[1].Filename = "/srv/main.rb", "lib/work.rb"
		p.Function = append(p.Function, &profile.Function{ID: 3, Name: "native"})
		p.Location = append(p.Location, &profile.Location{ID: 3, Line: []profile.Line{{Function: p.Function[2], Line: 4}}})
		p.Sample[0].Location = append([]*profile.Location{p.Location[2]}, p.Sample[0].Location...)
	})
	for spy, want := range map[string]string{
		"rbspy":  "/srv/main.rb main;lib/work.rb work;native",
		"pyspy":  "main;lib/work.rb work;native",
		"gospy":  "main;work;native",
		"dotnet": "main;work;native",
	} {
		before := len(store.list())
		if code, text := ingest(t, in, "name=app&format=pprof&spyName="+spy, "", raw); code != 200 {
			t.Errorf("%s: %d %s", spy, code, text)
			continue
		}
		got := store.list()[before]
		if stacks := got.stacks("cpu"); len(stacks) != 1 || stacks[want] != 3e7 {
			t.Errorf("%s: %v, want %s", spy, stacks, want)
		}
		if i := slices.IndexFunc(got.profile.Function, func(f *profile.Function) bool { return f.Filename == "lib/work.rb" }); i < 0 {
			t.Errorf("%s: the file was lost", spy)
		}
	}
	shared := strings.Repeat("x", 1<<20)
	huge := testProfile(t, func(p *profile.Profile) {
		for i := range 1000 {
			f := &profile.Function{ID: uint64(10 + i), Name: "f", Filename: shared}
			p.Function, p.Location = append(p.Function, f), append(p.Location, &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}})
		}
	})
	if code, text := ingest(t, in, "name=app&format=pprof&spyName=rbspy", "", huge); code != 400 || !strings.Contains(text, "exceed the limit of 4194304") {
		t.Errorf("a thousand functions with a file of a megabyte: %d %.200s", code, text)
	}
}
