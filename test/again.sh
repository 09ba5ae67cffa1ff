#!/usr/bin/env bash
# again.sh FLAGS COMMAND...: runs COMMAND, which calls go test. If tests fail, runs these
# once more, alone, with FLAGS. A test that passes then is reported as flaky on the last
# line, and the exit status is 0: it must be mended, but does not hide the other results.
# More than LIMIT failing tests, or a package that does not build, are not run again.
set -uo pipefail
LIMIT=4
flags=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[[ $status != 0 ]] || exit 0
! grep -qE '^FAIL\s.*\[(build|setup) failed\]' "$log" || exit "$status"

# One line for each failing package: its path, a tab and its failing tests, joined by |.
failed=$(awk -F'\t' '
	/^--- FAIL: /     { split($0, word, " "); tests = tests (tests == "" ? "" : "|") word[3] }
	/^FAIL\t/         { print $2 "\t" tests; tests = "" }
	/^(ok  |\?   )\t/ { tests = "" }' "$log")
[[ -n $failed ]] || exit "$status"
count=$(tr '|' '\n' <<<"$failed" | wc -l)
if ((count > LIMIT)); then
	echo "$count tests failed: not run again"
	exit "$status"
fi

printf '\n== again, because they failed:\n%s\n' "$failed"
while IFS=$'\t' read -r package tests; do
	# shellcheck disable=SC2086 # FLAGS is several words
	go test -vet=off -count=1 -timeout 25m $flags ${tests:+-run "^($tests)\$"} "$package" </dev/null || exit "$status"
done <<<"$failed"
echo "FLAKY: failed once, then passed:" $failed
