package storeapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/streams"
)

// worker is a process that runs tasks of package streams. It holds one file of series in memory at a time.
type worker struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// startWorker starts a program; close must be called.
func startWorker(p peer.Program) (*worker, error) {
	cmd := exec.Command(p.Path)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, peer.RuntimeEnv()...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return &worker{p.Name, cmd, in, bufio.NewReader(out)}, nil
}

// taskTimeout is far above the duration of any task.
const taskTimeout = 3 * time.Minute

// do runs a task in the worker. Tasks run one at a time; after taskTimeout the worker is killed.
func (w *worker) do(ctx context.Context, t streams.Task) (f streams.Figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })()
	line, err := json.Marshal(t)
	if err != nil {
		return f, err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return f, fmt.Errorf("%s: %w", w.name, err)
	}
	result, err := w.out.ReadBytes('\n')
	if err != nil {
		return f, fmt.Errorf("%s: %w", w.name, errors.Join(ctx.Err(), err))
	}
	if err := json.Unmarshal(result, &f); err != nil {
		return f, fmt.Errorf("%s: %w", w.name, err)
	}
	if f.Error != "" {
		return f, fmt.Errorf("%s: %s", w.name, f.Error)
	}
	return f, nil
}

func (w *worker) close() error {
	_ = w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}
