package report

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rowOver is a row of one side over another row of a side, in percent.
func rowOver(areaName, side, row, otherSide, otherRow string) number {
	return number{of: func(t *testing.T, r Results) float64 {
		return 100 * cellOf(t, r, areaName, side, row) / cellOf(t, r, areaName, otherSide, otherRow)
	}}
}

// linesOf counts the lines of the functions of a package whose names match.
func linesOf(path, names string) number {
	return number{of: func(t *testing.T, _ Results) (lines float64) {
		dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", path).Output()
		if err != nil {
			t.Fatal(path, err)
		}
		files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
		for _, file := range files {
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && !strings.HasSuffix(file, "_test.go") && regexp.MustCompile(names).MatchString(f.Name.Name) {
					lines += float64(1 + set.Position(f.End()).Line - set.Position(f.Pos()).Line)
				}
			}
		}
		return lines
	}}
}

// beside are a row of a peer, of ferula, and ferula's share of the peer in percent.
func beside(areaName, peer, row string, unit float64) []number {
	return []number{cell(areaName, peer, row, unit), cell(areaName, "ferula", row, unit), percentOver(areaName, "ferula", peer, row)}
}

// batched are the times with a batch size over the times with batches of one, of Thanos and ferula, and ferula over Thanos.
func batched(series, batch, more string) []number {
	row := streamed(series, more)
	return append(overBatchesOfOne(series, batch, "time", more), percentOver("storeapi", "ferula", "Thanos", row("time", batch)))
}

// streamed names the rows of streams of series of a hundred samples.
func streamed(series, more string) func(what, batch string) string {
	return func(what, batch string) string {
		return what + ": 100 samples x " + series + " series, batch " + batch + more
	}
}

// overBatchesOfOne are a row of Thanos and of ferula with a batch size, over the same with batches of one.
func overBatchesOfOne(series, batch, what, more string) []number {
	row := streamed(series, more)
	return []number{rowOver("storeapi", "Thanos", row(what, batch), "Thanos", row(what, "1")),
		rowOver("storeapi", "ferula", row(what, batch), "ferula", row(what, "1"))}
}

