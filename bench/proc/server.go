package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/pprof/profile"
)

// ErrDied means that a server ended although it was not stopped.
var ErrDied = errors.New("server ended by itself")

const (
	readyTimeout = 60 * time.Second
	termTimeout  = 20 * time.Second
	logTailBytes = 2000
)

// Spec describes how a server is started.
type Spec struct {
	Name  string                     // for messages and the log's file name
	Path  string                     // the program
	Args  func(addr string) []string // its flags, given the loopback address to listen on
	Env   []string                   // in addition to PATH and HOME; nothing else is inherited
	Ready string                     // path that returns 200 when the server is ready; empty: it is when it accepts connections
	Log   string                     // file for its output
}

// Server is a running process that Start started. Stop must be called, by the goroutine that uses it.
type Server struct {
	*Client
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{} // closed once the process has ended and err is set
	err       error
}

// Start starts a server on a free loopback port and waits until it is ready.
func Start(ctx context.Context, spec Spec) (*Server, error) {
	addr, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return nil, err
	}
	out, err := os.Create(spec.Log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(spec.Path, spec.Args(addr)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, spec.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	// If the bench is killed, its servers must end, too. ^C must not reach the servers directly: Stop ends them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", spec.Name, err)
	}
	s := &Server{Client: NewClient("http://" + addr), name: spec.Name, log: spec.Log, cmd: cmd, ended: make(chan struct{})}
	go func() {
		s.err = cmd.Wait()
		close(s.ended)
	}()
	if err := s.waitReady(ctx, spec.Ready); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Pid returns the process id.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Stop ends the process by SIGTERM, or by SIGKILL if it ignores that. It returns an error if the server had ended before
// or exits with an error.
func (s *Server) Stop() error {
	s.Client.Close()
	select {
	case <-s.ended:
		return fmt.Errorf("%s: %w (%v); its log ends with:\n%s", s.name, ErrDied, s.err, s.logTail())
	default:
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	select {
	case <-s.ended:
	case <-time.After(termTimeout):
		_ = s.cmd.Process.Kill() // may have ended in between
		<-s.ended
		return fmt.Errorf("%s: killed: SIGTERM had no effect for %v", s.name, termTimeout)
	}
	var exit *exec.ExitError
	if errors.As(s.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
		return nil // a program without a handler
	}
	if s.err != nil {
		return fmt.Errorf("%s: %w; its log ends with:\n%s", s.name, s.err, s.logTail())
	}
	return nil
}

// Kill ends the process by SIGKILL. Stop need not be called then.
func (s *Server) Kill() error {
	s.Client.Close()
	err := s.cmd.Process.Kill()
	<-s.ended
	return err
}

// CPU returns the CPU time that the server has used.
func (s *Server) CPU() (time.Duration, error) { return CPU(s.Pid()) }

// TimesDuring returns the user and system CPU time that the server uses for work, after a collection of earlier garbage. The
// resolution is 10 ms: see CPUDuring.
func (s *Server) TimesDuring(ctx context.Context, work func() error) (user, sys time.Duration, err error) {
	if err := s.GC(ctx); err != nil {
		return 0, 0, err
	}
	user, sys, err = Times(s.Pid())
	if err != nil {
		return 0, 0, err
	}
	if err := work(); err != nil {
		return 0, 0, err
	}
	user2, sys2, err := Times(s.Pid())
	return user2 - user, sys2 - sys, err
}

// Anon returns the server's resident anonymous memory in bytes.
func (s *Server) Anon() (int64, error) { return Anon(s.Pid()) }

// Peak returns the highest resident memory of the server so far in bytes, mapped files included.
func (s *Server) Peak() (int64, error) { return memory(s.Pid(), "VmHWM") }

// IO returns the server's counts of reads and writes.
func (s *Server) IO() (IO, error) { return ReadIO(s.Pid()) }

// GC forces a garbage collection in the server.
func (s *Server) GC(ctx context.Context) error {
	_, err := s.Get(ctx, Request{Path: "/debug/pprof/heap?gc=1"}, io.Discard)
	return err
}

// Live forces a garbage collection in the server and returns the bytes of its heap that are in use then.
func (s *Server) Live(ctx context.Context) (int64, error) { return s.memStat(ctx, "HeapAlloc") }

// memStat forces a garbage collection in the server and returns a figure of its runtime. The request itself allocates: see
// MallocsDuring.
func (s *Server) memStat(ctx context.Context, name string) (int64, error) {
	text, _, err := s.Fetch(ctx, Request{Path: "/debug/pprof/heap?gc=1&debug=1"})
	if err != nil {
		return 0, err
	}
	return parseMemStat(text, name)
}

// CPUDuring returns the CPU time that the server uses for work. It includes the collection of garbage that work has
// made, but not of earlier garbage.
func (s *Server) CPUDuring(ctx context.Context, work func() error) (time.Duration, error) {
	if err := s.GC(ctx); err != nil {
		return 0, err
	}
	before, err := s.CPU()
	if err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	if err := s.GC(ctx); err != nil {
		return 0, err
	}
	after, err := s.CPU()
	return after - before, err
}

// MallocsDuring returns the number of objects that the server allocates for work, without those of the measuring request.
func (s *Server) MallocsDuring(ctx context.Context, work func() error) (int64, error) {
	var at [3]int64
	for i := range at {
		if i == 2 {
			if err := work(); err != nil {
				return 0, err
			}
		}
		n, err := s.memStat(ctx, "Mallocs")
		if err != nil {
			return 0, err
		}
		at[i] = n
	}
	overhead := at[1] - at[0]
	return max(0, at[2]-at[1]-overhead), nil
}

// ProfileDuring returns a CPU profile of the server over some seconds that begin with work, and work's error.
func (s *Server) ProfileDuring(ctx context.Context, seconds int, work func() error) (*profile.Profile, error) {
	var body []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		body, _, err = s.Fetch(ctx, Request{Path: fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds)})
	}()
	failed := work()
	if <-done; errors.Join(failed, err) != nil {
		return nil, errors.Join(failed, err)
	}
	return profile.ParseData(body)
}

func (s *Server) waitReady(ctx context.Context, path string) error {
	return Until(ctx, readyTimeout, 20*time.Millisecond, s.name+" is ready", func() error {
		select {
		case <-s.ended:
			return fmt.Errorf("%w: %s does not start", errFinal, s.name)
		default:
		}
		if path == "" {
			c, err := net.Dial("tcp", s.Address())
			if err == nil {
				err = c.Close()
			}
			return err
		}
		_, err := s.Get(ctx, Request{Path: path}, io.Discard)
		return err
	})
}

// Address returns the server's address, without a scheme.
func (s *Server) Address() string { return strings.TrimPrefix(s.URL(), "http://") }

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTailBytes):])
}

// FreeAddress returns a loopback address whose port is free now. The port is not reserved.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
