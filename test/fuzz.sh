#!/usr/bin/env bash
# Fuzzes every target of the repository:
#
#	test/fuzz.sh [-k COUNT] FUZZTIME [PACKAGE...]
#
# Each package is built once. FUZZPARALLEL is the number of workers, one for each core by
# default. Inputs that reach new code stay in the build cache and are the start of the next
# run; with -k, the COUNT smallest ones of each target are copied to the package's
# testdata/fuzz, where `go test` runs them too. A failing input is written there by the
# fuzzer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
keep=0
if [[ ${1:-} == -k ]]; then
	keep=$2
	shift 2
fi
fuzztime=${1:?usage: test/fuzz.sh [-k COUNT] FUZZTIME [PACKAGE...]}
shift
(($#)) || set -- ./internal/... ./metrics/... ./promjson/...
cache=$(go env GOCACHE)/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
while read -r path dir; do
	targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' || true)
	[[ $targets ]] || continue
	go test -c -fuzz=Fuzz -o "$work/fuzz.test" "$path"
	for target in $targets; do
		echo "$path $target"
		if ! (cd "$dir" && "$work/fuzz.test" -test.run='^$' -test.fuzz="^$target\$" -test.fuzztime="$fuzztime" \
			-test.fuzzminimizetime="${FUZZMINIMIZE:-5s}" ${FUZZPARALLEL:+-test.parallel="$FUZZPARALLEL"} -test.fuzzcachedir="$cache/$path" -test.timeout=0 >"$work/log" 2>&1); then
			cat "$work/log"
			# At its time limit the fuzzer sometimes reports the deadline of its own worker as a failure. A failing input is always written.
			if grep -qx '    context deadline exceeded' "$work/log" && ! grep -qE 'Failing input written|_test\.go:|panic:' "$work/log"; then
				echo "$target: no failing input, the time limit only"
			else
				failed=1
			fi
		fi
		if ((keep)) && [[ -d $cache/$path/$target ]]; then
			mkdir -p "$dir/testdata/fuzz/$target"
			find "$cache/$path/$target" -type f -size -2k -printf '%s %p\n' | sort -n | sed "${keep}q" | cut -d' ' -f2- |
				xargs -r cp -t "$dir/testdata/fuzz/$target"
		fi
	done
done < <(go list -f '{{.ImportPath}} {{.Dir}}' "$@")
exit $failed
