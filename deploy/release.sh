#!/usr/bin/env bash
# Builds a release into bin/release: for each platform an archive of the static binary with licences, units,
# manifests, manual page and completion scripts, its bill of materials, a container image of the platforms of Linux, and
# SHA256SUMS; and the context of Containerfile into bin/image. Called by `make release`:
#
#	make release PLATFORMS=linux/amd64
#
# The same commit, Go and certificates of public authorities (CA_CERTIFICATES) make the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=bin/release
rm -rf "$out" bin/image
mkdir -p "$out" bin/tools bin/image/data bin/image/doc
export CGO_ENABLED=0 GOTOOLCHAIN=local
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
version=${version#ferula } version=${version//+/-}
created=$(git log -1 --format=%ct)
images=()
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}; do
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
	rm -r "${out:?}/$name"
done
if [[ ${#images[@]} -gt 0 ]]; then
	bin/tools/image -version "$version" -created "$created" -doc bin/image/doc ${CA_CERTIFICATES:+-ca "$CA_CERTIFICATES"} -o "$out/ferula-$version-oci.tar" "${images[@]}"
fi
(cd "$out" && sha256sum -- *.tar* *.json >SHA256SUMS)
cat "$out/SHA256SUMS"
