package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
	"github.com/ferula-io/ferula/internal/series/profiles"
)

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: %s", profiles.ErrBadRequest, fmt.Sprintf(format, args...))
}

// unknownService is the service of who does not say what it is.
const unknownService = "unspecified"

// Labels that SDKs send to tell the server something; they are not kept.
// __session_id__ differs with every start of a process, __delta__ says that a
// profile's values are differences already.
func isNote(name string) bool { return name == "__session_id__" || name == "__delta__" }

// parseName reads `app{k=v,k2=v2}` as /ingest has it: no quotes, and neither commas
// nor braces in values.
func parseName(text string) (app string, lset []profilepb.RawLabel, err error) {
	app, rest, found := strings.Cut(text, "{")
	app = strings.TrimSpace(app)
	if app == "" {
		return "", nil, badRequest("name %q has no application name", text)
	}
	if !found {
		return app, nil, nil
	}
	rest, ok := strings.CutSuffix(strings.TrimSpace(rest), "}")
	if !ok || strings.ContainsAny(rest, "{}") {
		return "", nil, badRequest("name %q is not of the form app{key=value,...}", text)
	}
	for pair := range strings.SplitSeq(rest, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue // app{} and a comma at the end
		}
		name, value, ok := strings.Cut(pair, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" {
			return "", nil, badRequest("name %q: %q is not of the form key=value", text, pair)
		}
		if quoted, ok := strings.CutPrefix(value, `"`); ok {
			value = strings.TrimSuffix(quoted, `"`)
		}
		lset = append(lset, profilepb.RawLabel{Name: name, Value: value})
	}
	return app, lset, nil
}

// normalize makes a label set of what came in: names with underscores for dots,
// sorted, none twice, none empty, and with a service. It copies.
func normalize(in []profilepb.RawLabel, limits *Limits) ([]profilepb.RawLabel, error) {
	out := make([]profilepb.RawLabel, 0, len(in)+1)
	hasService := false
	for _, l := range in {
		if l.Value == "" || isNote(l.Name) {
			continue // an empty value is no label at all, as in Prometheus
		}
		name := strings.ReplaceAll(l.Name, ".", "_")
		switch {
		case !validName(name):
			return nil, badRequest("label name %.200q is not made of letters, digits and underscores", l.Name)
		case len(name) > limits.LabelNameBytes:
			return nil, limitError("label_name", "label name %.50q... has %d bytes, at most %d", name, len(name), limits.LabelNameBytes)
		case len(l.Value) > limits.LabelValueBytes:
			return nil, limitError("label_value", "the value of label %q has %d bytes, at most %d", name, len(l.Value), limits.LabelValueBytes)
		case !utf8.ValidString(l.Value):
			return nil, badRequest("the value of label %q is not UTF-8", name)
		}
		hasService = hasService || name == profiles.LabelService
		out = append(out, profilepb.RawLabel{Name: name, Value: l.Value})
	}
	if !hasService {
		out = append(out, profilepb.RawLabel{Name: profiles.LabelService, Value: unknownService})
	}
	if len(out) > limits.Labels {
		return nil, limitError("labels", "%d labels, at most %d", len(out), limits.Labels)
	}
	slices.SortFunc(out, func(a, b profilepb.RawLabel) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(out); i++ {
		if out[i].Name == out[i-1].Name {
			return nil, badRequest("label %q is there twice", out[i].Name)
		}
	}
	return out, nil
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// profileName is the first part of a profile's type, by what is measured, for SDKs
// that do not say it themselves.
func profileName(sampleTypes []string, config map[string]profilepb.SampleTypeConfig, units string) string {
	if strings.HasPrefix(units, "lock_") {
		return "mutex"
	}
	for _, t := range sampleTypes {
		if display := config[t].DisplayName; display != "" {
			switch {
			case strings.HasPrefix(display, "mutex"):
				return "mutex"
			case strings.HasPrefix(display, "block"):
				return "block"
			case strings.HasPrefix(display, "goroutine_leak"):
				return "goroutine_leak"
			}
		}
	}
	for _, t := range sampleTypes {
		switch t {
		case "cpu":
			if slices.Contains(sampleTypes, "wall") {
				return "wall"
			}
			return "process_cpu"
		case "wall":
			return "wall"
		case "goroutine", "goroutines":
			return "goroutines"
		case "goroutineleak":
			return "goroutine_leak"
		case "inuse_space", "inuse_objects", "alloc_space", "alloc_objects", "heap", "space", "objects":
			return "memory"
		case "contentions", "delay":
			return "block"
		case "exceptions", "exception":
			return "exceptions"
		}
	}
	if len(sampleTypes) == 1 && sampleTypes[0] != "samples" && validName(sampleTypes[0]) {
		return sampleTypes[0]
	}
	return "process_cpu"
}