// founding are the claims of docs/perf/founding.md, by the heading of their table.
func founding() map[string][]claim {
	const behind, vm = "behind Thanos query: ", "VictoriaMetrics/metrics"
	const snappy, bytesOf = ", snappy", "bytes of a series"
	calls := func(batch string) []number {
		return beside("storeapi", "Thanos", streamed("1000", snappy)("write calls for a stream", batch), 1)
	}
	times := func(n number, factor float64) number {
		return number{of: func(t *testing.T, r Results) float64 { return n.of(t, r) * factor }}
	}
	worstOfRange := func(minutes string) []number {
		return []number{worstOver("profiles", "with exemplars", "without", "time: TimeSeriesQuery_TimeRange/"+minutes+", .*")}
	}
	read := func(row string) []number { return beside("sidecar", "Thanos", row, ms) }
	growth := func(areaName, peer, row string) []number { return beside(areaName, peer, row, mibyte)[:2] }
	var course []number
	for _, side := range []string{"Thanos", "ferula"} {
		for _, percent := range []string{"25", "50", "75"} {
			course = append(course, cell("sidecar", side, "RssAnon over idle at "+percent+" %: Series of 10,000 x 8 h", mibyte))
		}
	}
	// PromQL over remote_read: Prometheus that reads Prometheus, and ferula that reads ferula.
	queried := func(what string) []number {
		row := func(reader string) string { return fmt.Sprintf(what, reader) + "sum by (namespace), 8 h" }
		return []number{cell("remoteread", "Prometheus", row("Prometheus"), ms), cell("remoteread", "ferula", row("ferula"), ms),
			rowOver("remoteread", "ferula", row("ferula"), "Prometheus", row("Prometheus"))}
	}
	return map[string][]claim{
		"A query frontend decodes and encodes JSON": {
			{"total", "frontend", beside("frontend", "Thanos", behind+"last byte", 1)},
			{"frontend unmarshal", "frontend", []number{cell("frontend", "Thanos", behind+"profile, decode", 1)}},
			{"marshal over", "frontend", []number{times(rowOver("frontend", "Thanos", behind+"profile, encode", "Thanos", behind+"querier's profile, encode"), 0.01)}},
			{"frontend marshal", "frontend", []number{cell("frontend", "Thanos", behind+"profile, encode", 1)}},
			{"query data fetch", "frontend", []number{cell("frontend", "ferula", behind+"Server-Timing fetch", 1)}},
			{"query marshal", "frontend", []number{cell("frontend", "Thanos", behind+"querier's profile, encode", 1)}},
			{"plain jsoniter", "json", []number{cell("json", "JSONCodec", "CPU: floats15", 1), cell("json", "jsoniter", "CPU: floats15", 1),
				cell("json", "ferula", "CPU: floats15", 1)}},
			{"CPU of the frontend", "frontend", []number{cell("frontend", "Thanos", behind+"CPU of the frontend", 1), cell("frontend", "ferula", behind+"CPU of the frontend", ms),
				percentOver("frontend", "ferula", "Thanos", behind+"CPU of the frontend"), cell("frontend", "relay", "CPU: client identity", ms)}},
			{"hit in memcached", "frontend", beside("frontend", "Thanos", "CPU: cache hit, memcached", ms)},
			{"an instant query", "frontend", beside("frontend", "Thanos", "CPU: instant query", ms)},
			{"names of labels", "frontend", beside("frontend", "Thanos", "CPU: names of labels, two days", ms)},
			{"CPU of series", "frontend", beside("frontend", "Thanos", "CPU: series, two days", ms)},
			{"hit in Redis", "frontend", beside("frontend", "Thanos", "CPU: cache hit, redis-server", ms)},
		},
		"Series are sent in batches": {
			{"ten: a hundred", "storeapi", batched("100", "10", snappy)},
			{"a hundred: the same", "storeapi", batched("100", "100", snappy)},
			{"ten: a thousand", "storeapi", batched("1000", "10", snappy)},
			{"a thousand: the same", "storeapi", batched("1000", "1000", snappy)},
			{"without snappy: ten", "storeapi", batched("1000", "10", "")},
			{"without snappy: a thousand", "storeapi", batched("1000", "1000", "")},
			{"bytes, ten", "storeapi", overBatchesOfOne("1000", "10", bytesOf, snappy)},
			{"bytes, a hundred", "storeapi", overBatchesOfOne("1000", "100", bytesOf, snappy)},
			{"bytes, a thousand", "storeapi", overBatchesOfOne("1000", "1000", bytesOf, snappy)},
			{"calls, batches of one", "storeapi", calls("1")},
			{"calls, batches of ten", "storeapi", calls("10")},
			{"calls, batches of a thousand", "storeapi", calls("1000")},
		},
		"Metrics are written without allocations": {
			{"Counter", "exposition", beside("exposition", vm, "scrape: Counter", 1e-9)},
			{"its allocations", "exposition", beside("exposition", vm, "scrape: Counter: allocations", 1)[:2]},
			{"allocated bytes", "exposition", []number{cell("exposition", "ferula", "scrape: Counter: allocated", 1)}},
			{"eight ranges", "exposition", beside("exposition", vm, "scrape: Histogram, 8 ranges", 1e-9)},
			{"a summary", "exposition", beside("exposition", vm, "scrape: Summary, 1000 updates between, window of 5m0s", 1e-6)},
			{"an update", "exposition", beside("exposition", vm, "update: PrometheusHistogram, 11 bounds", 1e-9)},
			{"lines of code", "exposition", []number{linesOf("github.com/"+vm, "^marshalTo$"),
				linesOf("github.com/ferula-io/ferula/metrics", "^append(To|Quantiles|Uint|Float|Number)$")}},
		},
		"Exemplars in time series of profiles": {
			{"a minute", "profiles", worstOfRange("1Minute")},
			{"five minutes", "profiles", worstOfRange("5Minutes")},
			{"a quarter", "profiles", worstOfRange("15Minutes")},
			{"range of an hour", "profiles", worstOfRange("1Hour")},
			{"by service", "profiles", []number{percentOver("profiles", "with exemplars", "without", "CPU: protobuf, 6,000 points by service")}},
			{"by pod", "profiles", []number{percentOver("profiles", "with exemplars", "without", "CPU: protobuf, 6,000 points by pod")}},
			{"allocations", "profiles", []number{percentOf("profiles/exemplars-allocs")}},
			{"push", "profiles", append(beside("profiles", "naive", "CPU: a push, recorded", 1e-6), cell("profiles", "ferula", "CPU: a profile's part of a flush, recorded", 1e-6))},
		},
		"Remote read is streamed": {
			{"real, eight", "sidecar", read("last byte: Series of 10,000 x 8 h")},
			{"user and sys, eight", "sidecar", read("CPU: Series of 10,000 x 8 h")},
			{"real, two", "sidecar", read("last byte: Series of 10,000 x 2 h")},
			{"user and sys, two", "sidecar", read("CPU: Series of 10,000 x 2 h")},
			{"first message", "sidecar", read("first byte: Series of 10,000 x 8 h")},
			{"memory of the sidecar", "sidecar", growth("sidecar", "Thanos", "growth of RssAnon: Series of 10,000 x 8 h")},
			{"the same after", "sidecar", course},
			{"server, samples", "remoteread", growth("remoteread", "Prometheus", "growth of RssAnon: samples, 8 h")},
			{"memory of the server, chunks", "remoteread", growth("remoteread", "Prometheus", "growth of RssAnon: chunks, 8 h")},
			{"CPU of the server, chunks", "remoteread", beside("remoteread", "Prometheus", "CPU: chunks, 8 h", ms)},
			{"first byte", "remoteread", beside("remoteread", "Prometheus", "first byte: chunks, 8 h", ms)},
			{"client of chunks, CPU", "remoteread", beside("remoteread", "Prometheus", "CPU of ferula's client: chunks, 8 h", ms)},
			{"client of chunks, memory", "remoteread", growth("remoteread", "Prometheus", "growth of RssAnon of ferula's client: chunks, 8 h")},
			{"CPU of the reader", "remoteread", queried("CPU of %s that queries by remote_read: ")},
			{"CPU of the server that it", "remoteread", queried("CPU of the server that %s queries by remote_read: ")},
		},
	}
}

// Every number in the last column of docs/perf/founding.md is that of RESULTS.md, to the digits of the document.
func TestFounding_FiguresAreThoseOfTheResults(t *testing.T) {
	for heading, all := range founding() {
		checkClaims(t, all, "\n## "+heading+"\n", "docs", "perf", "founding.md")
	}
}
