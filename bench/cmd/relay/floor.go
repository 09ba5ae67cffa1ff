package main

import (
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const pieceBytes = 64 << 10

// floor returns a handler that writes files that are mapped into memory, through a buffer and with two checksums, as reading
// and framing a chunk does. It is for one reader at a time.
func floor(files [][]byte) http.HandlerFunc {
	table, buffer := crc32.MakeTable(crc32.Castagnoli), make([]byte, pieceBytes)
	return func(w http.ResponseWriter, _ *http.Request) {
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
