#!/usr/bin/env bash
# Tags the public modules of the repository in which it is called, at HEAD: `make tags VERSION=v0.1.0`, or
#
#	deploy/tags.sh v0.1.0
#
# metrics/v0.1.0 and promjson/v0.1.0 name HEAD. metrics/promcompat/v0.1.0 names a commit after it, on no branch, whose go.mod
# requires metrics v0.1.0 instead of the directory next to it. The script pushes no tags and changes no files.
set -euo pipefail
version=${1:-}
if [[ ! $version =~ ^v(0|1)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "usage: deploy/tags.sh v0.1.0; got \"$version\". From v2 on the paths of the modules would need a suffix." >&2
	exit 2
fi
for module in metrics promjson metrics/promcompat; do
	if git rev-parse -q --verify "refs/tags/$module/$version" >/dev/null; then
		echo "$module/$version exists: a published version never changes" >&2
		exit 1
	fi
done
index=$(mktemp)
trap 'rm -f "$index"' EXIT
export GIT_INDEX_FILE=$index
file=metrics/promcompat/go.mod
git read-tree HEAD
required=$(git show "HEAD:$file" | sed -E "/^replace .*\/metrics =>/d; s#(/ferula/metrics) v0\.0\.0\$#\1 $version#" | sed -E -e ':a' -e '/^\n*$/{$d;N;ba' -e '}' | git hash-object -w --stdin)
git cat-file -p "$required" | grep -q "/ferula/metrics $version\$" || { echo "$file does not require metrics v0.0.0" >&2; exit 1; }
git update-index --cacheinfo "100644,$required,$file"
commit=$(git commit-tree "$(git write-tree)" -p HEAD -m "metrics/promcompat: requires metrics $version")
for module in metrics promjson; do
	git tag -a -m "$module $version" "$module/$version" HEAD
done
git tag -a -m "metrics/promcompat $version" "metrics/promcompat/$version" "$commit"
echo "git push origin metrics/$version promjson/$version metrics/promcompat/$version"
