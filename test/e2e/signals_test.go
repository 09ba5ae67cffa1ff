package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProcess_SIGHUPEndsNone sends SIGHUP to every process. The peers do not end at the
// signal, and log rotation may send it to every process.
func TestProcess_SIGHUPEndsNone(t *testing.T) {
	for name, args := range map[string][]string{
		"query":          {"--grpc-address=127.0.0.1:0"},
		"query-frontend": {"--query-frontend.downstream-url=http://127.0.0.1:9"},
		"sidecar":        {"--grpc-address=127.0.0.1:0", "--prometheus.url=http://127.0.0.1:9", "--tsdb.path=" + t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeAddress(t)
			p := startProgram(t, address, nil, append([]string{name, "--http-address=" + address}, args...)...)
			if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			eventually(t, 60*time.Second, "the signal in the log", func() bool {
				select {
				case <-p.ended:
					t.Fatalf("SIGHUP ended the process:\n%s", p.output)
				default:
				}
				return strings.Contains(p.output.String(), "SIGHUP")
			})
			if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			<-p.ended
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.output)
			}
		})
	}
}
