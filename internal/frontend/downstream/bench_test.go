package downstream

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// A megabyte at a time through Body from a server on loopback that does nothing
// but write: what remains is the system calls of both sides and the hash.
func BenchmarkBody(b *testing.B) {
	const answerBytes = 64 << 20
	piece := []byte(strings.Repeat(`[1700000000,"12345.678"],`, 1<<18/25))
	for _, framing := range []string{"content-length", "one chunk", "chunks of 64 KiB"} {
		server := serveHTTP(b, func(w http.ResponseWriter, _ *http.Request) {
			size := len(piece)
			switch framing {
			case "content-length":
				w.Header().Set("Content-Length", strconv.Itoa(answerBytes))
			case "one chunk":
				size = answerBytes
			default:
				size = 64 << 10
			}
			writePieces(w, piece, size, answerBytes)
		}, nil)
		for _, buffer := range []int{64 << 10, 256 << 10} {
			for _, opts := range []Options{{}, {NoResume: true}} {
				opts.URL, opts.ReadBufferBytes = server, buffer
				name := framing + "/buffer " + strconv.Itoa(buffer>>10) + "K"
				if opts.NoResume {
					name += "/no hash"
				}
				b.Run(name, func(b *testing.B) { benchmarkBody(b, opts, answerBytes) })
			}
		}
	}
}

func benchmarkBody(b *testing.B, opts Options, answerBytes int64) {
	c := client(b, opts, nil)
	p := make([]byte, 1<<20)
	reads := 0
	b.SetBytes(answerBytes)
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
