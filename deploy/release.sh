#!/usr/bin/env bash
# Builds a release into bin/release: for each platform an archive of the static binary with licences, units,
# manifests, manual page and completion scripts, its bill of materials, and on Linux a .deb and .rpm; container images of the
# platforms of Linux, the chart, and SHA256SUMS with its signature; and the context of Containerfile into bin/image. Called by
# `make release`:
#
#	make release PLATFORMS=linux/amd64 KEY=~/.ssh/release
#
# KEY is a key of ssh-keygen, the private one or, with an agent, the public one. Without it nothing is signed.
# The same commit, Go and certificates of public authorities (CA_CERTIFICATES) make the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=bin/release
rm -rf "$out" bin/image
mkdir -p "$out" bin/tools bin/image/bin bin/image/data bin/image/doc
ln -s /usr/bin/ferula bin/image/bin/prometheus
ln -s /usr/bin/ferula bin/image/bin/thanos
cp deploy/prometheus.yml bin/image/
export CGO_ENABLED=0 GOTOOLCHAIN=local
(cd tools/pack && GOWORK=off go build -o ../../bin/tools/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm)
(cd tools && GOWORK=off go build -o ../bin/tools/sbom ./sbom && GOWORK=off go build -o ../bin/tools/image ./image &&
	GOWORK=off go build -o ../bin/tools/licenses ./licenses)
host=$(go env GOHOSTOS)/$(go env GOHOSTARCH)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/completion" "$made/man"
build() { # PLATFORM FILE
	GOOS=${1%/*} GOARCH=${1#*/} go build -trimpath -buildvcs=true -tags clouds -ldflags='-s -w' -o "$2" ./cmd/ferula
}
# A binary for this machine writes the completion scripts and the manual page, which are the same for all platforms.
build "$host" bin/tools/ferula
bin/tools/ferula completion bash >"$made/completion/ferula.bash"
bin/tools/ferula completion zsh >"$made/completion/_ferula"
bin/tools/ferula completion fish >"$made/completion/ferula.fish"
bin/tools/ferula man >"$made/man/ferula.1"
# The program's own version names the files; a tag of an image has no "+".
version=$(bin/tools/ferula --version)
full=${version#ferula } version=${full//+/-}
created=$(git log -1 --format=%ct)
images=()
for platform in ${PLATFORMS:-linux/amd64 linux/arm64}; do
	name=ferula-$version-${platform/\//-}
	mkdir "$out/$name"
	if [[ $platform == "$host" ]]; then cp bin/tools/ferula "$out/$name/ferula"; else build "$platform" "$out/$name/ferula"; fi
	bin/tools/sbom "$out/$name/ferula" >"$out/$name.cdx.json"
	if [[ $platform == linux/* ]]; then
		cp "$out/$name/ferula" "$made/${platform/\//-}"
		images+=("$platform=$made/${platform/\//-}")
		if [[ ${platform#*/} == "${host#*/}" ]]; then cp "$out/$name/ferula" bin/image/ferula; fi
	fi
	GOOS=${platform%/*} GOARCH=${platform#*/} bin/tools/licenses -tags clouds ./cmd/ferula >"$out/$name/LICENSES.txt"
	if [[ $platform == linux/* ]]; then cp LICENSE "$out/$name/LICENSES.txt" bin/image/doc/; fi
	cp -r LICENSE README.md CHANGELOG.md SECURITY.md mixin deploy "$made/completion" "$made/man" "$out/$name/"
	# gzip -n writes no time.
	tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX-w --mtime="@$created" -cf - "$name" | gzip -n >"$out/$name.tar.gz"
	if [[ $platform == linux/* ]]; then
		gzip -9n "$out/$name/man/ferula.1"
		for packager in deb rpm; do
			ARCH=${platform#*/} VERSION=$full DIR=$out/$name SOURCE_DATE_EPOCH=$created \
				bin/tools/nfpm package --config deploy/packages/nfpm.yaml --packager $packager --target "$out/$name.$packager" >/dev/null
		done
	fi
	rm -r "${out:?}/$name"
done
# The chart has the version of this release; in the repository it has that of the next one.
cp -r deploy/chart "$made/ferula"
sed -i "s/^\(version\|appVersion\): .*/\1: $full/" "$made/ferula/Chart.yaml"
sed -i "/^image:/s/tag: [^,]*/tag: $version/" "$made/ferula/values.yaml"
tar -C "$made" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX-w --mtime="@$created" -cf - ferula | gzip -n >"$out/ferula-chart-$version.tgz"
if [[ ${#images[@]} -gt 0 ]]; then
	bin/tools/image -version "$version" -created "$created" -doc bin/image/doc -config deploy/prometheus.yml \
		${CA_CERTIFICATES:+-ca "$CA_CERTIFICATES"} -o "$out" "${images[@]}"
fi
(cd "$out" && sha256sum -- ferula-* >SHA256SUMS)
cat "$out/SHA256SUMS"
if [[ -n ${KEY:-} ]]; then
	ssh-keygen -q -Y sign -n ferula-release -f "$KEY" "$out/SHA256SUMS"
else
	echo "SHA256SUMS is not signed: KEY names no key of ssh-keygen" >&2
fi
