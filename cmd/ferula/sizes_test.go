package main

import (
	"slices"
	"strings"
	"testing"
)

// sizeRefused has, for each flag with a size in bytes, the values of sizeValues that are an error. Values that are not listed
// are accepted: the process starts and runs with them. A limit that is too small for its purpose, and a cache that is larger
// than any disk, is refused.
var sizeRefused = map[string]string{
	"serve --profiles.bucket-cache-size":                  "0 1B 64TB",
	"serve --profiles.bucket-index-memory":                "0 1B",
	"serve --profiles.head-size":                          "0 1B",
	"serve --profiles.memory":                             "1B",
	"serve --profiles.max-request-size":                   "0 64TB",
	"serve --profiles.limit.rate":                         "0",
	"serve --profiles.limit.burst":                        "0",
	"serve --profiles.limit.profile-size":                 "0",
	"serve --profiles.limit.decompressed-size":            "0",
	"serve --receive.max-bytes-in-flight":                 "0 1B",
	"serve --storage.profiles.retention.size":             "",
	"serve --storage.tsdb.retention.size":                 "",
	"serve --storage.tsdb.wal-segment-size":               "", // its role refuses values that are not 0
	"serve --storage.tsdb.max-block-chunk-segment-size":   "", // its role refuses values that are not 0
	"serve --storage.remote.read-max-sort-bytes":          "",
	"query --query.max-chunk-bytes":                       "",
	"query --query.max-total-chunk-bytes":                 "",
	"query --query.max-sort-bytes":                        "",
	"query-frontend --limits.max-query-bytes":             "",
	"query-frontend --limits.max-response-bytes":          "",
	"query-frontend --limits.max-request-bytes-in-flight": "1B",
	"query-frontend --limits.max-labels-bytes":            "",
	"sidecar --store.max-sort-bytes":                      "",
	"store --index-cache-size":                            "64TB",
	"store --store.grpc.downloaded-bytes-limit":           "",
	"store --store.max-sort-bytes":                        "",
	"read --max-sort-bytes":                               "",
	"compare --max-response-bytes":                        "0 64TB",
	"profiles compact --compact.block-max-size":           "0 1B",
}

// sizeValues are values of a size. The last ones are refused for every flag.
var sizeValues = []string{"0", "1B", "64TB", "1EB", "-1B", "-1", "2EB", "8EB", "16EB", "1", "B"}

// sizeFlags returns the flags of type size, as "serve --profiles.memory".
func sizeFlags(t *testing.T) (found []string) {
	t.Helper()
	for _, leaf := range parserOf(t, &commands{}).Model.Leaves(false) {
		for _, f := range leaf.Flags {
			if _, ok := f.Target.Interface().(size); ok {
				found = append(found, strings.TrimPrefix(leaf.FullPath(), "ferula ")+" --"+f.Name)
			}
		}
	}
	return found
}

// A size that would end or block the process at its start, or has overflowed, is an error that names the flag and the value.
func TestParseArgs_SizesThatCannotWorkAreErrors(t *testing.T) {
	flags := sizeFlags(t)
	for flag := range sizeRefused {
		if !slices.Contains(flags, flag) {
			t.Errorf("%s is no flag with a size", flag)
		}
	}
	for _, flag := range flags {
		refused, ok := sizeRefused[flag]
		if !ok {
			t.Errorf("%s has no row", flag)
		}
		parser := parserOf(t, &commands{}) // of all values, because to make one takes longer than to parse
		for _, value := range sizeValues {
			args := strings.Fields(flag + "=" + value)
			if args[0] == "read" {
				args = append(args, "--match=up", "--output=-") // without which read is not called
			}
			if args[0] == "compare" {
				args = append(args, "--left=a", "--right=b", "--queries=c")
			}
			_, _, err := parseArgs(parser, args)
			want := slices.Contains(sizeValues[4:], value) || slices.Contains(strings.Fields(refused), value) || value == "1EB" && strings.Contains(refused, "64TB")
			name := flag[strings.Index(flag, "--"):]
			if (err != nil) != want {
				t.Errorf("%s=%s: %v", flag, value, err)
			} else if err != nil && (!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) && !strings.Contains(err.Error(), sizeOf(value).String())) {
				t.Errorf("%s=%s: the error does not name both: %v", flag, value, err)
			}
		}
	}
}

// sizeOf returns a value as errors print it.
func sizeOf(value string) (s size) {
	_ = s.UnmarshalText([]byte(value)) // values that are not valid are printed as they were given
	return s
}

// The tags of a flag are the bounds of its values. Each default is within them.
func TestCheckBounds_ErrorsNameTheBounds(t *testing.T) {
	for args, want := range map[string]string{
		"serve --receive.max-bytes-in-flight=63MB":              "--receive.max-bytes-in-flight=63MiB must be at least 64MB",
		"serve --profiles.max-nodes=0":                          "--profiles.max-nodes=0 must be between 1 and 1048576",
		"serve --profiles.max-nodes=1048577":                    "--profiles.max-nodes=1048577 must be between 1 and 1048576",
		"serve --profiles.query.timeout=999ms":                  "--profiles.query.timeout=999ms must be at least 1s",
		"serve --alertmanager.notification-batch-size=0":        "--alertmanager.notification-batch-size=0 must be at least 1",
		"store --index-cache-size=2TB":                          "--index-cache-size=2TiB must be at most 1TB",
		"store --block-meta-fetch-concurrency=0":                "--block-meta-fetch-concurrency=0 must be at least 1",
		"profiles compact --consistency-delay=24h":              "--consistency-delay=1d must be at least 25h",
		"serve --profiles.max-nodes=0 --profiles.head-size=1MB": "--profiles.head-size=1MiB must be at least 16MB",
	} {
		if _, err := parse(t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, command := range []string{"serve", "query", "query-frontend", "sidecar", "store", "profiles compact"} {
		if _, err := parse(t, strings.Fields(command)...); err != nil {
			t.Error(err)
		}
	}
}
