// Package exposition encodes metrics in the exposition formats of Prometheus.
//
// The input is a [Metric], which is a consistent snapshot of one metric, or output in text
// format, see [Lines]. An [Encoder] appends it to a buffer as OpenMetrics or protobuf:
//
//	OpenMetrics: # TYPE, samples, exemplars          text, ended by # EOF
//	protobuf:    uvarint(len) MetricFamily ...       field numbers of io.prometheus.client
//
// [Negotiate] selects a format by the Accept header. A [Rewriter] escapes or quotes the
// names in text format. All output is appended to buffers that are reused. The package has
// no locks, no HTTP and no registration.
package exposition

import (
	"strconv"
	"strings"
)

// Format is an exposition format.
type Format uint8

// The formats. Text is version 0.0.4, which every scraper accepts.
const (
	Text Format = iota
	Text100
	OpenMetrics001
	OpenMetrics
	Protobuf
	formats
)

// Scheme is an escaping scheme for UTF-8 names.
type Scheme uint8

// The escaping schemes. Underscores is the default.
const (
	Underscores Scheme = iota
	Dots
	Values
	AllowUTF8
	schemes
)

var schemeNames = [schemes]string{"underscores", "dots", "values", "allow-utf-8"}

var contentTypes = [formats]string{
	"text/plain; version=0.0.4; charset=utf-8",
	"text/plain; version=1.0.0; charset=utf-8",
	"application/openmetrics-text; version=0.0.1; charset=utf-8",
	"application/openmetrics-text; version=1.0.0; charset=utf-8",
	"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
}

// Form is the negotiated format of a response with its escaping scheme. It is comparable.
type Form struct {
	Format      Format
	Scheme      Scheme
	NamedScheme bool // the request names the scheme, so the response names it, too
}

// ContentType returns the Content-Type header of a response.
func (f Form) ContentType() string {
	if !f.NamedScheme {
		return contentTypes[f.Format]
	}
	return contentTypes[f.Format] + "; escaping=" + schemeNames[f.Scheme]
}

// Strict reports whether the format needs a type for every family and every family only
// once.
func (f Form) Strict() bool { return f.Format >= OpenMetrics001 }

// EndOfPage returns the line that must end a response, # EOF of OpenMetrics; nil for other
// formats. The caller must not change it.
func (f Form) EndOfPage() []byte {
	if f.Format == OpenMetrics || f.Format == OpenMetrics001 {
		return eof
	}
	return nil
}

var eof = []byte{'#', ' ', 'E', 'O', 'F', '\n'}

// Forms calls f with every possible form.
func Forms(f func(Form)) {
	for format := range formats {
		f(Form{Format: format})
		for scheme := range schemes {
			f(Form{format, scheme, true})
		}
	}
}

// Negotiate returns the supported form with the highest quality in the Accept headers, and of
// several with this quality the first one. The fallback is Text, as scrapers expect. It does
// not allocate.
func Negotiate(headers []string) Form {
	best, quality := Form{}, 0.0
	for _, header := range headers {
		for header != "" {
			var one string
			one, header, _ = strings.Cut(header, ",")
			if form, q, ok := offer(one); ok && q > quality {
				best, quality = form, q
			}
		}
	}
	return best
}

// offer parses one media range of an Accept header. ok is false if it is not supported.
func offer(text string) (form Form, quality float64, ok bool) {
	media, rest, _ := strings.Cut(text, ";")
	quality = 1
	var version, encoding, proto string
	for rest != "" {
		var one string
		one, rest, _ = strings.Cut(rest, ";")
		name, value, _ := strings.Cut(one, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		switch strings.TrimSpace(name) {
		case "q":
			q, err := strconv.ParseFloat(value, 64)
			if err != nil {
				q = 0
			}
			quality = q
		case "version":
			version = value
		case "encoding":
			encoding = value
		case "proto":
			proto = value
		case "escaping":
			for scheme, name := range schemeNames {
				if name == value {
					form.Scheme, form.NamedScheme = Scheme(scheme), true
				}
			}
		}
	}
	form.Format, ok = known(strings.TrimSpace(media), version, encoding, proto)
	return form, quality, ok
}

func known(media, version, encoding, proto string) (Format, bool) {
	switch strings.ToLower(media) {
	case "text/plain":
		switch version {
		case "", "0.0.4":
			return Text, true
		case "1.0.0":
			return Text100, true
		}
	case "application/openmetrics-text":
		switch version {
		case "1.0.0":
			return OpenMetrics, true
		case "", "0.0.1":
			return OpenMetrics001, true
		}
	case "application/vnd.google.protobuf":
		return Protobuf, encoding == "delimited" && proto == "io.prometheus.client.MetricFamily"
	case "*/*", "text/*":
		return Text, true
	}
	return 0, false
}
