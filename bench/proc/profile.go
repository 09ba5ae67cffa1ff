package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// ErrLate means that work took longer than the profile of it.
var ErrLate = errors.New("work outlasted its profile")

// Stage names the CPU time spent in, or called from, functions whose names contain one of In.
type Stage struct {
	Name string
	In   []string
}

// Other is the stage of samples that match no stage.
const Other = "other"

// profileSlack is added to the duration of a profile on both sides of the work: a profile starts before the work and must
// not end before it.
const profileSlack = 500 * time.Millisecond

// Stages takes a CPU profile of the server during work, and returns the CPU time of each stage. lasts is the expected
// duration of work. A sample belongs to the stage of the innermost function that matches one. If a function matches several
// stages, the first one counts.
func (s *Server) Stages(ctx context.Context, lasts time.Duration, stages []Stage, work func() error) (map[string]time.Duration, error) {
	seconds := int(math.Ceil((lasts*3/2 + 2*profileSlack).Seconds()))
	type fetched struct {
		text []byte
		err  error
	}
	profiled := make(chan fetched, 1)
	go func() {
		text, _, err := s.Fetch(ctx, Request{Path: fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds)})
		profiled <- fetched{text, err}
	}()
	time.Sleep(profileSlack) // until the profile has started
	begun := time.Now()
	err := work()
	took := time.Since(begun)
	got := <-profiled
	if err := errors.Join(err, got.err); err != nil {
		return nil, err
	}
	if took+2*profileSlack > time.Duration(seconds)*time.Second {
		return nil, fmt.Errorf("%s: %w: %v of %d s", s.name, ErrLate, took, seconds)
	}
	p, err := profile.Parse(bytes.NewReader(got.text))
	if err != nil {
		return nil, fmt.Errorf("%s: profile: %w", s.name, err)
	}
	return attribute(p, stages)
}

func attribute(p *profile.Profile, stages []Stage) (map[string]time.Duration, error) {
	value := -1
	for i, t := range p.SampleType {
		if t.Type == "cpu" && t.Unit == "nanoseconds" {
			value = i
		}
	}
	if value < 0 {
		return nil, fmt.Errorf("profile: cpu: %w", ErrMissing)
	}
	spent := map[string]time.Duration{}
	for _, sample := range p.Sample {
		spent[stageOf(sample, stages)] += time.Duration(sample.Value[value])
	}
	return spent, nil
}

func stageOf(sample *profile.Sample, stages []Stage) string {
	for _, location := range sample.Location { // the innermost first
		for _, line := range location.Line {
			if line.Function == nil {
				continue
			}
			for _, stage := range stages {
				for _, in := range stage.In {
					if strings.Contains(line.Function.Name, in) {
						return stage.Name
					}
				}
			}
		}
	}
	return Other
}
