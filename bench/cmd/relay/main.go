// Command relay is the floor under a query frontend: it asks the downstream for parts as a frontend does, all at once, and
// sends their bodies to the client one after the other, blindly. What comes out is no answer, only its bytes.
//
//	GET /relay?part=QUERY&part=QUERY   each QUERY is that of a GET /api/v1/query_range at the downstream
//
// It is net/http on both sides with large buffers and nothing else; the bench runs it as a process and measures it from
// outside like any other.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	_ "net/http/pprof" // the bench asks for collections and profiles
	"os"
	"slices"
	"sync"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	downstream := flag.String("downstream", "", "URL of the downstream")
	read := flag.Int("read-bytes", 1<<20, "size of reads")
	write := flag.Int("write-bytes", 256<<10, "size of writes")
	flag.Parse()
	r := newRelay(*downstream, *read, *write)
	http.HandleFunc("/-/ready", func(http.ResponseWriter, *http.Request) {})
	http.Handle("/relay", r)
	if err := http.ListenAndServe(*listen, nil); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// relay moves bytes. Its buffers are kept between requests.
type relay struct {
	downstream string
	writeBytes int
	client     *http.Client
	buffers    sync.Pool
}

func newRelay(downstream string, readBytes, writeBytes int) *relay {
	r := &relay{downstream: downstream, writeBytes: writeBytes}
	// What is larger than the connection's own buffer is read past it.
	r.client = &http.Client{Transport: &http.Transport{DisableCompression: true, ReadBufferSize: min(readBytes, 64<<10), MaxIdleConnsPerHost: 100}}
	r.buffers.New = func() any {
		b := make([]byte, readBytes)
		return &b
	}
	return r
}

// ServeHTTP implements http.Handler.
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := req.URL.Query()["part"]
	answers, errs := make([]*http.Response, len(parts)), make([]error, len(parts))
	var asking sync.WaitGroup
	for i, part := range parts {
		asking.Go(func() { answers[i], errs[i] = r.ask(req, part) })
	}
	asking.Wait()
	for _, a := range answers {
		if a != nil {
			defer a.Body.Close()
		}
	}
	if err := errors.Join(errs...); err != nil || len(parts) == 0 {
		http.Error(w, fmt.Sprintf("%d parts: %v", len(parts), err), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for _, a := range answers {
		if err := r.move(w, a.Body); err != nil {
			panic(http.ErrAbortHandler) // the client must not take what it has for everything
		}
	}
}

func (r *relay) ask(req *http.Request, part string) (*http.Response, error) {
	ask, err := http.NewRequestWithContext(req.Context(), http.MethodGet, r.downstream+"/api/v1/query_range?"+part, nil)
	if err != nil {
		return nil, err
	}
	answer, err := r.client.Do(ask)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("downstream: %s", answer.Status)
	}
	return answer, err
}

// move copies through a buffer: what one read gives is written before the next.
func (r *relay) move(w io.Writer, body io.Reader) error {
	buffer := r.buffers.Get().(*[]byte)
	defer r.buffers.Put(buffer)
	for {
		n, err := body.Read(*buffer)
		for piece := range slices.Chunk((*buffer)[:n], r.writeBytes) {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
