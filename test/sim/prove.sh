#!/usr/bin/env bash
# Proves that the simulator finds faults: each patch of test/sim/faults adds one fault
# to a copy of the tree, and the simulator must fail within a number of seeds. The
# first lines of a patch name the kind of scenario and the number of seeds:
#
#	# kind: storage
#	# seeds: 20
#	# fault: effect that a user would notice
#
# Usage: test/sim/prove.sh [PATCH...]. It prints a Markdown table row per patch. A patch
# that does not apply ends it before anything is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" HEAD
patches=("$@")
[[ ${#patches[@]} -gt 0 ]] || patches=(test/sim/faults/*.patch)
missed=0
for patch in "${patches[@]}"; do # all of them first: applying takes no time
	if ! git -C "$work/tree" apply --check "$root/$patch"; then
		echo "$patch does not apply" >&2
		missed=$((missed + 1))
	fi
done
((missed == 0)) || exit 1
go test -c -o "$work/sim.test" ./test/sim
for patch in "${patches[@]}"; do
	field() { sed -n "s/^# $1: //p" "$root/$patch" | head -n 1; }
	kind=$(field kind) seeds=$(field seeds) fault=$(field fault)
	git -C "$work/tree" reset --quiet --hard
	git -C "$work/tree" apply "$root/$patch"
	if [[ $kind == downsampled ]]; then # runs in the test's process
		(cd "$work/tree" && go test -c -o "$work/patched.test" ./test/sim)
		test=$work/patched.test binary=$(command -v true)
	else
		(cd "$work/tree" && go build -o "$work/ferula" ./cmd/ferula)
		test=$work/sim.test binary=$work/ferula
	fi
	if out=$(cd test/sim && "$test" -test.run TestSim -test.timeout 30m -sim.binary "$binary" -sim.kind "$kind" -sim.from 1 -sim.worlds "$seeds" -sim.shrink 0s 2>&1); then
		echo "| $(basename "$patch" .patch) | $kind | NOT FOUND in $seeds | $fault |"
		missed=$((missed + 1))
	else
		found=$(grep -cE 'seed [0-9]+ \(' <<<"$out" || true)
		echo "| $(basename "$patch" .patch) | $kind | within $((found > 1 ? found - 1 : 1)) of $seeds | $fault |"
	fi
done
exit $((missed > 0))
