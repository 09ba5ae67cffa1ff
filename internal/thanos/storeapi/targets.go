package storeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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
	LastError         string        `json:"lastError"`
	LastScrape        time.Time     `json:"lastScrape"`
	LastScrapeSeconds float64       `json:"lastScrapeDuration"`
	Health            string        `json:"health"` // up, down or unknown
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
	var invalid error
	warnings, err = receive(ctx, c, "/thanos.Targets/Targets", request, "targets", func(msg *apipb.TargetsResponse) int {
		active, dropped := msg.GetTargets().GetActiveTargets(), msg.GetTargets().GetDroppedTargets()
		for _, t := range active {
			found.Active = append(found.Active, ActiveTarget{
				Discovered: labelsIn(t.DiscoveredLabels), Labels: labelsIn(t.Labels), ScrapePool: t.ScrapePool,
				ScrapeURL: t.ScrapeUrl, GlobalURL: t.GlobalUrl,
				Health: healthOf(t.Health), LastError: t.LastError, LastScrape: timeOf(t.LastScrape),
				LastScrapeSeconds: t.LastScrapeDuration,
			})
		}
		for _, t := range dropped {
			found.Dropped = append(found.Dropped, labelsIn(t.DiscoveredLabels))
		}
		for _, t := range active {
			invalid = cmp.Or(invalid, checkJSON("target "+t.ScrapeUrl, timeOf(t.LastScrape), t.LastScrapeDuration))
		}
		return len(active) + len(dropped)
	})
	return found, warnings, cmp.Or(err, invalid)
}

// checkJSON returns an error for a time or duration that JSON has no text for, such as a time after the year 9999. The
// lists of all stores are one response, which such an element of one store would fail.
func checkJSON(name string, t time.Time, seconds float64) error {
	_, err := t.MarshalJSON()
	if math.IsNaN(seconds - seconds) { // not a number, or infinite
		err = fmt.Errorf("a duration of %g seconds", seconds)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// response is a message that has a warning, or part of a list.
type response[M any] interface {
	*M
	proto.Message
	GetWarning() string
}

// receive sends the only message of a call and passes every response to take, which returns the number of elements in
// it, until the stream ends. It returns the warnings. More than listMax messages and elements are ErrLimit; what names
// the elements.
func receive[M any, R response[M]](ctx context.Context, c *Client, method string, request any, what string,
	take func(R) (elements int)) (warnings []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.stream(ctx, method, request, c.list...)
	if err != nil {
		return nil, fromStatus(err)
	}
	for bytes, n := 0, 0; ; {
		msg := R(new(M))
		if err := stream.RecvMsg(msg); errors.Is(err, io.EOF) {
			return warnings, nil
		} else if err != nil {
			return warnings, fromStatus(err)
		}
		if bytes += proto.Size(msg); bytes > listBytesMax {
			return warnings, fmt.Errorf("%w: more than %d bytes", ErrLimit, listBytesMax)
		}
		if w := msg.GetWarning(); w != "" {
			warnings = append(warnings, w)
		}
		if n += 1 + take(msg); n > listMax {
			return warnings, fmt.Errorf("%w: more than %d %s", ErrLimit, listMax, what)
		}
	}
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
