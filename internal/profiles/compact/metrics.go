package compact

import (
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// compactMetrics use Thanos' names where they exist, so that alerts of Thanos keep working.
type compactMetrics struct {
	iterations            *metrics.Counter
	compactions, vertical *metrics.Counter
	started, completed    *metrics.Counter
	failures              *metrics.Counter
	cleaned               *metrics.Counter
	cleanFailures         *metrics.Counter
	partialDeleted        *metrics.Counter
	marked                *metrics.CounterVec
	todo, broken          *metrics.Gauge
	lastSuccess           *metrics.Gauge
}

func newCompactMetrics(set *metrics.Set) compactMetrics {
	counter := func(name, help string) *metrics.Counter { return process.Counter(set, name, help) }
	gauge := func(name, help string) *metrics.Gauge { return process.Gauge(set, name, help, nil) }
	return compactMetrics{
		iterations: counter("thanos_compact_iterations_total",
			"Number of iterations that were successful for all tenants."),
		compactions: counter("thanos_compact_group_compactions_total",
			"Number of groups of blocks that were compacted into a new block."),
		vertical: counter("thanos_compact_group_vertical_compactions_total",
			"Number of compacted groups of blocks with profiles in common."),
		started: counter("thanos_compact_group_compaction_runs_started_total",
			"Number of attempts to compact a group of blocks."),
		completed: counter("thanos_compact_group_compaction_runs_completed_total",
			"Number of attempts that compacted a group of blocks into a new block."),
		failures: counter("thanos_compact_group_compactions_failures_total",
			"Number of failed compactions, and of blocks that are not compacted because they are corrupt or too large."),
		cleaned: counter("thanos_compact_blocks_cleaned_total", "Number of blocks deleted from the bucket."),
		cleanFailures: counter("thanos_compact_block_cleanup_failures_total",
			"Number of failed deletions of blocks, which are retried."),
		partialDeleted: counter("thanos_compact_aborted_partial_uploads_deletion_attempts_total",
			"Number of attempts to delete blocks whose upload was interrupted."),
		marked: set.NewCounterVec("thanos_compact_blocks_marked_total", "Number of blocks marked for deletion.",
			"marker", "reason"),
		todo: gauge("thanos_compact_todo_compactions",
			"Number of groups of blocks to compact, for the tenant that was planned last."),
		broken: gauge("ferula_profiles_compact_broken_blocks",
			"Number of profile blocks in the bucket that are not compacted because they are corrupt, cut short or too large."),
		lastSuccess: gauge("ferula_profiles_compact_last_success_timestamp_seconds",
			"Timestamp of the end of the last successful iteration."),
	}
}
