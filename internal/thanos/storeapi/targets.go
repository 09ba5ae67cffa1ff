package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// Targets are the targets of a store's Prometheus: those scraped and those dropped by relabelling.
type Targets struct {
	Active  []ActiveTarget
	Dropped []labels.Labels // labels as discovered
}

// ActiveTarget is a scraped target. The names in JSON are those of Prometheus' API.
type ActiveTarget struct {
	Discovered        labels.Labels `json:"discoveredLabels"`
	Labels            labels.Labels `json:"labels"`
	ScrapePool        string        `json:"scrapePool"`
	ScrapeURL         string        `json:"scrapeUrl"`
	GlobalURL         string        `json:"globalUrl"`
	Health            string        `json:"health"` // up, down or unknown
	LastError         string        `json:"lastError"`
	LastScrape        time.Time     `json:"lastScrape"`
	LastScrapeSeconds float64       `json:"lastScrapeDuration"`
}

// TargetsRequest selects targets.
type TargetsRequest struct {
	State          string // active, dropped or any
	AbortOnPartial bool
}

// listMax bounds the targets, the exemplars, the metrics, or the rules and alerts that one store may return.
const listMax = 1 << 20

// Targets returns the targets of a store. The whole response is in memory; more than listMax targets and warnings are
// ErrLimit.
func (c *Client) Targets(ctx context.Context, r TargetsRequest) (found Targets, warnings []string, err error) {
	request := &apipb.TargetsRequest{
		State:                   apipb.TargetsRequest_State(apipb.TargetsRequest_State_value[strings.ToUpper(r.State)]),
		PartialResponseStrategy: int32(strategy(r.AbortOnPartial)),
	}
	err = receive(ctx, c, "/thanos.Targets/Targets", request, func(msg *apipb.TargetsResponse) error {
		if w := msg.GetWarning(); w != "" {
			warnings = append(warnings, w)
		}
		for _, t := range msg.GetTargets().GetActiveTargets() {
			found.Active = append(found.Active, ActiveTarget{
				Discovered: labelsIn(t.DiscoveredLabels), Labels: labelsIn(t.Labels), ScrapePool: t.ScrapePool,
				ScrapeURL: t.ScrapeUrl, GlobalURL: t.GlobalUrl,
				Health: healthOf(t.Health), LastError: t.LastError, LastScrape: timeOf(t.LastScrape),
				LastScrapeSeconds: t.LastScrapeDuration,
			})
		}
		for _, t := range msg.GetTargets().GetDroppedTargets() {
			found.Dropped = append(found.Dropped, labelsIn(t.DiscoveredLabels))
		}
		return checkListLen(len(found.Active)+len(found.Dropped)+len(warnings), "targets")
	})
	return found, warnings, err
}

// receive sends the only message of a call and passes every response to take, until
// the stream ends or take returns an error.
func receive[M any](ctx context.Context, c *Client, method string, request any, take func(*M) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.stream(ctx, method, request, c.list...)
	if err != nil {
		return fromStatus(err)
	}
	for bytes := 0; ; {
		msg := new(M)
		if err := stream.RecvMsg(msg); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fromStatus(err)
		}
		if m, ok := any(msg).(proto.Message); ok {
			bytes += proto.Size(m)
		}
		if bytes > listBytesMax {
			return fmt.Errorf("%w: more than %d bytes", ErrLimit, listBytesMax)
		}
		if err := take(msg); err != nil {
			return err
		}
	}
}

func checkListLen(n int, what string) error {
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

// timeOf returns the zero time for nil.
func timeOf(t *apipb.Timestamp) time.Time {
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
