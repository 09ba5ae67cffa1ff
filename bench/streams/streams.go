// Package streams has the file of series and the tasks for the workers that move series.
//
// The bench writes a file of series and starts one worker per side. Each worker is a separate program, because their
// dependencies conflict. A worker reads tasks as lines of JSON from its standard input, runs each in its own process with
// server and client over loopback, and writes a line of figures as the result. This module has no dependencies, so that the
// workers keep the versions of theirs. The codecs are in the workers.
package streams

import (
	"bufio"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

// Chunk is one encoded chunk; Encoding is Prometheus' own number.
type Chunk struct {
	MinMS, MaxMS int64
	Encoding     byte
	Data         []byte
}

// Label is a name and a value.
type Label struct{ Name, Value string }

// Series is one series: sorted labels, and chunks.
type Series struct {
	Labels []Label
	Chunks []Chunk
}

// Write writes series to a file.
func Write(path string, list []Series) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(gob.NewEncoder(w).Encode(list), w.Flush(), f.Close())
}

// Read reads a file of series. Every string and chunk is a separate allocation, as in a store's memory.
func Read(path string) (list []Series, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := gob.NewDecoder(bufio.NewReader(f)).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// Task is a worker's task: to move the first Series of a file through a stream.
type Task struct {
	File      string
	Series    int
	Batch     int  // requested number of series in a message
	Extension bool // request ferula's extension of StoreAPI, too
	NoDeltas  bool // with Extension: do not request deltas
	Querier   bool // hold all series in the buffers of ferula query, which requests what it always does
	Noop      bool // move the same messages without encoding or decoding them
	TLS       bool // between server and client
	Snappy    bool // messages are compressed
	Repeats   int
	Check     bool // compute the digest of the received series, but do not measure time
}

// Figures are the result of one task. Without Check they are averages over the repeats.
type Figures struct {
	CPUNanoseconds int64
	Nanoseconds    int64 // from the request to the end of the response
	Mallocs        int64
	Writes, Bytes  int64  // of the server, to its connection
	Digest         string // with Check
	Error          string
}

// Work runs tasks until the end of its input.
func Work(do func(Task) (Figures, error)) error {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		var t Task
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			return err
		}
		f, err := do(t)
		if err != nil {
			f.Error = err.Error()
		}
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return in.Err()
}

// Listener listens on loopback. It counts the write calls of its connections, and their bytes.
type Listener struct {
	net.Listener
	writes, bytes atomic.Int64
}

// Listen returns a listener on a free port.
func Listen() (l *Listener, err error) {
	l = &Listener{}
	l.Listener, err = net.Listen("tcp", "127.0.0.1:0")
	return l, err
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return counted{c, l}, err
}

type counted struct {
	net.Conn
	in *Listener
}

// Write implements net.Conn.
func (c counted) Write(p []byte) (int, error) {
	c.in.writes.Add(1)
	c.in.bytes.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// Measure runs once repeats times, and returns the averages of CPU time, wall time, allocations and writes to l. The CPU time
// includes the collection of the garbage of once, but not of earlier garbage.
func Measure(l *Listener, repeats int, once func() error) (Figures, error) {
	if err := once(); err != nil { // warms pools and connections
		return Figures{}, err
	}
	runtime.GC()
	debug.FreeOSMemory()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	writes, bytes, begun, start := l.writes.Load(), l.bytes.Load(), cpu(), time.Now()
	for range repeats {
		if err := once(); err != nil {
			return Figures{}, err
		}
	}
	took := time.Since(start)
	runtime.GC()
	used := cpu() - begun
	runtime.ReadMemStats(&after)
	n := int64(repeats)
	return Figures{
		CPUNanoseconds: used / n, Nanoseconds: took.Nanoseconds() / n, Mallocs: int64(after.Mallocs-before.Mallocs) / n,
		Writes: (l.writes.Load() - writes) / n, Bytes: (l.bytes.Load() - bytes) / n,
	}, nil
}

// cpu returns the CPU time of this process, user and system, in nanoseconds.
func cpu() int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // cannot fail for the process itself
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// Digest hashes labels and chunks, so that two streams can be compared.
type Digest struct {
	Hash hash.Hash
	buf  []byte
}

// Label adds one label.
func (d *Digest) Label(name, value string) {
	d.buf = append(binary.AppendUvarint(d.buf, uint64(len(name))), name...)
	d.buf = append(binary.AppendUvarint(d.buf, uint64(len(value))), value...)
}

// Chunk adds one chunk.
func (d *Digest) Chunk(minMS, maxMS int64, encoding byte, data []byte) {
	d.buf = binary.AppendVarint(d.buf, minMS)
	d.buf = binary.AppendVarint(d.buf, maxMS)
	d.buf = append(d.buf, encoding)
	d.buf = append(binary.AppendUvarint(d.buf, uint64(len(data))), data...)
}

// End ends a series.
func (d *Digest) End() {
	d.Hash.Write(append(d.buf, 0xFF))
	d.buf = d.buf[:0]
}

// String returns the digest of all series.
func (d *Digest) String() string { return hex.EncodeToString(d.Hash.Sum(nil)) }
