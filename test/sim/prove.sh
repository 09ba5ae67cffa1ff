#!/usr/bin/env bash
# Proves that the simulator finds faults: each patch of test/sim/faults adds one fault
# to a copy of the tree, and the simulator must fail within a number of seeds. The
# first lines of a patch name the kind of scenario and the number of seeds:
#
#	# kind: storage
#	# seeds: 20
#	# fault: effect that a user would notice
#
# Usage: test/sim/prove.sh [PATCH...]. It prints a Markdown table row per patch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" HEAD
patches=("$@")
[[ ${#patches[@]} -gt 0 ]] || patches=(test/sim/faults/*.patch)
go test -c -o "$work/sim.test" ./test/sim
missed=0
for patch in "${patches[@]}"; do
	field() { sed -n "s/^# $1: //p" "$root/$patch" | head -n 1; }
	kind=$(field kind) seeds=$(field seeds) fault=$(field fault)
	git -C "$work/tree" reset --quiet --hard
	if ! git -C "$work/tree" apply "$root/$patch"; then
		echo "| $(basename "$patch" .patch) | $kind | the patch does not apply | |"
		missed=$((missed + 1))
		continue
	fi
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
