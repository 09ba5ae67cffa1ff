package export

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/series"
)

func TestSamples_HeaderAndGroups(t *testing.T) {
	for _, tt := range []struct {
		encoding chunkenc.Encoding
		size     int
		ok       bool
	}{{chunkenc.EncXOR, 1, false}, {chunkenc.EncXOR, 2, true}, {chunkenc.EncHistogram, 2, false}, {chunkenc.EncHistogram, 3, true}, {chunkenc.EncFloatHistogram, 2, false}} {
		err := (&samples{}).reset(nil, []series.Chunk{{Encoding: tt.encoding, Data: make([]byte, tt.size)}}, 0, 1)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	c := func(mint, maxt int64) series.Chunk { return series.Chunk{MinMS: mint, MaxMS: maxt} }
	for want, list := range map[int][][]series.Chunk{
		1: {{c(1, 2)}, {c(1, 2), c(3, 4)}}, 2: {{c(1, 2), c(2, 4)}, {c(1, 5), c(2, 3), c(6, 7)}}, 3: {{c(1, 5), c(2, 3), c(5, 7)}, {c(1, 2), c(1, 9), c(9, 9)}},
	} {
		for _, chunks := range list {
			if got := group(chunks); got != want {
				t.Errorf("%v: %d, want %d", chunks, got, want)
			}
		}
	}
}

// Rows are passed on in batches: no row is lost at the end of a batch, of a row group or of a series.
func TestParquet_SeriesOfAnyLengthKeepTheirRows(t *testing.T) {
	for _, floats := range []int{0, 1, batchRows - 1, batchRows, batchRows + 1, 2 * batchRows} {
		var chunks []series.Chunk
		at := startMS
		for left := floats; left > 0; {
			n := min(left, 100)
			var points []point
			for range n {
				at++
				points = append(points, point{t: at, v: float64(at)})
			}
			chunks, left = append(chunks, encodeChunk(points)), left-n
		}
		chunks = append(chunks, encodeChunk([]point{{t: at + 1, h: tsdbutil.GenerateTestHistogram(1)}, {t: at + 2, h: tsdbutil.GenerateTestHistogram(2)}}), encodeChunk([]point{{t: at + 3, v: 1}}))
		var s samples
		if err := s.reset(nil, chunks, startMS, at+3); err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		w := bufio.NewWriter(&file)
		e := newParquetEncoder(w)
		if err := errors.Join(e.add(&s), e.close(), w.Flush()); err != nil {
			t.Fatal(err)
		}
		rows, err := parquet.Read[parquetRow](bytes.NewReader(file.Bytes()), int64(file.Len()))
		if err != nil || len(rows) != floats+3 || s.total != int64(len(rows)) {
			t.Fatalf("%d floats: %d rows, %d samples, %v", floats, len(rows), s.total, err)
		}
		for i, row := range rows {
			hist := i == floats || i == floats+1
			if row.Timestamp != startMS+int64(i)+1 || (row.Histogram != nil) != hist || (row.Value == nil) != hist {
				t.Fatalf("%d floats: row %d is %+v", floats, i, row)
			}
		}
	}
}

// The last samples before and after a window are not in it, nor are equal timestamps.
func TestSamples_AreThoseOfTheWindow(t *testing.T) {
	chunks := []series.Chunk{encodeChunk([]point{{t: 1, v: 1}, {t: 2, v: 2}, {t: 3, v: 3}, {t: 4, v: 4}})}
	for _, tt := range []struct {
		mint, maxt int64
		want       []int64
	}{{2, 3, []int64{2, 3}}, {1, 4, []int64{1, 2, 3, 4}}, {0, 1, []int64{1}}, {4, 9, []int64{4}}, {5, 9, nil}, {-3, 0, nil}} {
		var s samples
		if err := s.reset(nil, chunks, tt.mint, tt.maxt); err != nil {
			t.Fatal(err)
		}
		if some, err := s.some(); some != (tt.want != nil) || err != nil {
			t.Errorf("%+v: some %v, %v", tt, some, err)
		}
		var got []int64
		more, err := s.next()
		for ; more; more, err = s.next() {
			got = append(got, s.time)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
	twice := []series.Chunk{encodeChunk([]point{{t: 1, v: 1}, {t: 2, v: 2}}), encodeChunk([]point{{t: 2, v: 3}})}
	twice[1].MinMS = 3 // so that they do not overlap
	var s samples
	if err := s.reset(nil, twice, 0, 9); err != nil {
		t.Fatal(err)
	}
	more, err := s.next()
	for more {
		more, err = s.next()
	}
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "a sample at 2 comes after one at 2") {
		t.Error(err)
	}
}

func TestState_LinesAndNamesAreChecked(t *testing.T) {
	head := stateHead + "\nrequest \"test\"\nrange 1 2\n"
	for text, ok := range map[string]bool{
		head: true, head + "done 0 1 2 3 4 a\n": true, head + "done 0 1 2 3 4 a\ndone 1": true,
		stateHead + "\nrequest \"test\"\n": false, stateHead + "\nrequest test\nrange 1 2\n": false, stateHead + "\nrequest \"test\"\nrange 1\n": false, "": false,
		head + "done 0 1 2 3 4 a/b\n": false, head + "done 0 1 2 3 4 .a\n": false, head + "done 1 1 2 3 4 a\n": false, head + "done 0 1 2 3 a\n": false,
	} {
		s := &state{}
		if whole, err := s.parse(text, "test"); (err == nil) != ok || ok && whole != strings.LastIndexByte(text, '\n')+1 {
			t.Errorf("%q: %d, %v", text, whole, err)
		}
		if ok && (s.startMS != 1 || s.endMS != 2 || len(s.done) > 0 && s.done[0] != (done{0, 1, 2, 3, 4, "a"})) {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestState_SizeIsLimited(t *testing.T) {
	s := &state{dir: t.TempDir()}
	if _, err := s.read(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	path := filepath.Join(s.dir, stateName)
	for size, want := range map[int64]error{stateBytesMax: nil, stateBytesMax + 1: ErrOptions} {
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		if text, err := s.read(); !errors.Is(err, want) || want == nil && (err != nil || int64(len(text)) != size) {
			t.Errorf("%d bytes: %d, %v", size, len(text), err)
		}
	}
	file := filepath.Join(s.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(files.Disk{}, file, stateOptions, false); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
}

func TestState_CheckComparesTheParts(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("abc"), 0o600), os.Mkdir(filepath.Join(dir, "block"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		done    []done
		windows int
		want    error
	}{
		"nothing": {nil, 0, nil}, "all": {[]done{{name: "a", bytes: 3}, {name: noBlock}, {name: "block", bytes: 7}}, 3, nil},
		"more": {[]done{{name: noBlock}, {name: noBlock}}, 1, ErrOptions}, "another size": {[]done{{name: "a", bytes: 4}}, 1, ErrOptions},
		"gone": {[]done{{name: "b"}}, 1, os.ErrNotExist},
	} {
		if err := (&state{dir: dir, done: tt.done}).check(tt.windows); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgress_TextAtTheLimits(t *testing.T) {
	now := time.Unix(100, 0)
	p := newProgress(ProgressOptions{To: io.Discard}, func() time.Time { return now })
	p.begin(2)
	if text := p.text(); !strings.HasPrefix(text, "  0%  window 1/2  0 series  0 samples  0 B read  0 B written  0 samples/s  ? left") {
		t.Error(text)
	}
	now = now.Add(10 * time.Second)
	p.series(1, 50, 10<<10)
	if text := p.text(); !strings.HasPrefix(text, "  0%  window 1/2  1 series  50 samples  10 KiB read  0 B written  5 samples/s  ? left") {
		t.Error(text)
	}
	p.windowDone(1)
	p.series(1, 70, 10<<20)
	if text := p.text(); !strings.HasPrefix(text, "100%  window 2/2  1 series  70 samples  10.0 MiB read") || !strings.HasSuffix(text, "  0s left") {
		t.Error(text) // 99 % of the second window
	}
	p.windowDone(1)
	if text := p.text(); !strings.HasPrefix(text, "100%  window 2/2  0 series") || !strings.HasSuffix(text, "  0s left") {
		t.Error(text)
	}
	for n, want := range map[int64]string{10<<10 - 1: "10239 B", 10 << 10: "10 KiB", 10<<20 - 1: "10240 KiB", 10 << 20: "10.0 MiB", 10<<30 - 1: "10240.0 MiB", 10 << 30: "10.0 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	if text := (Summary{Samples: 3, Series: 1, Windows: 1}).String(); text != "3 samples of 1 series in 1 windows: 0 B read, 0 B written in 0.0s, 0 samples/s" {
		t.Error(text)
	}
}

func TestProgress_JoiningIsShownOnATerminalForSeveralWindows(t *testing.T) {
	for _, tt := range []struct {
		terminal bool
		windows  int
		want     bool
	}{{true, 1, false}, {true, 2, true}, {false, 2, false}} {
		var out bytes.Buffer
		p := newProgress(ProgressOptions{To: &out, Terminal: tt.terminal}, time.Now)
		p.done = tt.windows
		p.joining()
		p.end()
		if got := strings.Contains(out.String(), fmt.Sprintf("\r\x1b[Kjoining %d windows\r\x1b[K", tt.windows)); got != tt.want || (out.Len() > 0) != tt.want {
			t.Errorf("%+v: %q", tt, out.String())
		}
	}
	newProgress(ProgressOptions{Terminal: true}, time.Now).windowDone(1) // no writer
}
