package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// clock advances by a second at every reading.
func clock() func() time.Time {
	at := time.Unix(1700000000, 0)
	return func() time.Time {
		at = at.Add(time.Second)
		return at
	}
}

func TestProgress_BarOnATerminalLinesOtherwise(t *testing.T) {
	run := func(terminal bool) string {
		var out bytes.Buffer
		p := newProgress(ProgressOptions{To: &out, Terminal: terminal}, clock())
		p.begin(4)
		p.written = func() int64 { return 3 << 20 }
		for range 2 {
			for n := range int64(640) {
				p.series(n+1, 1000*(n+1), 2000*(n+1))
			}
			p.windowDone(640)
		}
		p.end()
		return out.String()
	}
	lines := strings.Split(strings.TrimRight(run(false), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for _, piece := range []string{"window 2/4", "series", "samples", "3072 KiB written", "KiB read", "samples/s", "s left"} {
		if !strings.Contains(strings.Join(lines, "\n"), piece) {
			t.Errorf("%q is missing in %q", piece, lines)
		}
	}
	bar := run(true)
	if strings.Contains(bar, "\n") || !strings.Contains(bar, "\r\x1b[K[============            ]  50%") || !strings.HasSuffix(bar, "\r\x1b[K") {
		t.Errorf("the bar is %q", bar)
	}
}

func TestProgress_RemainingTimeCountsOnlyThisRun(t *testing.T) {
	p := newProgress(ProgressOptions{To: io.Discard}, func() time.Time { return time.Unix(100, 0) })
	p.begin(10)
	p.began = time.Unix(90, 0)
	for range 6 {
		p.windowDone(1)
	}
	p.resumed(5, 500) // one window in ten seconds: four are left
	if text := p.text(); !strings.Contains(text, "40s left") || !strings.Contains(text, " 60%") {
		t.Error(text)
	}
}

func TestSummary_String(t *testing.T) {
	s := Summary{Windows: 4, Resumed: 1, Series: 10_000, Samples: 19_200_000, BytesRead: 152 << 20, BytesWritten: 1 << 40, Skipped: 3, Elapsed: 10 * time.Second}
	want := "19,200,000 samples of 10,000 series in 4 windows: 152.0 MiB read, 1024.0 GiB written in 10.0s, 1,920,000 samples/s; 1 windows were resumed; 3 staleness markers or histograms skipped, the format has none"
	if s.String() != want {
		t.Errorf("%s\nwant\n%s", s, want)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestRun_SecondRunIsRefused(t *testing.T) {
	w := newFixture(5, false)
	o := options(t, w, CSV, 5)
	var inner error
	w.fail = func(opened, series int) error {
		if opened == 2 && series == 2 {
			second := o
			second.Source, second.Resume = newFixture(5, false), true
			_, inner = Run(context.Background(), second)
		}
		return nil
	}
	mustRun(t, o)
	if !errors.Is(inner, ErrOptions) || !strings.Contains(fmt.Sprint(inner), "another run") {
		t.Errorf("the second run: %v", inner)
	}
	same(t, decode(t, CSV, o.Output), w.want(o.StartMS, o.EndMS, blockLength, true), true)
}

func FuzzState(f *testing.F) {
	f.Add("ferula read 1\nrequest \"test\"\nrange 1 2\ndone 0 1 1 1 1 00000.part\ndone 1 1 1 ")
	f.Add("ferula read 1\nrequest \"other\"\nrange 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		var s state
		whole, err := s.parse(text, "test")
		if err != nil {
			if !errors.Is(err, ErrOptions) {
				t.Fatal(err)
			}
			return
		}
		if whole > len(text) || whole > 0 && text[whole-1] != '\n' {
			t.Fatalf("%d bytes of %q are whole", whole, text)
		}
		for i, d := range s.done {
			if d.window != i || strings.Contains(d.name, "/") || d.name == ".." {
				t.Fatalf("%+v", d)
			}
		}
	})
}

func TestProgress_LineFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	width := 0
	p := newProgress(ProgressOptions{To: &out, Terminal: true, Width: func() int { return width }}, func() time.Time { return clock })
	p.begin(1000)
	clock = clock.Add(time.Hour)
	line := func(columns int) string {
		out.Reset()
		width = columns
		p.windowDone(123_456_789)
		return strings.TrimPrefix(out.String(), "\r\x1b[K")
	}
	whole := line(0)
	if !strings.HasSuffix(whole, " left") || !strings.Contains(whole, "samples/s") {
		t.Fatalf("%q", whole)
	}
	for columns := 1; columns < len(whole)+10; columns++ {
		got := line(columns)
		if len(got) >= columns && columns < len(whole) {
			t.Errorf("%d columns: %q", columns, got)
		}
		if columns > 80 && (!strings.HasSuffix(got, " left") || !strings.Contains(got, "window")) {
			t.Errorf("%d columns: %q", columns, got)
		}
	}
}
