package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

func queryOptions(t *testing.T, args ...string) (app.QueryOptions, error) {
	t.Helper()
	cli, err := parse(t, append([]string{"query"}, args...)...)
	if err != nil {
		return app.QueryOptions{}, err
	}
	return cli.Query.options()
}

// The arguments of a querier deployed by kube-thanos.
func TestQueryCommand_AcceptsKubeThanosArguments(t *testing.T) {
	o, err := queryOptions(t,
		"--grpc-address=0.0.0.0:10901",
		"--http-address=0.0.0.0:9090",
		"--log.level=info",
		"--log.format=logfmt",
		"--query.replica-label=prometheus_replica",
		"--query.replica-label=rule_replica",
		"--endpoint=dnssrv+_grpc._tcp.thanos-receive.thanos.svc.cluster.local",
		"--endpoint=dnssrv+_grpc._tcp.thanos-store.thanos.svc.cluster.local",
		"--query.timeout=5m",
		"--query.lookback-delta=15m",
		"--query.max-concurrent=30",
		"--store.response-timeout=30s",
		"--query.auto-downsampling",
		"--web.external-prefix=.",
		"--web.prefix-header=X-Forwarded-Prefix",
		"--query.telemetry.request-duration-seconds-quantiles=0.1",
		"--query.telemetry.request-duration-seconds-quantiles=0.25",
		"--tracing.config=\"config\":\n  \"endpoint\": \"localhost:4317\"\n\"type\": \"OTLP\"",
	)
	if err != nil {
		t.Fatal(err)
	}
	if o.Web.ListenAddress != "0.0.0.0:9090" || o.GRPC.ListenAddress != "0.0.0.0:10901" || o.Web.RoutePrefix != "" {
		t.Errorf("addresses: %+v %+v", o.Web, o.GRPC)
	}
	want := []fanout.Address{{Name: "dnssrv+_grpc._tcp.thanos-receive.thanos.svc.cluster.local"}, {Name: "dnssrv+_grpc._tcp.thanos-store.thanos.svc.cluster.local"}}
	if !slices.Equal(o.Endpoints.Static, want) {
		t.Errorf("endpoints: %v", o.Endpoints.Static)
	}
	if !slices.Equal(o.Stores.ReplicaLabels, []string{"prometheus_replica", "rule_replica"}) || !o.Stores.AutoDownsampling || !o.Stores.Partial {
		t.Errorf("%+v", o.Stores)
	}
	if o.Query.Timeout != 5*time.Minute || o.Query.LookbackDelta != 15*time.Minute || o.Query.MaxConcurrency != 30 || o.Fanout.ResponseTimeout != 30*time.Second {
		t.Errorf("%+v %+v", o.Query, o.Fanout)
	}
	if !strings.Contains(o.Tracing, "4317") {
		t.Error(o.Tracing)
	}
}

func TestQueryCommand_FourKindsOfEndpoints(t *testing.T) {
	o, err := queryOptions(t, "--endpoint=a:1", "--endpoint-strict=b:1", "--endpoint-group=dns+c:1", "--endpoint-group-strict=d:1", "--query.replica-label=x,y", "--no-query.partial-response")
	want := []fanout.Address{{Name: "a:1"}, {Name: "b:1", Strict: true}, {Name: "c:1", Group: true}, {Name: "d:1", Strict: true, Group: true}}
	if err != nil || !slices.Equal(o.Endpoints.Static, want) {
		t.Errorf("%v %v", err, o.Endpoints.Static)
	}
	if !slices.Equal(o.Stores.ReplicaLabels, []string{"x", "y"}) || o.Stores.Partial {
		t.Errorf("%+v", o.Stores)
	}
}

func TestQueryCommand_UnsupportedFlagsAreRefused(t *testing.T) {
	for _, arg := range []string{
		"--selector-label=a=b", "--selector-label=a", "--selector-label=a=\"\"", "--selector-label==\"b\"", "--selector.relabel-config-file=/nowhere", "--query.tenant-certificate-field=serial",
		"--query.enable-x-functions", "--query.partition-label=x", "--query.promql-engine=thanos", "--query.mode=distributed", "--nonsense", "--deduplication.func=guess",
		"--endpoint-strict=dns+a:1", "--endpoint-group=nonsense+a", "--endpoint.sd-config-file=/nowhere", "--endpoint.sd-config=nonsense: 1",
		"--store.response-timeout=soon", "--query.timeout=soon", "--tracing.config-file=/nowhere", "--log.format=journald", "--query.disable-fallback",
	} {
		if _, err := queryOptions(t, arg); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
	if o, err := queryOptions(t, "--no-query.enforce-tenancy", "--query.promql-engine=prometheus", "--query.mode=local", "--enable-feature=promql-experimental-functions", "--query.series-response-batch-size=16"); err != nil || o.Client.Client.BatchSeries != 16 {
		t.Error(o.Client.Client, err)
	}
}

func TestQueryCommand_SelectorOfData(t *testing.T) {
	o, err := queryOptions(t, `--selector-label=zone="a,b"`, `--selector-label=tier="gold"`, "--selector.relabel-config=[{action: keep, source_labels: [cluster], regex: eu}]")
	if err != nil || o.Endpoints.Selector.Labels.String() != `{tier="gold", zone="a,b"}` || o.Relabel != "[{action: keep, source_labels: [cluster], regex: eu}]" {
		t.Errorf("%v %s %s", err, o.Endpoints.Selector.Labels, o.Relabel)
	}
}

// Thanos ignores these features. Units still have features that were switches in earlier
// releases.
func TestQueryCommand_OtherFeaturesAreIgnoredWithAWarning(t *testing.T) {
	args := []string{"--enable-feature=promql-at-modifier,query-pushdown", "--enable-feature=promql-negative-offset", "--enable-feature=nonsense"}
	o, err := queryOptions(t, args...)
	if err != nil || o.Query.ExperimentalFunctions {
		t.Errorf("%v, experimental functions: %t", err, o.Query.ExperimentalFunctions)
	}
	want := []string{"enable-feature=promql-at-modifier", "enable-feature=query-pushdown", "enable-feature=promql-negative-offset", "enable-feature=nonsense"}
	if got := ignoredNames(t, append([]string{"query"}, append(args, "--enable-feature=promql-experimental-functions")...)...); !slices.Equal(got, want) {
		t.Errorf("named are %q, want %q", got, want)
	}
	if o, err = queryOptions(t, "--enable-feature=nonsense, promql-experimental-functions"); err != nil || !o.Query.ExperimentalFunctions {
		t.Errorf("%v, experimental functions: %t", err, o.Query.ExperimentalFunctions)
	}
}
