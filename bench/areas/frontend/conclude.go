package frontend

import (
	"fmt"
	"math"
	"strings"

	"github.com/ferula-io/ferula/bench/area"
)

// gzipRatioMax is the maximum ratio of the length of ferula's compressed response to that of Thanos'. If the ratio is
// higher, the goals with gzip have no figure.
const gzipRatioMax = 1.05

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	rec, out := &b.out.Recorder, b.out
	// Thanos is measured with and without gzip from the downstream: the cheaper variant counts. ferula has two splices: the
	// more expensive one counts.
	cpu, plain := cpuOf(identity), cpuOf(plainDown)
	peer := min(rec.Median(thanos, cpu), rec.Median(thanos, plain))
	out.Measure("frontend/vs-thanos", rec.Median(ferula, cpu)/peer, cpu, plain)
	for goal, q := range map[string]request{"frontend/vs-thanos-gzip": zipped, "frontend/cache-hit-gzip": zippedHit} {
		if float64(b.lengths[ferula+q.what]) <= gzipRatioMax*float64(b.lengths[thanos+q.what]) {
			out.Measure(goal, rec.Over(ferula, thanos, cpuOf(q)), cpuOf(q))
		}
	}
	out.Measure("frontend/vs-relay", rec.Over(ferula, relay, cpu), cpu)
	splices := b.kindsOf(ferula, joinWhat)
	splice := b.worst(ferula, splices)
	out.Measure("frontend/vs-memcpy", splice/rec.Median(copying, copyWhat), append(splices, copyWhat)...)
	out.Measure("frontend/cache-hit-vs-thanos", rec.Over(ferula, thanos, cpuOf(cacheHit)), cpuOf(cacheHit))
	plainSmall, zippedSmall := smallCPU(identity, smallRate), smallCPU(zipped, smallRate)
	out.Measure("frontend/small", area.Worst(rec.Over(ferula, thanos, plainSmall), rec.Over(ferula, thanos, zippedSmall)), plainSmall, zippedSmall)
	out.Measure("frontend/anon-59mb-mib", rec.Median(ferula, growthSmall)/(1<<20), growthSmall, idleAnon)
	out.Measure("frontend/anon-590mb-mib", rec.Median(ferula, growthBig)/(1<<20), growthBig)
	out.Notes = append(out.Notes, b.notes()...)
}

// kindsOf returns the kinds of readings whose names begin with prefix and that exist for a side.
func (b *bench) kindsOf(side, prefix string) []string {
	var found []string
	for _, what := range b.out.Recorder.Kinds() {
		if strings.HasPrefix(what, prefix) && !math.IsNaN(b.out.Recorder.Median(side, what)) {
			found = append(found, what)
		}
	}
	return found
}

// worst returns the greatest median of these kinds of readings.
func (b *bench) worst(side string, kinds []string) float64 {
	worst := math.NaN()
	for _, what := range kinds {
		if v := b.out.Recorder.Median(side, what); !(v <= worst) {
			worst = v
		}
	}
	return worst
}

func (b *bench) notes() []string {
	megabytes := float64(len(b.response.Whole.Plain)) / 1e6
	return append([]string{
		fmt.Sprintf("%d series x %d samples of 15-digit floats, 7 labels: %.1f MB, split in two at midnight by the default interval of %s. CPU is that of the frontend's process per query, sockets and collections included.", series, points, megabytes, interval),
		"The downstream is canned: the whole result and both halves were rendered in advance by Prometheus' codec; each is one write, and gzip is compressed in advance. Thanos requests gzip from it, as Go's transport does by default, ferula requests identity, its default. frontend/vs-thanos takes the cheaper of Thanos in front of a downstream with gzip and in front of one without.",
		"Start and end stay as requested with both (--no-query-range.align-range-with-step), so that both send the same queries. ferula's bytes equal the unsplit response's; Thanos' are encoded differently, so its labels, times and values are compared.",
		"The relay is net/http on both sides with reads of 1 MiB and writes of 256 KiB, as in the frontend; it fetches both halves at once and sends one after the other, unread.",
		"In memory all read and write 64 KiB at a time. Typed codecs: \"Cortex\" decodes, merges and encodes as Cortex' frontend does; \"engine\" avoids avoidable cost: it decodes into the engine's types, each series in one allocation, and Prometheus' JSONCodec encodes. frontend/vs-memcpy takes the slower of two splices by promjson.Splicer: plain, and with the check of timestamps against the steps that the frontend uses.",
		"A cache hit is the CPU of the process that serves from its memory cache, sockets included; the run fails if a hit reaches the downstream.",
		"With gzip, ferula compresses the first two hits of a response of more than 1 MiB, keeps the second in the cache as it was sent, and copies that from the third hit on, as long as the parts in the cache are the same. frontend/cache-hit-gzip is the cost of such a later hit. The row of the second hit has the cost of compression and keeping.",
		b.smallNote,
		"Growth is measured on a process that has just started: peak of RssAnon during its first query, less RssAnon after a collection before it. Ten times the series: the same series in ten clusters; Thanos does not run that.",
		"Rows with \"profile\": CPU per query by a profile of the process, which samples a hundred times a second; a sample belongs to the innermost function that matches a stage; for the relay, splice is its copying loop.",
	}, b.realNotes...)
}
