package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	profileapi "github.com/ferula-io/ferula/internal/profiles/api"
)

// profilesScenario is a server that receives profiles of all sizes, with limits that
// change from start to start.
type profilesScenario struct {
	env   *environment
	rng   *rand.Rand
	srv   *server
	model *profileModel
	begin time.Time
	old   time.Time // when the only block of the directory was written, before the first start; zero: there is none
}

const (
	profileTenant  = "sim"
	profileRSSMax  = 900 // MiB; heads and queries together use far less
	profileService = "service"
	oldService     = "old"
)

func newProfilesScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	srv, err := newServer(e, filepath.Join(dir, "serve"), serveConfig{retentionFile: "1y"})
	if err != nil {
		return nil, err
	}
	w := &profilesScenario{env: e, rng: rng, srv: srv, model: newProfileModel(), begin: time.Now()}
	w.setLimits(rng)
	if rng.IntN(2) == 0 {
		// As if the clock was ahead of the data: it is older than the retention time, and none is younger.
		w.old = w.begin.Add(-20 * 24 * time.Hour)
		return w, w.restore(rng, w.old, oldService)
	}
	return w, nil
}

// restore puts a block that another server has written into the directory of the server, which is not running.
func (w *profilesScenario) restore(rng *rand.Rand, at time.Time, service string) error {
	into := filepath.Join(w.srv.dir, "data", "profiles", profileapi.AnonymousTenant)
	total, err := writeForeignBlock(w.env.ctx, into, filepath.Join(w.srv.dir, "foreign"), at, service,
		stacks{1 + rng.IntN(200), 1 + rng.IntN(60), 1 + rng.Int64N(1000)})
	w.model.acked[service] += total
	return err
}

// setLimits raises limits or leaves them at their defaults.
func (w *profilesScenario) setLimits(rng *rand.Rand) {
	raise := rng.IntN(2) == 0 || w.srv.cfg.profileFlags == nil // so that no two consecutive starts have the defaults
	w.srv.cfg.profileFlags = nil
	if raise {
		w.srv.cfg.profileFlags = []string{"--profiles.limit.samples=1000000", "--profiles.limit.symbols=1000000",
			"--profiles.limit.decompressed-size=128MB", "--profiles.limit.rate=512MB", "--profiles.limit.burst=512MB", "--profiles.limit.profile-size=64MB"}
	}
}

func (w *profilesScenario) start() error {
	w.srv.mintMS = w.begin.UnixMilli()
	return w.srv.run()
}

// again starts the server again with other limits.
func (w *profilesScenario) again(rng *rand.Rand) error {
	w.setLimits(rng)
	blocks, err := filepath.Glob(filepath.Join(w.srv.dir, "data", "profiles", profileapi.AnonymousTenant, "0*"))
	if len(blocks) > 1 {
		w.old = time.Time{} // a head was written as a block: the retention applies to the old one
	}
	return errors.Join(err, w.srv.run())
}

func (w *profilesScenario) stop() error { return w.srv.stop() }

func (w *profilesScenario) steps() []step {
	first := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
	// Within all limits: without it, the limits may refuse every push of a scenario, and nothing would be compared.
	list := []step{{"push a small profile", func() error { return w.push(first, stacks{10, 5, 1}) }}}
	if !w.old.IsZero() {
		list = append(list, step{"wait for the retention", func() error {
			time.Sleep(2500 * time.Millisecond) // the store maintains its blocks every 2 s
			return nil
		}})
	}
	for range 5 + w.rng.IntN(5) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		switch rng.IntN(8) {
		case 0:
			list = append(list, step{"push small profiles", func() error { return w.push(rng, stacks{1 + rng.IntN(200), 1 + rng.IntN(60), 1 + rng.Int64N(1000)}) }})
		case 1, 2:
			list = append(list, step{"push a wide profile", func() error { return w.push(rng, stacks{pick(rng, 15_000, 60_000, 510_000), 2, 7}) }})
		case 3:
			list = append(list, step{"push deep stacks", func() error { return w.push(rng, stacks{pick(rng, 50, 250), pick(rng, 900, 4000), 3}) }})
		case 6:
			list = append(list, step{"senders that stall", func() error { return w.stalledSenders(rng) }})
		case 4:
			list = append(list, step{"kill, start with other limits", func() error {
				w.srv.kill()
				return w.again(rng)
			}})
		case 7:
			list = append(list, step{"kill, restore a block of another server", func() error {
				w.srv.kill()
				w.old = time.Time{} // a later block was written: the retention applies to the old one
				return errors.Join(w.restore(rng, time.Now(), fmt.Sprint(profileService, rng.IntN(3))), w.srv.run())
			}})
		case 5:
			list = append(list, step{"stop, start with other limits", func() error {
				if err := w.srv.stop(); err != nil {
					return err
				}
				return w.again(rng)
			}})
		}
	}
	return list
}

// stalledSenders sends pushes whose bodies do not end. In the meantime another push must be
// acknowledged.
func (w *profilesScenario) stalledSenders(rng *rand.Rand) error {
	release, err := w.srv.stall(60, "POST /push.v1.PusherService/Push HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100000", []byte(`{"series":[`))
	if err != nil {
		return err
	}
	defer release()
	unknown := len(slices.Concat(slices.Collect(maps.Values(w.model.maybe))...))
	if err := w.push(rng, stacks{10, 5, 1}); err != nil {
		return err
	}
	if len(slices.Concat(slices.Collect(maps.Values(w.model.maybe))...)) > unknown {
		return errors.New("a push got no acknowledgement while other senders stalled")
	}
	return nil
}

func (w *profilesScenario) push(rng *rand.Rand, s stacks) error {
	raw, err := s.encode(time.Now())
	if err != nil {
		return err
	}
	service := fmt.Sprint(profileService, rng.IntN(3))
	err = pushProfile(w.env, w.srv.base(), pick(rng, "json", "connect", "grpc", "grpc-web"), profileTenant, service, raw)
	switch {
	case err == nil:
		w.model.acked[service] += s.total()
	case errors.Is(err, errRefused): // over a limit: none of its samples may be stored
	default:
		w.model.maybe[service] = append(w.model.maybe[service], s.total())
	}
	return nil
}

func (w *profilesScenario) check() error {
	if err := w.srv.proc.unexpectedExit(); err != nil {
		return err
	}
	if !w.old.IsZero() {
		total, err := profileTotal(w.env.ctx, w.env.client, w.srv.base(), profileTenant, oldService,
			w.old.Add(-time.Minute).UnixMilli(), w.old.Add(time.Minute).UnixMilli())
		if err := errors.Join(err, w.model.check(oldService, total)); err != nil {
			return err
		}
	}
	from, to := w.begin.Add(-time.Minute).UnixMilli(), time.Now().Add(time.Minute).UnixMilli()
	for i := range 3 {
		service := fmt.Sprint(profileService, i)
		total, err := profileTotal(w.env.ctx, w.env.client, w.srv.base(), profileTenant, service, from, to)
		if err != nil {
			return err
		}
		if err := w.model.check(service, total); err != nil {
			return err
		}
		if total > 0 {
			w.env.proved(1)
		}
	}
	if mib, err := w.srv.proc.rssAnonMiB(); err != nil || mib > profileRSSMax {
		return fmt.Errorf("%d MiB of anonymous memory, limit %d (%v)", mib, profileRSSMax, err)
	}
	return nil
}
