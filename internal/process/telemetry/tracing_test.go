package telemetry

import (
	"log/slog"
	"strings"
	"testing"
)

func TestNew_NamesTheWayToOtherReceivers(t *testing.T) {
	for text, want := range map[string]string{
		"type: JAEGER\nconfig: {service_name: thanos, agent_host: localhost}": "4317",
		"type: google_cloud\nconfig: {project_id: x}":                         "collector",
		"type: STACKDRIVER":                              "collector",
		"type: ELASTIC_APM\nconfig: {service_name: x}":   "APM server receives OTLP",
		"type: LIGHTSTEP\nconfig: {access_token: tok3n}": "lightstep-access-token",
		"type: ZIPKIN":                                   "want OTLP",
		"config: {}":                                     "want OTLP",
	} {
		if _, err := NewTracing(text, "test", slog.Default()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "tok3n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The samplers that the error for type JAEGER names exist: Jaeger's own names are no samplers of OTLP.
func TestNew_SamplersOfJaegerHaveOtherNames(t *testing.T) {
	_, err := NewTracing("type: JAEGER", "test", slog.Default())
	if err == nil {
		t.Fatal("type JAEGER is accepted")
	}
	for _, theirs := range []string{"const", "probabilistic"} {
		_, after, ok := strings.Cut(err.Error(), theirs+" becomes ")
		ours, _, _ := strings.Cut(strings.ReplaceAll(after, ",", " "), " ")
		if !ok {
			t.Fatalf("the error does not name what %s becomes: %v", theirs, err)
		}
		config := "type: OTLP\nconfig: {client_type: grpc, endpoint: '127.0.0.1:4317', insecure: true, sampler_param: 1, sampler_type: "
		tr, err := NewTracing(config+ours+"}", "test", slog.Default())
		if err != nil {
			t.Errorf("%s: %v", ours, err)
		} else if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if _, err := NewTracing(config+theirs+"}", "test", slog.Default()); err == nil || !strings.Contains(err.Error(), ours) {
			t.Errorf("%s: %v", theirs, err)
		}
	}
}

func TestNew_AcceptsOnlyOTLP(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true,
		"type: OTLP\nconfig: {client_type: http, endpoint: '127.0.0.1:4318', insecure: true, sampler_type: traceidratiobased, sampler_param: '0.5'}": true,
		"type: OTLP\nconfig: {client_type: grpc, endpoint: '127.0.0.1:4317', insecure: true}":                                                        true,
		"type: JAEGER": false,
		"type: OTLP\nconfig: {client_type: pigeon}":                           false,
		"type: OTLP\nconfig: {client_type: http, sampler_type: nonsense}":     false,
		"type: OTLP\nconfig: {client_type: http, nonsense: 1}":                false,
		"type: OTLP\nconfig: {client_type: http, tls_config: {ca_file: /no}}": false,
	} {
		tr, err := NewTracing(text, "test", slog.Default())
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil {
			if err := tr.Close(); err != nil {
				t.Errorf("%q: close: %v", text, err)
			}
		}
	}
}
