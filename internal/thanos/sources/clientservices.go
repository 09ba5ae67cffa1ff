package sources

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Rules returns the rule groups.
func (c *client) Rules(ctx context.Context, r storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	query := url.Values{"rule_name[]": r.Names, "rule_group[]": r.Groups, "file[]": r.Files}
	if r.Type != "all" {
		query.Set("type", r.Type)
	}
	var data struct {
		Groups []struct {
			storeapi.RuleGroup
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	warnings, err := c.data(ctx, "api/v1/rules", query, &data)
	if err != nil {
		return nil, nil, err
	}
	groups := make([]storeapi.RuleGroup, len(data.Groups))
	for i, g := range data.Groups {
		groups[i] = g.RuleGroup
		for _, one := range g.Rules {
			groups[i].Rules = append(groups[i].Rules, storeapi.Rule(one))
		}
	}
	return groups, warnings, nil
}

// rule is a rule in the response of the rules endpoint, which has no field Alerting but a type.
type rule storeapi.Rule

// UnmarshalJSON implements json.Unmarshaler.
func (r *rule) UnmarshalJSON(text []byte) error {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return err
	}
	if r.Alerting = kind.Type == "alerting"; !r.Alerting && kind.Type != "recording" {
		return fmt.Errorf("rule of unknown type %q", kind.Type)
	}
	return json.Unmarshal(text, (*storeapi.Rule)(r))
}

// Targets returns the targets.
func (c *client) Targets(ctx context.Context,
	r storeapi.TargetsRequest) (found storeapi.Targets, warnings []string, err error) {
	query := url.Values{}
	if r.State != "any" {
		query.Set("state", r.State)
	}
	var data struct {
		Active  []storeapi.ActiveTarget `json:"activeTargets"`
		Dropped []struct {
			Discovered labels.Labels `json:"discoveredLabels"`
		} `json:"droppedTargets"`
	}
	if warnings, err = c.data(ctx, "api/v1/targets", query, &data); err != nil {
		return found, nil, err
	}
	found.Active = data.Active
	for _, t := range data.Dropped {
		found.Dropped = append(found.Dropped, t.Discovered)
	}
	return found, warnings, nil
}

// MetricMetadata returns the metadata of metrics by their names.
func (c *client) MetricMetadata(ctx context.Context,
	r storeapi.MetadataRequest) (found map[string][]metadata.Metadata, warnings []string, err error) {
	query := url.Values{}
	if r.Metric != "" {
		query.Set("metric", r.Metric)
	}
	if r.Limit >= 0 {
		query.Set("limit", strconv.Itoa(r.Limit))
	}
	warnings, err = c.data(ctx, "api/v1/metadata", query, &found)
	return found, warnings, err
}

// TSDBStatistics returns the statistics of the head.
func (c *client) TSDBStatistics(ctx context.Context,
	limit int) (found storeapi.TSDBStatistics, warnings []string, err error) {
	type head struct {
		Series     *uint64 `json:"numSeries"`
		LabelPairs *int64  `json:"numLabelPairs"`
		Chunks     *int64  `json:"chunkCount"`
		MinMS      *int64  `json:"minTime"`
		MaxMS      *int64  `json:"maxTime"`
	}
	data := struct {
		Head head `json:"headStats"`
		*storeapi.TSDBStatistics
	}{head{&found.Series, &found.LabelPairs, &found.Chunks, &found.MinMS, &found.MaxMS}, &found}
	warnings, err = c.data(ctx, "api/v1/status/tsdb", url.Values{"limit": {strconv.Itoa(limit)}}, &data)
	return found, warnings, err
}
