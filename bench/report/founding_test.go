package report

import "testing"

// rowOver is a row of one side over another row of a side, in percent.
func rowOver(areaName, side, row, otherSide, otherRow string) number {
	return number{of: func(t *testing.T, r Results) float64 {
		return 100 * cellOf(t, r, areaName, side, row) / cellOf(t, r, areaName, otherSide, otherRow)
	}}
}

// beside are a row of a peer, of ferula, and ferula's share of the peer in percent.
func beside(areaName, peer, row string, unit float64) []number {
	return []number{cell(areaName, peer, row, unit), cell(areaName, "ferula", row, unit), percentOver(areaName, "ferula", peer, row)}
}

// batched are the times with a batch size over the times with batches of one, of Thanos and ferula, and ferula over Thanos.
func batched(series, batch string) []number {
	row := func(batch string) string { return "time: 100 samples x " + series + " series, batch " + batch }
	return []number{rowOver("storeapi", "Thanos", row(batch), "Thanos", row("1")), rowOver("storeapi", "ferula", row(batch), "ferula", row("1")),
		percentOver("storeapi", "ferula", "Thanos", row(batch))}
}

// founding are the claims of docs/perf/founding.md, by the heading of their table.
func founding() map[string][]claim {
	const behind, vm = "behind Thanos query: ", "VictoriaMetrics/metrics"
	times := func(n number, factor float64) number {
		return number{of: func(t *testing.T, r Results) float64 { return n.of(t, r) * factor }}
	}
	worstOfRange := func(minutes string) []number {
		return []number{worstOver("profiles", "with exemplars", "without", "server CPU: .* rows by service, step 60 s, "+minutes+" min")}
	}
	read := func(row string) []number { return beside("sidecar", "Thanos", row, ms) }
	growth := func(areaName, peer, row string) []number { return beside(areaName, peer, row, mibyte)[:2] }
	return map[string][]claim{
		"A query frontend decodes and encodes JSON": {
			{"total", "frontend", beside("frontend", "Thanos", behind+"last byte", 1)},
			{"frontend unmarshal", "frontend", []number{cell("frontend", "Thanos", behind+"profile, decode", 1)}},
			{"marshal over", "frontend", []number{times(rowOver("frontend", "Thanos", behind+"profile, encode", "Thanos", behind+"querier's profile, encode"), 0.01)}},
			{"frontend marshal", "frontend", []number{cell("frontend", "Thanos", behind+"profile, encode", 1)}},
			{"query data fetch", "frontend", []number{cell("frontend", "ferula", behind+"Server-Timing fetch", 1)}},
			{"query marshal", "frontend", []number{cell("frontend", "Thanos", behind+"querier's profile, encode", 1)}},
			{"CPU of the frontend", "frontend", []number{cell("frontend", "Thanos", behind+"CPU of the frontend", 1), cell("frontend", "ferula", behind+"CPU of the frontend", ms),
				percentOver("frontend", "ferula", "Thanos", behind+"CPU of the frontend"), cell("frontend", "relay", behind+"CPU of the frontend", ms)}},
		},
		"Series are sent in batches": {
			{"ten: a hundred", "storeapi", batched("100", "10")},
			{"a hundred: the same", "storeapi", batched("100", "100")},
			{"ten: a thousand", "storeapi", batched("1000", "10")},
			{"a thousand: the same", "storeapi", batched("1000", "1000")},
			{"bytes", "storeapi", []number{
				rowOver("storeapi", "Thanos", "bytes of a series: 100 samples, batch 10", "Thanos", "bytes of a series: 100 samples, batch 1"),
				rowOver("storeapi", "ferula", "bytes of a series: 100 samples, batch 10", "ferula", "bytes of a series: 100 samples, batch 1")}},
			{"snappy", "storeapi", []number{percentOver("storeapi", "ferula", "Thanos", "time: 100 samples x 100000 series, batch 64, snappy")}},
		},
		"Metrics are written without allocations": {
			{"Counter", "exposition", beside("exposition", vm, "scrape: Counter", 1e-9)},
			{"its allocations", "exposition", beside("exposition", vm, "scrape: Counter: allocations", 1)[:2]},
			{"allocated bytes", "exposition", []number{cell("exposition", "ferula", "scrape: Counter: allocated", 1)}},
			{"eight ranges", "exposition", beside("exposition", vm, "scrape: Histogram, 8 ranges", 1e-9)},
			{"a summary", "exposition", beside("exposition", vm, "scrape: Summary, 1000 updates between, window of 5m0s", 1e-6)},
			{"an update", "exposition", beside("exposition", vm, "update: PrometheusHistogram, 11 bounds", 1e-9)},
		},
		"Exemplars in time series of profiles": {
			{"a minute", "profiles", worstOfRange("1")},
			{"five minutes", "profiles", worstOfRange("5")},
			{"a quarter", "profiles", worstOfRange("15")},
			{"range of an hour", "profiles", worstOfRange("60")},
			{"by pod", "profiles", []number{percentOver("profiles", "with exemplars", "without", "server CPU: 6,100 points by pod")}},
			{"allocations", "profiles", []number{percentOf("profiles/exemplars-allocs")}},
		},
		"Remote read is streamed": {
			{"real, eight", "sidecar", read("real: Series of 10,000 x 8 h")},
			{"user, eight", "sidecar", read("user: Series of 10,000 x 8 h")},
			{"sys, eight", "sidecar", read("sys: Series of 10,000 x 8 h")},
			{"real, two", "sidecar", read("real: Series of 10,000 x 2 h")},
			{"memory of the sidecar", "sidecar", growth("sidecar", "Thanos", "growth of RssAnon: Series of 10,000 x 8 h")},
			{"server, samples", "remoteread", growth("remoteread", "Prometheus", "growth of RssAnon: samples, 8 h")},
			{"memory of the server, chunks", "remoteread", growth("remoteread", "Prometheus", "growth of RssAnon: chunks, 8 h")},
			{"CPU of the server", "remoteread", beside("remoteread", "Prometheus", "CPU: chunks, 8 h", ms)},
			{"first byte", "remoteread", beside("remoteread", "Prometheus", "first byte: chunks, 8 h", ms)},
		},
	}
}

// Every number in the last column of docs/perf/founding.md is that of RESULTS.md, to the digits of the document.
func TestFounding_FiguresAreThoseOfTheResults(t *testing.T) {
	for heading, all := range founding() {
		checkClaims(t, all, "\n## "+heading+"\n", "docs", "perf", "founding.md")
	}
}
