package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// pushUntilGone uploads profiles of one stack each, each with another function, until the
// server no longer responds. It returns the number of acknowledged uploads.
func (p *process) pushUntilGone(t *testing.T, round, writer int, first func()) int {
	client := &http.Client{Timeout: 10 * time.Second}
	for n := 0; ; n++ {
		resp, err := client.Post(fmt.Sprintf("%s/ingest?name=killed%%7Bwriter=w%d%%7D&units=objects", p.base, writer), "text/plain", strings.NewReader(fmt.Sprintf("main;f_%d_%d_%d 1", round, writer, n)))
		if err != nil {
			return n
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("writer %d: status %d", writer, resp.StatusCode)
			return n
		}
		if n == 0 {
			first()
		}
	}
}

func TestProfiles_KillLosesNoAcknowledgedProfileAndDuplicatesNone(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	const writers = 4
	path, dir := binary(t), t.TempDir()
	args := []string{"serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--storage.tsdb.path=" + dir, "--no-profiles.self", "--profiles.max-nodes=1000000", "--log.level=info"}
	var acknowledged [][writers]int
	for round := range rounds {
		p := startProcess(t, path, args...)
		var counts [writers]int
		var pushing, begun sync.WaitGroup
		begun.Add(writers)
		for w := range writers {
			first := sync.OnceFunc(begun.Done)
			pushing.Go(func() {
				defer first()
				counts[w] = p.pushUntilGone(t, round, w, first)
			})
		}
		begun.Wait()
		time.Sleep(time.Duration(50+round*20) * time.Millisecond)
		_ = p.signal(syscall.SIGKILL)
		pushing.Wait()
		acknowledged = append(acknowledged, counts)
	}
	p := startProcess(t, path, args...)
	values := p.selfByName("memory:inuse_objects:count:space:bytes", `{service_name="killed"}`)
	total := 0
	for round, counts := range acknowledged {
		for w, n := range counts {
			total += n
			for i := range n {
				if name := fmt.Sprintf("f_%d_%d_%d", round, w, i); values[name] != 1 {
					t.Fatalf("acknowledged %s is stored %d times", name, values[name])
				}
			}
			if extra := fmt.Sprintf("f_%d_%d_%d", round, w, n); values[extra] > 1 {
				t.Errorf("%s is stored %d times", extra, values[extra])
			}
		}
	}
	if total < rounds*writers {
		t.Errorf("only %d profiles were acknowledged", total)
	}
	t.Logf("%d profiles acknowledged in %d rounds", total, rounds)
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// selfByName returns the self values of a flame graph, summed by function.
func (s *server) selfByName(profileType, selector string) map[string]int64 {
	f := s.flame(profileType, selector)
	out := map[string]int64{}
	for _, level := range f.Flamegraph.Levels {
		for i := 0; i+3 < len(level.Values); i += 4 {
			self, err := strconv.ParseInt(level.Values[i+2], 10, 64)
			name, err2 := strconv.Atoi(level.Values[i+3])
			if err != nil || err2 != nil {
				s.t.Fatal(level.Values)
			}
			out[f.Flamegraph.Names[name]] += self
		}
	}
	return out
}
