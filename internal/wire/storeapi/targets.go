package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/apipb"
)

// Targets are what a store's Prometheus scrapes, and what its relabelling dropped.
type Targets struct {
	Active  []ActiveTarget
	Dropped []labels.Labels // as they were discovered
}

// ActiveTarget is one target that is scraped.
type ActiveTarget struct {
	Discovered, Labels                       labels.Labels
	ScrapePool, ScrapeURL, GlobalURL, Health string // Health is up, down or unknown
	LastError                                string
	LastScrape                               time.Time
	LastScrapeSeconds                        float64
}

// TargetsRequest asks for targets.
type TargetsRequest struct {
	State          string // active, dropped or any
	AbortOnPartial bool
}

// listMax bounds how many targets, or rules and alerts, one store may list.
const listMax = 1 << 20

// Targets asks for targets, all of which are in memory then.
func (c *Client) Targets(ctx context.Context, r TargetsRequest) (found Targets, warnings []string, err error) {
	request := &apipb.TargetsRequest{
		State: apipb.TargetsRequest_State(apipb.TargetsRequest_State_value[strings.ToUpper(r.State)]), PartialResponseStrategy: int32(strategy(r.AbortOnPartial)),
	}
	err = receive(ctx, c, "/thanos.Targets/Targets", request, func(msg *apipb.TargetsResponse) error {
		if w := msg.GetWarning(); w != "" {
			warnings = append(warnings, w)
		}
		for _, t := range msg.GetTargets().GetActiveTargets() {
			found.Active = append(found.Active, ActiveTarget{
				Discovered: labelsIn(t.DiscoveredLabels), Labels: labelsIn(t.Labels), ScrapePool: t.ScrapePool, ScrapeURL: t.ScrapeUrl, GlobalURL: t.GlobalUrl,
				Health: healthOf(t.Health), LastError: t.LastError, LastScrape: momentOf(t.LastScrape), LastScrapeSeconds: t.LastScrapeDuration,
			})
		}
		for _, t := range msg.GetTargets().GetDroppedTargets() {
			found.Dropped = append(found.Dropped, labelsIn(t.DiscoveredLabels))
		}
		return within(len(found.Active)+len(found.Dropped)+len(warnings), "targets")
	})
	return found, warnings, err
}

// receive sends the one message of a call and hands each answer to take, until the
// stream ends or take fails.
func receive[M any](ctx context.Context, c *Client, method string, request any, take func(*M) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.stream(ctx, method, request)
	if err != nil {
		return fromStatus(err)
	}
	for {
		msg := new(M)
		if err := stream.RecvMsg(msg); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fromStatus(err)
		}
		if err := take(msg); err != nil {
			return err
		}
	}
}

func within(n int, what string) error {
	if n > listMax {
		return fmt.Errorf("%w: more than %d %s", ErrLimit, listMax, what)
	}
	return nil
}

func healthOf(h apipb.TargetHealth) string {
	switch h {
	case apipb.TargetHealth_UP:
		return "up"
	case apipb.TargetHealth_DOWN:
		return "down"
	}
	return "unknown"
}

// momentOf is the zero time where there is none.
func momentOf(t *apipb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Unix(t.Seconds, int64(t.Nanos)).UTC()
}

func labelsIn(set *apipb.LabelSet) labels.Labels {
	b := labels.NewScratchBuilder(len(set.GetLabels()))
	for _, l := range set.GetLabels() {
		b.Add(l.GetName(), l.GetValue())
	}
	b.Sort()
	return b.Labels()
}
