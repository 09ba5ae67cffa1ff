package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// configured applies a configuration file to an ingester.
func configured(t *testing.T, in *Ingester, text string) {
	t.Helper()
	cfg, err := parseConfig([]byte(text))
	must(t, err)
	in.Configure(cfg)
}

func TestConfigure_ProfilesAreRelabelledBeforeTheirLimits(t *testing.T) {
	in, store := newIngester(t, Limits{Labels: 4, LabelValueBytes: 20})
	push := func(lset ...string) error {
		return in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(lset...), Raw: testProfile(t, nil)}})
	}
	many := []string{"a.b", "1", "pod", "shop-7d9f", "junk_1", strings.Repeat("x", 30), "junk_2", "y", "service_name", "shop"}
	if err := push(many...); err == nil {
		t.Fatal("without rules it exceeds the limits")
	}
	configured(t, in, `
relabel_configs:
  - {action: labeldrop, regex: junk_.*}
  - {source_labels: [pod], regex: '(.+)-[^-]+', target_label: __tmp_app}
  - {source_labels: [__tmp_app], target_label: pod}
  - {source_labels: [service_name], regex: test|unspecified, action: drop}
`)
	must(t, push(many...))
	if err := push("service_name", "test"); err != nil {
		t.Fatal("a profile that rules drop is no error:", err)
	}
	must(t, push())
	all := store.list()
	if len(all) != 1 || all[0].labels != "__name__=process_cpu,a_b=1,pod=shop,service_name=shop" {
		t.Errorf("%+v", all)
	}
	if n := in.discarded.With("relabelled").Get(); n != 2 {
		t.Errorf("%v are counted as relabelled", n)
	}
	if n := in.received.Get(); n != 1 {
		t.Errorf("%v are counted as received", n)
	}
	configured(t, in, "relabel_configs: [{action: labelmap, regex: pod_(.+)}]\n")
	if err := push("pod_1", "x"); err == nil || !strings.Contains(err.Error(), `"1", which relabel_configs made`) {
		t.Error(err)
	}
	configured(t, in, "relabel_configs: [{action: labeldrop, regex: __name__}]\n")
	if err := push(); err == nil || !strings.Contains(err.Error(), "__name__ is missing") {
		t.Error(err)
	}
	configured(t, in, "scrape_configs: []\n")
	if err := push("pod", "shop-7d9f"); err != nil {
		t.Error(err)
	}
	if all = store.list(); all[len(all)-1].labels != "__name__=process_cpu,pod=shop-7d9f,service_name=unspecified" {
		t.Errorf("%+v", all[len(all)-1])
	}
}

func TestConfigure_LimitsOfATenantReplaceThoseOfFlags(t *testing.T) {
	in, _ := newIngester(t, Limits{Series: 1, Samples: 1, ProfileBytes: 4000})
	push := func(tenant, pod string, change func(*profile.Profile)) error {
		return in.Push(context.Background(), tenant, []profilepb.RawProfile{{Labels: named("pod", pod), Raw: testProfile(t, change)}})
	}
	twice := func(p *profile.Profile) { p.Sample = append(p.Sample, p.Sample[0]) }
	configured(t, in, "limits:\n  acme: {series: 2, samples: 2, labels: 2}\n")
	for _, tt := range []struct {
		tenant, pod string
		change      func(*profile.Profile)
		want        string
	}{
		{"acme", "", nil, ""},
		{"acme", "1", nil, "labels of tenant acme in --profiles.config-file"}, // with __name__ and service_name: 3
		{"acme", "", twice, ""},
		{"other", "1", nil, ""},
		{"other", "2", nil, "limit of 1"},
		{"other", "1", twice, "exceed the limit of 1"},
	} {
		err := push(tt.tenant, tt.pod, tt.change)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s %q: %v, want %q", tt.tenant, tt.pod, err, tt.want)
		}
	}
	configured(t, in, "limits:\n  acme: {series: 3}\n")
	for i := range 2 {
		if err := push("acme", fmt.Sprint(i), nil); err != nil {
			t.Error(err)
		}
	}
	var limit *LimitError
	if err := push("acme", "4", nil); !errors.As(err, &limit) || limit.Reason != "series" || !strings.HasSuffix(err.Error(), "(series of tenant acme in --profiles.config-file)") {
		t.Error(err)
	}
}

