package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/app"
)

// openFiles returns the number of open files of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	return len(entries)
}

// heapBytes returns the bytes of live heap objects.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// metric returns the value of one of the server's own metrics.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	_, text := s.get("/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		s.t.Fatalf("no metric %s", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// stalledReader sends a remote read request, and reads only the response header and the
// first 1000 bytes of the body.
func stalledReader(t *testing.T, address string, form prompb.ReadRequest_ResponseType, mint, maxt int64) net.Conn {
	t.Helper()
	q, err := remote.ToQuery(mint, maxt, []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := proto.Marshal(&prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	request, err := http.NewRequest(http.MethodPost, address+"/api/v1/read", strings.NewReader(string(snappy.Encode(nil, plain))))
	if err == nil {
		err = request.Write(conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), request)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	if _, err := io.CopyN(io.Discard, resp.Body, 1000); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestRemoteRead_StalledReadersDuringCompactionReleaseFilesAndMemory(t *testing.T) {
	dir := t.TempDir()
	for i := range int64(3) {
		blockIn(t, dir, 600, pathsStart+2*i*hourMS, pathsStart+2*(i+1)*hourMS, 20_000)
	}
	s := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Store.Dir, o.Store.Retention = dir, 15*24*time.Hour
		o.Read.ConcurrentMax, o.Read.WriteTimeout = 16, 10*time.Second
	})
	all := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m.|h|mixed")
	address, mint, maxt := s.base+"/api/v1/read", pathsStart, pathsStart+6*hourMS-1
	want := readBy(t, address, false, mint, maxt, all)
	if want.samples < 500_000 {
		t.Fatalf("%+v", want)
	}
	s.metric("prometheus_remote_read_handler_queries") // the first page opens files of /proc
	files, heap := openFiles(t), heapBytes()
	// 8 readers stall and 4 disconnect. New samples extend the head until it and the
	// blocks are compacted, while 4 other readers read everything.
	var conns []net.Conn
	for i := range 12 {
		conn := stalledReader(t, s.base, prompb.ReadRequest_ResponseType(i%2), mint, maxt)
		if i >= 8 {
			conn.Close()
		} else {
			conns = append(conns, conn)
		}
	}
	for hour := range int64(8) {
		at := maxt + 1 + hour*hourMS
		s.writeAll([][]byte{encoded(t, v1(v1Series(at, 1, "__name__", "new")))})
	}
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			if got := readBy(t, address, i%2 == 0, mint, maxt, all); got != want {
				t.Errorf("with stalled readers: %+v, want %+v", got, want)
			}
		})
	}
	readers.Wait()
	eventually(t, 60*time.Second, "the readers to be disconnected", func() bool { return s.metric("prometheus_remote_read_handler_queries") == 0 })
	eventually(t, 60*time.Second, "the three blocks to be one", func() bool { // plus two of the head
		found, err := filepath.Glob(filepath.Join(dir, "01*"))
		return err == nil && len(found) == 3 && s.metric("prometheus_tsdb_compactions_total") >= 3
	})
	if got := readBy(t, address, false, mint, maxt, all); got != want {
		t.Errorf("after the compaction: %+v, want %+v", got, want)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	eventually(t, 60*time.Second, "files to be closed", func() bool { return openFiles(t) <= files+2 })
	if now := heapBytes(); now > heap+16<<20 {
		t.Errorf("%d MiB are live, before %d", now>>20, heap>>20)
	}
}
