#!/usr/bin/env bash
# Fuzzes every target of the repository:
#
#	test/fuzz.sh [-k COUNT] [-t FILE] FUZZTIME [PACKAGE...]
#
# FUZZTIME is a time such as 30s, or a number of executions such as 1000x.
#
# Each package is built once. FUZZPARALLEL is the number of workers, one for each core by
# default. Inputs that reach new code stay in the build cache and are the start of the next
# run; with -k, the COUNT smallest ones of each target are copied to the package's
# testdata/fuzz, where `go test` runs them too. A failing input is written there by the
# fuzzer.
#
# With -t, the executions of each target without a failure are added to its line of FILE (package, target, executions), and a
# FUZZTIME of Nx continues each target until its total is N. After an interruption the next run begins with the interrupted target.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep=0 totals=
while getopts k:t: option; do
	case $option in
	k) keep=$OPTARG ;;
	t) totals=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
fuzztime=${1:?usage: test/fuzz.sh [-k COUNT] [-t FILE] FUZZTIME [PACKAGE...]}
shift
(($#)) || set -- ./internal/... ./metrics/... ./promjson/...
cache=$(go env GOCACHE)/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# total PACKAGE TARGET: the executions of a target so far.
total() { awk -F'\t' -v p="$1" -v t="$2" '$1 == p && $2 == t { n = $3 } END { print n + 0 }' "$totals"; }

# count PACKAGE TARGET: adds the executions of the last run, of which the fuzzer logs the number.
count() {
	local execs
	execs=$(sed -nE 's/^fuzz: elapsed: .*, execs: ([0-9]+) .*/\1/p' "$work/log" | tail -1)
	awk -F'\t' -v p="$1" -v t="$2" -v n="${execs:-0}" '
		BEGIN { OFS = "\t" }
		$1 == p && $2 == t { $3 += n; seen = 1 }
		{ print }
		END { if (!seen) print p, t, n }' "$totals" | LC_ALL=C sort >"$work/totals"
	cp "$work/totals" "$totals"
}

if [[ $totals ]]; then touch "$totals"; fi
failed=0
packages=$(go list -f '{{.ImportPath}} {{.Dir}}' "$@") # a failure of go list ends the script
while read -r path dir; do
	targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' || true)
	[[ $targets ]] || continue
	rm -f "$work/fuzz.test"
	for target in $targets; do
		limit=$fuzztime
		if [[ $totals && $fuzztime == *x ]]; then
			limit=$((${fuzztime%x} - $(total "$path" "$target")))x
			if ((${limit%x} <= 0)); then continue; fi
		fi
		if [[ ! -e $work/fuzz.test ]] && ! go test -c -fuzz=Fuzz -o "$work/fuzz.test" "$path"; then
			failed=1
			break
		fi
		echo "$path $target"
		ok=1
		if ! (cd "$dir" && "$work/fuzz.test" -test.run='^$' -test.fuzz="^$target\$" -test.fuzztime="$limit" \
			-test.fuzzminimizetime="${FUZZMINIMIZE:-5s}" ${FUZZPARALLEL:+-test.parallel="$FUZZPARALLEL"} -test.fuzzcachedir="$cache/$path" -test.timeout=0 >"$work/log" 2>&1); then
			ok=0
			# At its time limit the fuzzer sometimes reports the deadline of its own worker as a failure. A failing input is always written.
			if grep -qx '    context deadline exceeded' "$work/log" && ! grep -qE 'Failing input written|_test\.go:|panic:' "$work/log"; then
				echo "$target: no failing input, the time limit only"
				ok=1
			else
				cat "$work/log"
				failed=1
			fi
		fi
		if [[ $totals ]] && ((ok)); then count "$path" "$target"; fi
		if ((keep)) && [[ -d $cache/$path/$target ]]; then
			mkdir -p "$dir/testdata/fuzz/$target"
			find "$cache/$path/$target" -type f -size -2k -printf '%s %p\n' | sort -n | sed "${keep}q" | cut -d' ' -f2- |
				xargs -r cp -t "$dir/testdata/fuzz/$target"
		fi
	done
done <<<"$packages"
exit $failed
