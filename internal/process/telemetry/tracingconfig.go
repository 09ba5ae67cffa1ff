package telemetry

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	config_util "github.com/prometheus/common/config"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/credentials"
)

// configFile is Thanos' tracing configuration of type OTLP.
type configFile struct {
	Type   string `yaml:"type"`
	Config struct {
		ClientType         string            `yaml:"client_type"` // grpc or http
		ServiceName        string            `yaml:"service_name"`
		ResourceAttributes map[string]string `yaml:"resource_attributes"`
		ReconnectionPeriod time.Duration     `yaml:"reconnection_period"`
		Compression        string            `yaml:"compression"`
		Insecure           bool              `yaml:"insecure"`
		Endpoint           string            `yaml:"endpoint"`
		URLPath            string            `yaml:"url_path"`
		Timeout            time.Duration     `yaml:"timeout"`
		Headers            map[string]string `yaml:"headers"`
		SamplerType        string            `yaml:"sampler_type"`
		SamplerParam       string            `yaml:"sampler_param"`
		RetryConfig        struct {
			Enabled         bool          `yaml:"retry_enabled"`
			InitialInterval time.Duration `yaml:"retry_initial_interval"`
			MaxInterval     time.Duration `yaml:"retry_max_interval"`
			MaxElapsedTime  time.Duration `yaml:"retry_max_elapsed_time"`
		} `yaml:"retry_config"`
		TLSConfig config_util.TLSConfig `yaml:"tls_config"`
	} `yaml:"config"`
}

// others are Thanos' other types, and how to send spans there over OTLP.
var others = map[string]string{
	"JAEGER": "Jaeger receives OTLP since 1.35: use type OTLP with client_type grpc and the collector's port " +
		"4317, or http and 4318; service_name stays, sampler_type const becomes alwayssample (neversample if its " +
		"sampler_param is 0) and probabilistic becomes traceidratiobased, tags become resource_attributes",
	"GOOGLE_CLOUD": "use type OTLP with the endpoint of an OpenTelemetry collector that exports to Google Cloud",
	"STACKDRIVER":  "use type OTLP with the endpoint of an OpenTelemetry collector that exports to Google Cloud",
	"ELASTIC_APM": "the APM server receives OTLP: use type OTLP with its address, and the secret token in headers as " +
		"Authorization",
	"LIGHTSTEP": "Lightstep receives OTLP: use type OTLP with its address, and the access token in headers as " +
		"lightstep-access-token",
}

// parse reads a configuration; an empty one leaves c as it is. It refuses types other than OTLP before their fields are
// refused as unknown.
func (c *configFile) parse(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var only struct {
		Type string `yaml:"type"`
	}
	if err := yaml.Unmarshal([]byte(text), &only); err != nil {
		return err
	}
	if instead, known := others[strings.ToUpper(only.Type)]; known {
		return fmt.Errorf("type %s is not supported: %s", only.Type, instead)
	}
	if !strings.EqualFold(only.Type, "OTLP") {
		return fmt.Errorf("unsupported type %q, want OTLP", only.Type)
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	return d.Decode(c)
}

// samplerOf returns the sampler for one of Thanos' sampler types.
func samplerOf(name, param string) (tracesdk.Sampler, error) {
	ratio := 1.0
	if param != "" {
		var err error
		if ratio, err = strconv.ParseFloat(param, 64); err != nil {
			return nil, fmt.Errorf("sampler_param %q is not a number", param)
		}
	}
	switch strings.ToLower(name) {
	case "", "parentbasedalwayssample":
		return tracesdk.ParentBased(tracesdk.AlwaysSample()), nil
	case "alwayssample":
		return tracesdk.AlwaysSample(), nil
	case "neversample":
		return tracesdk.NeverSample(), nil
	case "parentbasedneversample":
		return tracesdk.ParentBased(tracesdk.NeverSample()), nil
	case "traceidratiobased":
		return tracesdk.TraceIDRatioBased(ratio), nil
	case "parentbasedtraceidratio", "parentbasedtraceidratiobased":
		return tracesdk.ParentBased(tracesdk.TraceIDRatioBased(ratio)), nil
	default:
		return nil, fmt.Errorf("unknown sampler_type %q, want alwayssample, neversample, traceidratiobased, "+
			"parentbasedalwayssample, parentbasedneversample or parentbasedtraceidratio", name)
	}
}

func (c *configFile) client() (otlptrace.Client, error) {
	o := c.Config
	tls, err := config_util.NewTLSConfig(&o.TLSConfig)
	if err != nil {
		return nil, fmt.Errorf("tls_config: %w", err)
	}
	if o.Compression != "" && o.Compression != "gzip" {
		return nil, fmt.Errorf("unsupported compression %q, want gzip", o.Compression)
	}
	switch strings.ToLower(o.ClientType) {
	case "http":
		return httpTraces(c, otlptracehttp.WithTLSClientConfig(tls)), nil
	case "grpc":
		return grpcTraces(c, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(tls))), nil
	default:
		return nil, fmt.Errorf("unsupported client_type %q, want grpc or http", o.ClientType)
	}
}

func httpTraces(c *configFile, tls otlptracehttp.Option) otlptrace.Client {
	o := c.Config
	opts := []otlptracehttp.Option{otlptracehttp.WithEndpoint(o.Endpoint), otlptracehttp.WithHeaders(o.Headers)}
	if o.Insecure {
		opts = append(opts, otlptracehttp.WithInsecure())
	} else {
		opts = append(opts, tls)
	}
	if o.URLPath != "" {
		opts = append(opts, otlptracehttp.WithURLPath(o.URLPath))
	}
	if o.Timeout != 0 {
		opts = append(opts, otlptracehttp.WithTimeout(o.Timeout))
	}
	if o.Compression == "gzip" {
		opts = append(opts, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	}
	if r := o.RetryConfig; r.Enabled {
		opts = append(opts, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true,
			InitialInterval: r.InitialInterval, MaxInterval: r.MaxInterval, MaxElapsedTime: r.MaxElapsedTime}))
	}
	return otlptracehttp.NewClient(opts...)
}

func grpcTraces(c *configFile, tls otlptracegrpc.Option) otlptrace.Client {
	o := c.Config
	opts := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(o.Endpoint), otlptracegrpc.WithHeaders(o.Headers)}
	if o.Insecure {
		opts = append(opts, otlptracegrpc.WithInsecure())
	} else {
		opts = append(opts, tls)
	}
	if o.Timeout != 0 {
		opts = append(opts, otlptracegrpc.WithTimeout(o.Timeout))
	}
	if o.ReconnectionPeriod != 0 {
		opts = append(opts, otlptracegrpc.WithReconnectionPeriod(o.ReconnectionPeriod))
	}
	if o.Compression != "" {
		opts = append(opts, otlptracegrpc.WithCompressor(o.Compression))
	}
	if r := o.RetryConfig; r.Enabled {
		opts = append(opts, otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true,
			InitialInterval: r.InitialInterval, MaxInterval: r.MaxInterval, MaxElapsedTime: r.MaxElapsedTime}))
	}
	return otlptracegrpc.NewClient(opts...)
}
