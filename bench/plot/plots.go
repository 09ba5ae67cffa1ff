package plot

import "fmt"

// charts returns the plots of docs/perf. README.md shows the first.
func charts() []chart {
	return []chart{dashboard(), storeapi(), remoteReadCPU(), remoteReadMemory(), remoteReadLatency(), promqlCPU(), promqlMemory(),
		frontendMemory(), frontendCPU(), exposition(), summaries(), profiles(), streams()}
}

// sized returns points whose rows are made from a size.
func sized(row func(n int) string, sizes ...int) (points []point) {
	for _, n := range sizes {
		points = append(points, point{float64(n), []string{row(n)}})
	}
	return points
}

func one(x float64, row string) []point { return []point{{x, []string{row}}} }

func storeapi() chart {
	c := lines{
		file: "storeapi-cpu", area: "storeapi", title: "StoreAPI: CPU of server and client for a series",
		note: "Series of 100 and of 240 samples in batches of 64, which Thanos' querier requests",
		x:    "series in the response", y: "CPU, ns for a series",
	}
	for _, side := range []struct{ name, class string }{{"Thanos", peer}, {"ferula", own}} {
		for _, samples := range []int{240, 100} {
			c.lines = append(c.lines, line{
				name: fmt.Sprintf("%s, %d samples", side.name, samples), class: side.class, side: side.name, dashed: samples == 100,
				points: sized(func(n int) string { return fmt.Sprintf("CPU: %d samples x %d series, batch 64", samples, n) }, 100, 1000, 10_000, 100_000),
			})
		}
	}
	return c
}

// forms are the lines of the two servers of remote read and the two forms of its responses.
func forms(points func(form string) []point) (all []line) {
	for _, side := range []struct{ name, class string }{{"Prometheus", peer}, {"ferula", own}} {
		for _, form := range []string{"samples", "chunks"} {
			all = append(all, line{name: side.name + ", " + form, class: side.class, side: side.name, dashed: form == "chunks", points: points(form)})
		}
	}
	return all
}

func remoteReadCPU() chart {
	return lines{
		file: "remote-read-cpu", area: "remoteread", title: "Remote read: CPU of the server for a response",
		note: "10,000 series in blocks, a sample every 15 s; user and system time, in ticks of 10 ms",
		x:    "hours", y: "CPU", logY: true,
		lines: forms(func(form string) (points []point) {
			for _, hours := range []int{2, 8} {
				what := fmt.Sprintf(": %s, %d h", form, hours)
				points = append(points, point{float64(hours), []string{"user" + what, "sys" + what}})
			}
			return points
		}),
	}
}

func remoteReadMemory() chart {
	c := lines{
		file: "remote-read-memory-by-size", area: "remoteread", title: "Remote read: growth of memory during the first response",
		note: "1,000 and 100,000 series of 120 samples, and 10,000 series of 1,920 samples",
		x:    "samples in the response", y: "growth of RssAnon", logY: true,
		lines: forms(func(form string) []point {
			growth := "growth of RssAnon: " + form + ", "
			return []point{
				{120_000, []string{growth + "1000 series x 120 samples"}}, {12_000_000, []string{growth + "100000 series x 120 samples"}},
				{19_200_000, []string{growth + "8 h"}},
			}
		}),
	}
	c.lines = append(c.lines, line{name: "ferula's client, samples", class: other, side: "ferula", points: one(19_200_000, "growth of RssAnon of ferula's client: samples, 8 h")})
	return c
}

func remoteReadLatency() chart {
	c := bars{
		file: "remote-read-latency", title: "Remote read: time from the request to the first and the last byte",
		note: "10,000 series; the longer bar of two has the full length",
	}
	for _, what := range []string{"chunks, 8 h", "samples, 8 h", "chunks, the last 2 h, in the head", "samples, the last 2 h, in the head"} {
		for _, which := range []string{"first byte: ", "last byte: "} {
			c.kinds = append(c.kinds, kind{which + what, "remoteread", []string{which + what}, []bar{{"Prometheus", peer}, {"ferula", own}}})
		}
	}
	return c
}

