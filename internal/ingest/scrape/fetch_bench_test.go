package scrape

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

var fetchTargets = flag.Int("scrape.targets", 300, "number of targets of BenchmarkFetch")

// serveTargets listens once a target, prints the addresses and answers until its input ends. It is another process, so
// that its CPU time does not count.
func serveTargets(n int, compress bool) {
	var responses [][]byte
	for i := range 8 {
		body, encoding := []byte(benchPage(i, false, 0)), ""
		if compress {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(body)
			_ = z.Close()
			body, encoding = b.Bytes(), "Content-Encoding: gzip\r\n"
		}
		responses = append(responses, fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%sDate: x\r\nContent-Length: %d\r\n\r\n%s",
			plainText, encoding, len(body), body))
	}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		go func() {
			page := 0
			for {
				c, err := l.Accept()
				if err != nil {
					panic(err)
				}
				go func() {
					in := bufio.NewReader(c)
					for {
						line, err := in.ReadString('\n')
						if err != nil {
							return
						}
						if line == "\r\n" {
							page++
							_, _ = c.Write(responses[page%len(responses)])
						}
					}
				}()
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Each target is a connection of its own. The metrics are those of the scraping process.
func BenchmarkFetch(b *testing.B) {
	if mode := os.Getenv("SCRAPE_BENCH_TARGETS"); mode != "" {
		serveTargets(*fetchTargets, mode == "gzip")
	}
	for _, mode := range []string{"plain", "gzip"} {
		b.Run(mode, func(b *testing.B) {
			n := *fetchTargets
			serve := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkFetch$", fmt.Sprintf("-scrape.targets=%d", n))
			serve.Env = append(os.Environ(), "SCRAPE_BENCH_TARGETS="+mode)
			in, _ := serve.StdinPipe()
			out, _ := serve.StdoutPipe()
			if err := serve.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() {
				_ = in.Close()
				_ = serve.Wait()
			}()
			g := &targetgroup.Group{}
			for lines := bufio.NewScanner(out); len(g.Targets) < n && lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "127.") {
					g.Targets = append(g.Targets, model.LabelSet{model.AddressLabel: model.LabelValue(lines.Text())})
				}
			}
			cfg, err := config.Load("scrape_configs: [{job_name: j, scrape_interval: 1000h, scrape_timeout: 1m}]", slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			m, err := newManager(&scrape.Options{}, eachOwn{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			if err := m.ApplyConfig(cfg); err != nil {
				b.Fatal(err)
			}
			m.groups = map[string][]*targetgroup.Group{"j": {g}}
			m.reload()
			defer m.end()
			var loops []*loop
			for _, l := range m.pools["j"].loops {
				loops = append(loops, l)
			}
			goroutines, before := runtime.NumGoroutine(), inUse()
			for round := range 3 {
				for _, l := range loops {
					l.scrape(time.Time{}, time.Now())
					if err := l.target.LastError(); err != nil {
						b.Fatal(err)
					}
				}
				if round == 0 {
					before = inUse() - before // mostly layouts
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime()
			var wg sync.WaitGroup
			for worker := range 2 {
				wg.Go(func() {
					for i := worker; i < b.N; i += 2 {
						l := loops[i%n]
						l.scrape(time.Time{}, time.Now())
						if err := l.target.LastError(); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/scrape")
			b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/target")
			total := inUse()
			connected := total
			for _, l := range loops {
				l.fetcher.client.CloseIdleConnections()
			}
			for i := 0; i < 100 && runtime.NumGoroutine() > goroutines; i++ {
				time.Sleep(10 * time.Millisecond)
			}
			b.ReportMetric(float64(connected-inUse())/float64(n), "B/connection")
		})
	}
}

// inUse returns the bytes of live objects and stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// eachOwn gives each appender references of its own.
type eachOwn struct{}

func (eachOwn) AppenderV2(context.Context) storage.AppenderV2 { return &counting{} }
