// Command floor is a lower bound of the cost to serve chunks. It maps the chunk files of a directory into memory, copies
// them to a buffer, computes two checksums, as reading and framing a chunk does, and writes them to the client. The output
// is not a remote read response, only as many bytes.
//
//	GET /floor   all chunk files of -dir
package main

import (
	"flag"
	"fmt"
	"hash/crc32"
	"net/http"
	_ "net/http/pprof" // the bench requests garbage collections
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const writeBytes = 64 << 10

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	dir := flag.String("dir", "", "data folder with blocks")
	flag.Parse()
	files, err := mapped(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
	table, buffer := crc32.MakeTable(crc32.Castagnoli), make([]byte, writeBytes)
	http.HandleFunc("/-/ready", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/floor", func(w http.ResponseWriter, _ *http.Request) { // for one reader at a time
		for _, file := range files {
			for len(file) > 0 {
				n := copy(buffer, file)
				if crc32.Checksum(file[:n], table) != crc32.Checksum(buffer[:n], table) {
					panic(http.ErrAbortHandler)
				}
				if _, err := w.Write(buffer[:n]); err != nil {
					panic(http.ErrAbortHandler)
				}
				file = file[n:]
			}
		}
	})
	if err := http.ListenAndServe(*listen, nil); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

// mapped maps the chunk files of all blocks in dir. It never unmaps them.
func mapped(dir string) ([][]byte, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*", "chunks", "*"))
	if err != nil {
		return nil, err
	}
	var files [][]byte
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		bytes, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		_ = f.Close() // the mapping remains valid
		files = append(files, bytes)
	}
	return files, nil
}