func promqlCPU() chart {
	points := []point{
		{2410, []string{"CPU: 10 series x 1 h, a thousand"}}, {1_800_000, []string{"CPU: sum by (rate), 40 min, step 15 s"}},
		{19_200_000, []string{"CPU: sum by (rate), 8 h"}},
	}
	const inHead, headSamples = "CPU: sum by (rate), the last hour, in the head", 2_600_000
	return lines{
		file: "promql-cpu", area: "engine", title: "PromQL over HTTP: CPU of the server for a range query",
		note: "10 series x 1 h; sum by (rate) over 10,000 series: 40 min and 8 h in blocks, 1 h in the head",
		x:    "samples that the query selects", y: "CPU", logY: true,
		lines: []line{
			{name: "Prometheus", class: peer, side: "Prometheus", points: points},
			{name: "Prometheus, head", class: peer, side: "Prometheus", points: one(headSamples, inHead)},
			{name: "VictoriaMetrics", class: other, side: "VictoriaMetrics", points: points[2:]},
			{name: "ferula", class: own, side: "ferula", points: points},
			{name: "ferula, head", class: own, side: "ferula", points: one(headSamples, inHead)},
		},
	}
}

func promqlMemory() chart {
	points := []point{
		{10_000, []string{"growth of RssAnon: sum by (rate), 2 h, 10,000 series"}}, {100_000, []string{"growth of RssAnon: sum by (rate), 2 h, 100,000 series"}},
	}
	return lines{
		file: "promql-memory", area: "engine", title: "PromQL over HTTP: growth of memory during a range query",
		note: "sum by (rate) over 2 h, the first query of a new process",
		x:    "series that the query selects", y: "growth of RssAnon", logY: true,
		lines: []line{{name: "Prometheus", class: peer, side: "Prometheus", points: points}, {name: "ferula", class: own, side: "ferula", points: points}},
	}
}

func frontendMemory() chart {
	const small, big = "growth of RssAnon: one response", "growth of RssAnon: ten times the series"
	return lines{
		file: "frontend-memory", area: "frontend", title: "Query frontend: growth of memory during the first response",
		note: "A range query of 161 points, split in two; Thanos does not run the larger one",
		x:    "series in the response", y: "growth of RssAnon", logY: true,
		lines: []line{
			{name: "Thanos", class: peer, side: "Thanos", points: one(11_000, small)},
			{name: "ferula", class: own, side: "ferula", points: []point{{11_000, []string{small}}, {110_000, []string{big}}}},
		},
	}
}

func frontendCPU() chart {
	two, three := []bar{{"Thanos", peer}, {"ferula", own}}, []bar{{"Thanos", peer}, {"relay", floor}, {"ferula", own}}
	return bars{
		file: "frontend-cpu", title: "Query frontend: CPU of the process for a range query of 59 MB",
		note: "The longest bar of a kind has the full length; the relay forwards bytes and reads none",
		kinds: []kind{
			{"client without compression", "frontend", []string{"CPU: client identity"}, three},
			{"client with gzip, as Grafana", "frontend", []string{"CPU: client gzip"}, two},
			{"from the cache, client without compression", "frontend", []string{"CPU: cache hit"}, two},
			{"a real query in front of Prometheus, client with gzip", "frontend", []string{"real query, client gzip: CPU of the frontend"}, two},
		},
	}
}

// libraries are the names of the two libraries that the module metrics is compared with.
const victoriaMetrics, clientGolang = "VictoriaMetrics/metrics", "client_golang"

func exposition() chart {
	points := append(one(1, "scrape: Counter"), sized(func(n int) string { return fmt.Sprintf("scrape: %d lines of all types, unchanged", n) }, 1000, 10_000)...)
	updated := one(10_000, "scrape: 10000 lines of counters, gauges, classic buckets and summaries, all updated")
	return lines{
		file: "exposition-cpu", area: "exposition", title: "Exposition: CPU of a scrape",
		note: "A counter, and metrics of all types, unchanged between scrapes; 10,000 lines all updated, too",
		x:    "lines", y: "CPU", logY: true,
		lines: []line{
			{name: clientGolang, class: other, side: clientGolang, points: points},
			{name: "client_golang, updated", class: other, side: clientGolang, points: updated},
			{name: victoriaMetrics, class: peer, side: victoriaMetrics, points: points},
			{name: "VictoriaMetrics, updated", class: peer, side: victoriaMetrics, points: updated},
			{name: "ferula", class: own, side: "ferula", points: points},
			{name: "ferula, updated", class: own, side: "ferula", points: updated},
			{name: "floor: copies rendered lines", class: floor, side: "floor", points: points},
		},
	}
}

