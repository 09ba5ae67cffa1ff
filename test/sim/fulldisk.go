package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// fullDiskScenario is a server whose data directory is on a file system of a few MiB, which
// fills up and is partly emptied again. Every acknowledged write or push must be stored, even if
// later ones are refused. The process must continue, or start again once there is free space.
type fullDiskScenario struct {
	*storageScenario
	profiles *profilesScenario
	mounted  bool
	full     bool
}

// errCannot means that the machine does not allow a scenario. Its text is the reason.
var errCannot = errors.New("the scenario is skipped")

const (
	diskMiB   = 24
	unchecked = "--storage.tsdb.min-free=0"
)

func newFullDiskScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	srv, err := newServer(e, filepath.Join(dir, "serve"), serveConfig{retentionFile: "1y", window: pick(rng, 0, 3*time.Hour), flags: []string{pick(rng, unchecked, unchecked, "--storage.tsdb.min-free=256MiB")}})
	if err != nil {
		return nil, err
	}
	w := &fullDiskScenario{storageScenario: &storageScenario{env: e, rng: rng, srv: srv, dir: dir}}
	w.profiles = &profilesScenario{env: e, rng: rng, srv: srv, model: newProfileModel(), begin: time.Now()}
	return w, nil
}

func (w *fullDiskScenario) data() string { return filepath.Join(w.srv.dir, "data") }

func (w *fullDiskScenario) start() error {
	if err := syscall.Mount("tmpfs", w.data(), "tmpfs", 0, fmt.Sprintf("size=%dm", diskMiB)); err != nil {
		return fmt.Errorf("%w: a tmpfs cannot be mounted: %w", errCannot, err)
	}
	w.mounted = true
	w.headMS = time.Now().Add(-10 * time.Hour).UnixMilli()
	w.srv.mintMS = w.headMS
	return w.srv.run()
}

func (w *fullDiskScenario) stop() error {
	err := w.srv.stop()
	if err != nil {
		w.srv.kill()
	}
	if w.mounted {
		err = errors.Join(err, syscall.Unmount(w.data(), syscall.MNT_DETACH))
	}
	return err
}

func (w *fullDiskScenario) steps() []step {
	p := plan{rng: w.rng}
	push := func(rng *rand.Rand) error {
		return w.profiles.push(rng, stacks{1 + rng.IntN(2000), 1 + rng.IntN(60), 1 + rng.Int64N(1000)})
	}
	p.add("write in order", w.writeInOrder)
	for range 8 + w.rng.IntN(8) {
		switch w.rng.IntN(9) {
		case 0:
			p.add("write in order", w.writeInOrder)
		case 1:
			p.add("write many series", w.writeWide)
		case 2:
			p.add("write late", w.writeLate)
		case 3, 4:
			p.add("push a profile", push)
		case 5, 6:
			p.add("the disk is full", w.fill)
		case 7:
			p.do("the disk has room", w.empty)
		case 8:
			p.do("kill and start", w.restart)
		}
	}
	p.add("the disk has room, kill and start, write and push", func(rng *rand.Rand) error {
		if err := w.empty(); err != nil {
			return err
		}
		if err := w.restart(); err != nil {
			return err
		}
		return errors.Join(w.writeAcknowledged(rng), push(rng))
	})
	return p.list
}

// writeWide writes a request that needs more bytes than a full disk has free.
func (w *fullDiskScenario) writeWide(rng *rand.Rand) error {
	times := w.timestamps(rng)
	if len(times) == 0 {
		return nil
	}
	w.headMS = times[0]
	var list []prompb.TimeSeries
	for id := range 500 + rng.IntN(1000) {
		list = append(list, floatSeries(metricName, map[string]string{"kind": "wide", "id": fmt.Sprint(id)}, randomPoints(rng, times[:1])))
	}
	return w.srv.putAll(list)
}

func (w *fullDiskScenario) ballast() string { return filepath.Join(w.data(), "ballast") }

// fill fills the disk, except for a few KiB at most.
func (w *fullDiskScenario) fill(rng *rand.Rand) error {
	f, err := os.OpenFile(w.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			return err
		}
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w.full = true
	return f.Truncate(max(0, info.Size()-int64(pick(rng, 0, 0, 1, 4, 16))*4096))
}

func (w *fullDiskScenario) empty() error {
	w.full = false
	if err := os.Remove(w.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// restart kills the server and starts it. On a full disk it waits, or may exit with an error if it does not check the
// free space. Once there is free space it must start.
func (w *fullDiskScenario) restart() error {
	w.srv.kill()
	if w.full && !slices.Contains(w.srv.cfg.flags, unchecked) {
		emptied := make(chan error, 1)
		time.AfterFunc(time.Second, func() { emptied <- w.empty() })
		return errors.Join(w.srv.run(), <-emptied)
	}
	err := w.srv.run()
	if err == nil || !w.full {
		return err
	}
	if !strings.Contains(err.Error(), "no space left") {
		return err
	}
	if err := w.empty(); err != nil {
		return err
	}
	return w.srv.run()
}

func (w *fullDiskScenario) check() error {
	if err := w.srv.proc.unexpectedExit(); err != nil {
		// The database panics if it cannot write a chunk of the head.
		if !w.full || !strings.Contains(err.Error(), "no space left") {
			return err
		}
		if err := w.restart(); err != nil {
			return err
		}
	}
	list := []string{pick(w.rng, formats...)}
	if w.full { // a read of the directory may need free space
		list = nil
	}
	return errors.Join(w.srv.compareAll(list, false), w.profiles.check())
}
