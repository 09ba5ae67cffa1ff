package telemetry

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
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

// Spans that wait at the end are dropped after a while, and the warning names the receiver.
func TestNew_CloseNamesTheReceiverThatIsDown(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, but responds to nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var log bytes.Buffer
	tr, err := NewTracing("type: OTLP\nconfig: {client_type: http, insecure: true, endpoint: '"+silent.Addr().String()+"'}", "test",
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tr.flush = time.Millisecond
	_, span := tr.Provider().Tracer("").Start(t.Context(), "waits")
	span.End()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "Some traces were not sent") || !strings.Contains(log.String(), "endpoint="+silent.Addr().String()) {
		t.Error(log.String())
	}
}

func TestWithoutPasswords_RedactsURLsOfAttributesAndEvents(t *testing.T) {
	memory := tracetest.NewInMemoryExporter()
	provider := tracesdk.NewTracerProvider(tracesdk.WithSyncer(withoutPasswords{memory}))
	given := []attribute.KeyValue{
		attribute.String("remote_url", "http://eve:SECRET@host/write"), attribute.String("user", "eve@host"), attribute.Int("n", 7),
		attribute.String("query", `up{a="http://x:y@z"} == 1`),
	}
	_, span := provider.Tracer("").Start(t.Context(), "send")
	span.SetAttributes(given...)
	span.AddEvent("retry", trace.WithAttributes(attribute.String("to", "https://eve:SECRET@host/"), attribute.String("why", "it failed")), trace.WithTimestamp(time.Unix(1, 0)))
	span.RecordError(errors.New("status 500"))
	span.End()
	spans := memory.GetSpans()
	if len(spans) != 1 {
		t.Fatal(spans)
	}
	var text strings.Builder
	for _, list := range append([][]attribute.KeyValue{spans[0].Attributes}, spans[0].Events[0].Attributes, spans[0].Events[1].Attributes) {
		for _, a := range list {
			text.WriteString(string(a.Key) + "=" + a.Value.String() + "\n")
		}
	}
	for _, want := range []string{"remote_url=http://eve:xxxxx@host/write\n", "user=eve@host\n", "n=7\n", "query=up{a=\"http://x:y@z\"} == 1\n", "to=https://eve:xxxxx@host/\n", "why=it failed\n", "status 500\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, &text)
		}
	}
	if given[0].Value.AsString() != "http://eve:SECRET@host/write" {
		t.Error("the attributes of the caller were changed")
	}
}
