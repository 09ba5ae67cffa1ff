package ingest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: %s", profiles.ErrBadRequest, fmt.Sprintf(format, args...))
}

// unknownService is the service_name of a profile without one.
const unknownService = "unspecified"

// isControlLabel reports whether a label is for the server only and is not stored.
// __session_id__ changes with every start of a process; __delta__ marks a profile whose
// values are deltas already.
func isControlLabel(name string) bool { return name == "__session_id__" || name == "__delta__" }

// parseName parses `app{k=v,k2=v2}`, the name parameter of /ingest. Values contain no
// commas and no braces.
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
			continue // app{} or a trailing comma
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

// normalize returns a copy of the labels as a valid set: sorted by name, without empty values and
// control labels, with a service_name, and relabelled by the rules. Dots in names become
// underscores. A duplicate or invalid name is an error. keep is false if the rules drop the profile.
func normalize(in []profilepb.RawLabel, limits *Limits,
	rules []*relabel.Config) (out []profilepb.RawLabel, keep bool, err error) {
	if out, err = sortedSet(in); err != nil {
		return nil, false, err
	}
	if len(rules) > 0 {
		if err := limits.beforeRules(out); err != nil {
			return nil, false, err
		}
		if out, keep = relabelled(withService(out), rules); !keep {
			return nil, false, nil
		}
	}
	out = withService(out)
	for _, l := range out {
		switch {
		case !validName(l.Name):
			return nil, false, badRequest("label name %.200q, which relabel_configs made, contains other characters than letters, digits and underscores", l.Name)
		case len(l.Name) > limits.LabelNameBytes:
			return nil, false, limitError("label_name", "label name %.50q... has %d bytes, at most %d", l.Name, len(l.Name),
				limits.LabelNameBytes)
		case len(l.Value) > limits.LabelValueBytes:
			return nil, false, limitError("label_value", "the value of label %q has %d bytes, at most %d", l.Name, len(l.Value),
				limits.LabelValueBytes)
		case !utf8.ValidString(l.Value):
			return nil, false, badRequest("the value of label %q is not UTF-8", l.Name)
		}
	}
	if len(out) > limits.Labels {
		return nil, false, limitError("labels", "%d labels, at most %d", len(out), limits.Labels)
	}
	return out, true, nil
}

// beforeRules returns an error for a set of more than four times the bytes that the limits allow. The limits apply
// after the rules, which may remove labels. But the regular expression of each rule is matched with every byte, which
// would take seconds for a larger set.
func (l *Limits) beforeRules(set []profilepb.RawLabel) error {
	size, most := 0, 4*min(min(l.Labels, math.MaxInt32)*min(l.LabelNameBytes+l.LabelValueBytes, math.MaxInt32),
		math.MaxInt32)
	for i := range set {
		size += len(set[i].Name) + len(set[i].Value)
	}
	if size > most {
		return limitError("label_value", "the labels have %d bytes, at most %d before relabel_configs", size, most)
	}
	return nil
}

// withService adds a service_name to a sorted set without one.
func withService(set []profilepb.RawLabel) []profilepb.RawLabel {
	at, found := slices.BinarySearchFunc(set, profiles.LabelService, func(l profilepb.RawLabel, name string) int {
		return cmp.Compare(l.Name, name)
	})
	if found {
		return set
	}
	return slices.Insert(set, at, profilepb.RawLabel{Name: profiles.LabelService, Value: unknownService})
}

// sortedSet returns labels sorted by name, with underscores instead of dots in names. It drops labels
// without a value and control labels. A duplicate or invalid name is an error.
func sortedSet(in []profilepb.RawLabel) ([]profilepb.RawLabel, error) {
	out := make([]profilepb.RawLabel, 0, len(in)+1)
	for _, l := range in {
		if l.Value == "" || isControlLabel(l.Name) {
			continue // as in Prometheus, an empty value is a missing label
		}
		name := strings.ReplaceAll(l.Name, ".", "_")
		if !validName(name) {
			return nil, badRequest("label name %.200q contains other characters than letters, digits and underscores", l.Name)
		}
		out = append(out, profilepb.RawLabel{Name: name, Value: l.Value})
	}
	slices.SortFunc(out, func(a, b profilepb.RawLabel) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(out); i++ {
		if out[i].Name == out[i-1].Name {
			return nil, badRequest("duplicate label %.200q", out[i].Name)
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

// profileName returns the profile name (the first part of a profile type) by sample types,
// for SDKs that do not send it.
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
