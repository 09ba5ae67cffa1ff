// Command relay is the lower bound of a query frontend's cost. It requests all parts concurrently from the downstream, as a
// frontend does, and copies their bodies to the client one after the other, without parsing them. Its output has about as many
// bytes as a response but is not a valid one.
//
//	GET /relay?part=QUERY&part=QUERY   each QUERY is that of a GET /api/v1/query_range at the downstream
//
// It is net/http on both sides with large buffers. With -dir it is instead a lower bound of the cost to serve chunks. Its output
// is not a remote read response, only as many bytes.
//
//	GET /floor   all chunk files of -dir
//
// The bench runs it as a process and measures it from outside like the servers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	_ "net/http/pprof" // for the bench: garbage collections and profiles
	"os"
	"slices"
	"sync"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	downstream := flag.String("downstream", "", "URL of the downstream")
	read := flag.Int("read-bytes", 1<<20, "size of reads")
	write := flag.Int("write-bytes", 256<<10, "size of writes")
	dir := flag.String("dir", "", "data folder with blocks, whose chunk files /floor writes")
	flag.Parse()
	files, err := mapped(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
	http.HandleFunc("/floor", floor(files))
	r := newRelay(*downstream, *read, *write)
	http.HandleFunc("/-/ready", func(http.ResponseWriter, *http.Request) {})
	http.Handle("/relay", r)
	if err := http.ListenAndServe(*listen, nil); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// relay forwards bytes. It reuses its buffers between requests.
type relay struct {
	downstream string
	writeBytes int
	client     *http.Client
	buffers    sync.Pool
}

func newRelay(downstream string, readBytes, writeBytes int) *relay {
	r := &relay{downstream: downstream, writeBytes: writeBytes}
	// If the caller's buffer is larger than the connection's, net/http reads into it directly.
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
	responses, errs := make([]*http.Response, len(parts)), make([]error, len(parts))
	var wait sync.WaitGroup
	for i, part := range parts {
		wait.Go(func() { responses[i], errs[i] = r.fetch(req, part) })
	}
	wait.Wait()
	for _, resp := range responses {
		if resp != nil {
			defer resp.Body.Close()
		}
	}
	if err := errors.Join(errs...); err != nil || len(parts) == 0 {
		http.Error(w, fmt.Sprintf("%d parts: %v", len(parts), err), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for _, resp := range responses {
		if err := r.copy(w, resp.Body); err != nil {
			panic(http.ErrAbortHandler) // otherwise a truncated body would look complete to the client
		}
	}
}

func (r *relay) fetch(req *http.Request, part string) (*http.Response, error) {
	down, err := http.NewRequestWithContext(req.Context(), http.MethodGet, r.downstream+"/api/v1/query_range?"+part, nil)
	if err != nil {
		return nil, err
	}
	resp, err := r.client.Do(down)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("downstream: %s", resp.Status)
	}
	return resp, err
}

// copy copies body to w through a buffer. It writes the bytes of a read before it reads again.
func (r *relay) copy(w io.Writer, body io.Reader) error {
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
