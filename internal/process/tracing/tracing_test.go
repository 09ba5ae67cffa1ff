package tracing

import (
	"testing"
)

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
		tr, err := New(text, "test")
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