func summaries() chart {
	points := sized(func(n int) string { return fmt.Sprintf("scrape: Summary, %d updates between, window of 5m0s", n) }, 1, 100, 1000)
	return lines{
		file: "exposition-summary", area: "exposition", title: "Exposition: CPU of a scrape of one summary, its updates included",
		note: "Five quantiles over 5 minutes; client_golang computes four by another algorithm",
		x:    "updates between two scrapes", y: "CPU", logY: true,
		lines: []line{
			{name: clientGolang, class: other, side: clientGolang, points: points},
			{name: victoriaMetrics, class: peer, side: victoriaMetrics, points: points},
			{name: "ferula", class: own, side: "ferula", points: points},
		},
	}
}

func profiles() chart {
	whole := sized(func(n int) string { return fmt.Sprintf("time: %d rows, 100 datasets, 60 min", n) }, 3000, 100_000, 1_000_000)
	grouped := sized(func(n int) string { return fmt.Sprintf("time: %d rows, 100 datasets, 60 min, by service", n) }, 3000, 100_000, 1_000_000)
	return lines{
		file: "profiles-cpu", area: "profiles", title: "Profiles: CPU of a select of series over an hour",
		note: "The engine alone, 100 services; with exemplars and without; parquet-go reads the same rows",
		x:    "profiles in the block", y: "CPU", logY: true,
		lines: []line{
			{name: "parquet-go, row by row", class: peer, side: "naive", points: whole},
			{name: "ferula by service, exemplars", class: own, side: "with exemplars", points: grouped},
			{name: "ferula by service", class: own, side: "without", dashed: true, points: grouped},
			{name: "ferula, sum, exemplars", class: other, side: "with exemplars", points: whole},
			{name: "ferula, sum", class: other, side: "without", dashed: true, points: whole},
		},
	}
}

// streams are requests of one size only.
func streams() chart {
	both := []bar{{"Thanos", peer}, {"ferula", own}}
	return bars{
		file: "storeapi-programs-cpu", title: "Sidecar, store and querier: CPU of the process for a request",
		note: "10,000 series of 8 h, except in the last kind; the longer bar of two has the full length",
		kinds: []kind{
			{"sidecar: Series", "sidecar", []string{"CPU: Series of 10,000 x 8 h"}, both},
			{"store: Series, the first request", "store", []string{"CPU, cold: Series of 10,000 x 8 h in four blocks"}, both},
			{"store: Series, later requests", "store", []string{"CPU, warm: Series of 10,000 x 8 h in four blocks"}, both},
			{"querier: sum by (namespace)", "storeapi", []string{"CPU of the querier: sum by (namespace), 8 h"}, both},
			{"querier: 200,000 series of two stores, merged and forwarded", "storeapi",
				[]string{"CPU of the querier: 200,000 series of 120 samples of two stores, merged and forwarded"}, both},
		},
	}
}

// dashboard is the plot of README.md: one query through every process of Thanos' read path, and through ferula's.
func dashboard() chart {
	both := []bar{{"Thanos", peer}, {"ferula", own}}
	return bars{
		file: "dashboard-query", title: "One dashboard query through the whole read path",
		note: "Shorter is better. 10,000 series x 161 points; latency: 500 series, 16 clients at once",
		kinds: []kind{
			{"CPU of all processes for the query", "stack", []string{"with a store: CPU: 10,000 series x 161 points: all"}, both},
			{"Peak memory of all processes", "stack", []string{"with a store: peak RssAnon: all"}, both},
			{"Latency", "stack", []string{"with a store: latency: 500 series x 161 points, 16 clients"}, both},
		},
	}
}