func TestConfigure_AChangedRateAppliesToKnownTenants(t *testing.T) {
	in, _ := newIngester(t, Limits{DecompressedBytes: 1 << 20, RateBytes: 1 << 20, BurstBytes: 1 << 20})
	big := testProfile(t, func(p *profile.Profile) { p.Function[0].Name = strings.Repeat("n", 900_000) })
	push := func() error {
		return in.Push(context.Background(), "acme", []profilepb.RawProfile{{Labels: named(), Raw: big}})
	}
	must(t, push())
	var limit *LimitError
	if err := push(); !errors.As(err, &limit) || limit.Reason != "rate" {
		t.Fatal(err)
	}
	configured(t, in, "limits: {acme: {rate: 4MB, burst: 8MB}}\n")
	if err := push(); !errors.As(err, &limit) || limit.Reason != "rate" {
		t.Fatal("the new rate has not refilled the bucket:", err)
	}
	later := now.Add(time.Second)
	in.now = func() time.Time { return later }
	for i := range 4 { // 4 MiB of the second that has passed
		if err := push(); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := push(); !errors.As(err, &limit) || limit.Reason != "rate" || !strings.Contains(err.Error(), "rate of 4194304 bytes") {
		t.Fatal(err)
	}
}

func TestConfigure_UploadsAndOTLPHaveTheLimitsOfTheirTenant(t *testing.T) {
	in, _ := newIngester(t, Limits{ProfileBytes: 10})
	raw := testProfile(t, nil)
	if code, text := ingest(t, in, "name=shop&format=pprof", "", raw); code != http.StatusBadRequest {
		t.Errorf("%d %s", code, text)
	}
	if _, _, err := pushOTLP(t, in, otlpRequest(nil)); StatusOf(err) != http.StatusBadRequest {
		t.Error(err)
	}
	configured(t, in, "limits: {tenant: {profile_size: 1MB}, acme: {profile_size: 1MB}}\n")
	if code, text := ingest(t, in, "name=shop&format=pprof", "", raw); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	if rejected, _, err := pushOTLP(t, in, otlpRequest(nil)); err != nil || rejected != 0 {
		t.Error(rejected, err)
	}
}

func TestParseConfig_InvalidSettingsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"limits: {acme: {rates: 1MB}}\n":          "field rates not found",
		"limits: {acme: {rate: 1XB}}\n":           "1XB",
		"limits: {acme: }\n":                      `limits of tenant "acme": it is empty`,
		"limits: {a/b: {series: 1}}\n":            `limits of tenant "a/b": `,
		"limits: {acme: {series: -1}}\n":          `limits of tenant "acme": profile limit on series: -1`,
		"relabel_configs: [{action: nonsense}]\n": "unknown relabel action",
		"relabel_configs: [{action: labeldrop, regex: a}, ]\nlimits: {x: {nodes: -5}}": `limits of tenant "x": profile limit on nodes: -5`,
		"relabel_configs: [null]\n":                                      "relabel_configs[0]: empty or null rule",
		"relabel_configs: [{source_labels: [a], target_label: 'a-b'}]\n": "a-b",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Rules may remove labels that exceed the limits, but their regular expressions do not see megabytes.
func TestConfigure_LabelsOfMegabytesAreRefusedBeforeTheRules(t *testing.T) {
	in, store := newIngester(t, Limits{})
	configured(t, in, `
relabel_configs:
  - {action: labeldrop, regex: junk}
`)
	push := func(bytes int) error {
		lset := named("service_name", "shop", "junk", strings.Repeat("x", bytes))
		return in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: lset, Raw: testProfile(t, nil)}})
	}
	if err := push(100_000); err != nil || len(store.list()) != 1 {
		t.Errorf("%d stored, %v", len(store.list()), err)
	}
	var limit *LimitError
	if err := push(1 << 20); !errors.As(err, &limit) || StatusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "before relabel_configs") || len(store.list()) != 1 {
		t.Errorf("%d stored, %v", len(store.list()), err)
	}
}
