#!/usr/bin/env bash
# The long tests: the simulator for half an hour, a million random queries, a simulated week of profiles.
#
#	test/soak.sh FILE
#
# The results of a run without a failure replace those between the markers "begin soak" and "end soak" of FILE. For a shorter
# run: SOAK_SECONDS, SOAK_QUERIES, SOAK_WEEK (flags of the week).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
file=${1:?usage: test/soak.sh FILE}
seconds=${SOAK_SECONDS:-1800} queries=${SOAK_QUERIES:-1000000} week=${SOAK_WEEK:--week.services=100 -week.every=10s}
grep -qx '<!-- begin soak -->' "$file" && grep -qx '<!-- end soak -->' "$file" || { echo "$file has no markers of soak" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

changed=$(git status --porcelain --untracked-files=no -- . ":(exclude)docs/perf/soak.md")
cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -1)
{
	echo "- $(date -u +%F), commit $(git rev-parse --short=12 HEAD)${changed:++}"
	echo "- ${cpu:-unknown}, $(getconf _NPROCESSORS_ONLN) cores, $(go env GOVERSION)"
	echo
	echo "| part | took | result |"
	echo "|---|---|---|"
} >"$work/section"

# Results of one kind say once what their numbers are.
shorter='s/;/; /g; s/(; [a-z]+): [0-9]+ scenarios, /\1: /g; s/ data compared//2g; s/; seed ([0-9]+: [0-9.]+ % of [0-9]+) queries by columns/; \1/g'

# part NAME PATTERN ARGUMENTS...: runs go test, and notes the lines of its log that have the pattern in one row. A part that fails does
# not stop the next ones.
failed=0
part() {
	local name=$1 pattern=$2 began=$SECONDS
	shift 2
	if ! go test -count=1 -v "$@" >"$work/log" 2>&1; then
		cat "$work/log"
		echo "$name failed: $file is not changed" >&2
		failed=1
		return
	fi
	grep -E "$pattern" "$work/log" | sed -E 's/^ *[a-z_]+\.go:[0-9]+: //' >"$work/lines" || {
		echo "$name logs no result: $file is not changed" >&2
		failed=1
		return
	}
	local took=$((SECONDS - began))
	echo "| $name | $((took / 60)) min $((took % 60)) s | $(tr '|' '/' <"$work/lines" | paste -sd ';' | sed -E "$shorter") |" | tee -a "$work/section"
}

part "simulator" ' scenarios from seed | data compared$' ./test/sim -run '^TestSim_EveryPath' -sim.seconds="$seconds" -timeout $((seconds + 600))s
part "random queries" ' queries by columns' ./test/promql -run Random -promql.seed=0 -promql.queries="$queries" -timeout 3h
# shellcheck disable=SC2086 # several flags
part "simulated week" ' profiles in ' ./internal/profiles/store -run SimulatedWeek $week -timeout 2h
((failed == 0)) || exit 1

awk -v section="$work/section" '
	/^<!-- end soak -->$/ { inside = 0 }
	!inside { print }
	/^<!-- begin soak -->$/ { inside = 1; while ((getline line < section) > 0) print line }
' "$file" >"$work/file"
cp "$work/file" "$file"
