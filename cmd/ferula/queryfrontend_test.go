package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

func frontendOptions(t *testing.T, args ...string) (app.QueryFrontendOptions, error) {
	t.Helper()
	cli, err := parse(t, append([]string{"query-frontend"}, args...)...)
	if err != nil {
		return app.QueryFrontendOptions{}, err
	}
	return cli.QueryFrontend.options()
}

// The arguments of a query frontend deployed by kube-thanos.
func TestQueryFrontendCommand_AcceptsKubeThanosArguments(t *testing.T) {
	t.Setenv("HOST_IP_ADDRESS", "10.0.0.7")
	o, err := frontendOptions(t,
		"--log.level=info",
		"--log.format=logfmt",
		"--query-frontend.compress-responses",
		"--http-address=0.0.0.0:9090",
		"--query-frontend.downstream-url=http://thanos-query.thanos.svc.cluster.local.:9090",
		"--query-range.split-interval=24h",
		"--labels.split-interval=24h",
		"--query-range.max-retries-per-request=0",
		"--labels.max-retries-per-request=0",
		"--query-frontend.log-queries-longer-than=10s",
		"--query-range.response-cache-config=\"config\":\n  \"addresses\":\n  - \"dnssrv+_client._tcp.memcached.thanos.svc.cluster.local\"\n  - \"$(HOST_IP_ADDRESS):11211\"\n  \"max_size\": \"1GiB\"\n\"type\": \"memcached\"",
		"--labels.response-cache-config=\"config\":\n  \"max_size\": \"0\"\n\"type\": \"in-memory\"",
		"--cache-compression-type=snappy",
	)
	if err != nil {
		t.Fatal(err)
	}
	if o.Web.ListenAddress != "0.0.0.0:9090" || o.Downstream.URL != "http://thanos-query.thanos.svc.cluster.local.:9090" {
		t.Errorf("addresses: %+v", o.Web)
	}
	if o.Frontend.Split.Interval != 24*time.Hour || o.Frontend.SlowerThan != 10*time.Second || o.Frontend.RangeRetries != -1 || o.Frontend.NoCompression {
		t.Errorf("%+v", o.Frontend)
	}
	if !strings.Contains(o.RangeCache, "10.0.0.7:11211") {
		t.Errorf("environment variables are not expanded: %s", o.RangeCache)
	}
}

func TestQueryFrontendCommand_DynamicSplittingReplacesTheDefaultInterval(t *testing.T) {
	o, err := frontendOptions(t, "--query-range.min-split-interval=1h", "--query-range.max-split-interval=12h", "--query-range.horizontal-shards=4")
	if err != nil || o.Frontend.Split.Interval != 0 || o.Frontend.Split.HorizontalShards != 4 {
		t.Errorf("%v %+v", err, o.Frontend.Split)
	}
}

func TestQueryFrontendCommand_UnsupportedFlagsAreRefused(t *testing.T) {
	for _, arg := range []string{"--tracing.config-file=/nowhere", "--nonsense", "--query-range.split-interval=soon", "--query-frontend.downstream-tripper-config=nonsense: 1", "--query-range.response-cache-config-file=/nowhere", "--query-frontend.tenant-certificate-field=commonName"} {
		if _, err := frontendOptions(t, arg); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
	if o, err := frontendOptions(t, "--no-query-range.request-downsampled"); err != nil || o.Frontend.RequestDownsampled {
		t.Error(err, o.Frontend.RequestDownsampled)
	}
	if o, err := frontendOptions(t); err != nil || !o.Frontend.RequestDownsampled { // as in Thanos
		t.Error(err, o.Frontend.RequestDownsampled)
	}
}

func TestQueryFrontendCommand_TenantHeaders(t *testing.T) {
	for _, c := range []struct {
		args           []string
		headers        string
		header, tenant string
	}{
		{nil, "[]", "", ""},
		{[]string{"--query-frontend.org-id-header=X-Team", "--query-frontend.org-id-header=X-Org"}, "[X-Team X-Org]", "", ""},
		{[]string{"--query-frontend.tenant-header=X-Team", "--query-frontend.default-tenant-id=all"}, "[X-Team]", "X-Team", "all"},
		{[]string{"--query-frontend.tenant-header=thanos-tenant"}, "[]", "", ""},
		{[]string{"--query-frontend.tenant-header=THANOS-TENANT", "--query-frontend.org-id-header=X-Org"}, "[X-Org]", "", ""},
	} {
		o, err := frontendOptions(t, c.args...)
		if got := fmt.Sprint(o.Frontend.Tenants.Headers); err != nil || got != c.headers || o.Frontend.TenantHeader != c.header || o.Frontend.Tenants.Default != c.tenant {
			t.Errorf("%q: %v, tenant headers %s, renamed %q, default %q", c.args, err, got, o.Frontend.TenantHeader, o.Frontend.Tenants.Default)
		}
	}
	if _, err := frontendOptions(t, "--query-frontend.tenant-header=X-Team", "--query-frontend.org-id-header=X-Org"); err == nil {
		t.Error("both kinds of tenant header are accepted together")
	}
}
