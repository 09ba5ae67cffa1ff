#!/usr/bin/env bash
# Tags the release and the public modules of the repository in which it is called, at HEAD: `make tags VERSION=v0.1.0`, or
#
#	deploy/tags.sh v0.1.0
#
# It fails, and names every reason, unless HEAD is what is released: nothing is uncommitted, CHANGELOG.md, the chart and the
# manifests have the version, and the maintainers and their key are named. v0.1.0, metrics/v0.1.0 and promjson/v0.1.0 name HEAD. metrics/promcompat/v0.1.0 names a commit after it, on no branch, whose go.mod
# requires metrics v0.1.0 instead of the directory next to it. The script pushes no tags and changes no files.
set -euo pipefail
version=${1:-}
if [[ ! $version =~ ^v(0|1)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "usage: deploy/tags.sh v0.1.0; got \"$version\". From v2 on the paths of the modules would need a suffix." >&2
	exit 2
fi
faults=()
for tag in "$version" {metrics,promjson,metrics/promcompat}/"$version"; do
	if git rev-parse -q --verify "refs/tags/$tag" >/dev/null; then
		faults+=("$tag exists: a published version never changes")
	fi
done
if [[ -n $(git status --porcelain) ]]; then
	faults+=("the working tree is not clean: git status")
fi
has() { # FILE PATTERN REASON
	git show "HEAD:$1" | grep -qE -- "$2" || faults+=("$1: $3")
}
number=${version#v} pattern=${version#v}
pattern=${pattern//./\\.}
section=$(git show HEAD:CHANGELOG.md | grep -m1 '^## ' || true)
if [[ ! $section =~ ^"## $number / "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]]; then
	faults+=("CHANGELOG.md: the first section is \"$section\", not \"## $number / DATE\"")
fi
has deploy/chart/Chart.yaml "^version: $pattern\$" "the version is not $number"
has deploy/chart/Chart.yaml "^appVersion: $pattern\$" "the appVersion is not $number"
has deploy/chart/values.yaml "^image: .*tag: $pattern[,}]" "the tag of the image is not $number"
has deploy/kube-prometheus-stack.yml "/ferula:$pattern\$" "the tag of the image is not $number"
for dir in kustomize kustomize/sidecar kustomize/profiles-compact overlay; do
	has "deploy/$dir/kustomization.yaml" "newTag: $pattern\}" "newTag is not $number"
done
if git show HEAD:MAINTAINERS.md | grep "not named yet" >/dev/null; then
	faults+=("MAINTAINERS.md: nobody is named")
fi
# The workflow that publishes a tag refuses to sign by another key.
git cat-file -e HEAD:deploy/release.pub 2>/dev/null || faults+=("deploy/release.pub: the key of the releases is missing")
if ((${#faults[@]})); then
	printf '%s\n' "${faults[@]}" >&2
	exit 1
fi
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
git tag -a -m "ferula $version" "$version" HEAD
echo "git push origin $version metrics/$version promjson/$version metrics/promcompat/$version"
