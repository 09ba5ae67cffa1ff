// Command go pushes profiles of itself with Grafana's Go SDK to the server whose address
// is the argument, and exits once they are sent.
package main

import (
	"log"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/grafana/pyroscope-go"
)

//go:noinline
func hotGo(until time.Time) (live [][]byte, n int) {
	for time.Now().Before(until) {
		for i := range 100_000 {
			n += i * i
		}
		if len(live) < 64 {
			live = append(live, make([]byte, 1<<20))
		}
	}
	return live, n
}

func main() {
	runtime.SetMutexProfileFraction(1)
	p, err := pyroscope.Start(pyroscope.Config{
		ApplicationName: "go.client", ServerAddress: os.Args[1], UploadRate: 2 * time.Second, Tags: map[string]string{"region": "eu"},
		ProfileTypes: []pyroscope.ProfileType{
			pyroscope.ProfileCPU, pyroscope.ProfileAllocObjects, pyroscope.ProfileAllocSpace, pyroscope.ProfileInuseObjects, pyroscope.ProfileInuseSpace,
			pyroscope.ProfileGoroutines, pyroscope.ProfileMutexCount, pyroscope.ProfileMutexDuration,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	mu.Lock()
	go func() { mu.Lock(); defer mu.Unlock() }()
	live, _ := hotGo(time.Now().Add(3 * time.Second))
	mu.Unlock()
	hotGo(time.Now().Add(2 * time.Second))
	runtime.KeepAlive(live)
	p.Flush(true)
	if err := p.Stop(); err != nil {
		log.Fatal(err)
	}
}
