package downstream

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkBody reads 1 MiB at a time from a server on loopback that only writes. The cost is that of the system calls of
// client and server and of the hash.
func BenchmarkBody(b *testing.B) {
	const responseBytes = 64 << 20
	response := []byte(strings.Repeat(`[1700000000,"12345.678"],`, responseBytes/25+1))[:responseBytes]
	for _, framing := range []string{"content-length", "one chunk", "chunks of 64 KiB"} {
		server := serveHTTP(b, func(w http.ResponseWriter, _ *http.Request) {
			size := responseBytes
			switch framing {
			case "content-length":
				w.Header().Set("Content-Length", strconv.Itoa(responseBytes))
			case "chunks of 64 KiB":
				size = 64 << 10
			}
			for piece := range slices.Chunk(response, size) {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, nil)
		for _, buffer := range []int{64 << 10, 256 << 10} {
			b.Run(framing+"/buffer "+strconv.Itoa(buffer>>10)+"K", func(b *testing.B) {
				benchmarkBody(b, Options{URL: server, ReadBufferBytes: buffer}, responseBytes)
			})
		}
	}
}

func benchmarkBody(b *testing.B, opts Options, responseBytes int64) {
	c := client(b, opts, nil)
	p := make([]byte, 1<<20)
	reads := 0
	b.SetBytes(responseBytes)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Open(b.Context(), Request{Path: "/"})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = resp.Body.Read(p)
			reads++
		}
		if resp.Body.Close(); err != io.EOF {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(reads)/float64(b.N), "reads/op")
}

// endlessBody returns bytes for ever.
type endlessBody struct{}

func (endlessBody) Read(p []byte) (int, error) { return len(p), nil }
func (endlessBody) Close() error               { return nil }

func TestBodyRead_DoesNotAllocate(t *testing.T) {
	endless := fakeTripper(func(*http.Request) (*http.Response, error) {
		resp := status(http.StatusOK)
		resp.Body = endlessBody{}
		return resp, nil
	})
	resp, err := open(t, Options{URL: "http://down.example", Wrap: endless.wrap}, Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p := make([]byte, 64<<10)
	check(t, "allocations a read", testing.AllocsPerRun(100, func() {
		if _, err := resp.Body.Read(p); err != nil {
			t.Fatal(err)
		}
	}), 0)
}

// The overhead of a Body on a source that costs nothing, in reads of 256 KiB.
func BenchmarkBodyAlone(b *testing.B) {
	endless := fakeTripper(func(*http.Request) (*http.Response, error) {
		resp := status(http.StatusOK)
		resp.Body = endlessBody{}
		return resp, nil
	})
	resp, err := open(b, Options{URL: "http://down.example", Wrap: endless.wrap, BytesMax: 1 << 60}, Request{Path: "/"})
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	p := make([]byte, 256<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := resp.Body.Read(p); err != nil {
			b.Fatal(err)
		}
	}
}
