#!/usr/bin/env bash
# Builds a release into bin/release: for each platform an archive of the static binary with licence, units,
# manifests, manual page and completion scripts, its bill of materials, and SHA256SUMS. Called by `make release`:
#
#	make release PLATFORMS=linux/amd64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=bin/release
rm -rf "$out"
mkdir -p "$out" bin/tools
export CGO_ENABLED=0 GOTOOLCHAIN=local
(cd tools && GOWORK=off go build -o ../bin/tools/sbom ./sbom)
# A binary for this machine writes the completion scripts and the manual page, which are the same for all platforms.
go build -trimpath -tags clouds -ldflags='-s -w' -o bin/tools/ferula ./cmd/ferula
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/completion" "$made/man"
bin/tools/ferula completion bash >"$made/completion/ferula.bash"
bin/tools/ferula completion zsh >"$made/completion/_ferula"
bin/tools/ferula completion fish >"$made/completion/ferula.fish"
bin/tools/ferula man >"$made/man/ferula.1"
version=$(git describe --tags --match 'v[0-9]*' --always --dirty) # not a tag of a library, which has a slash
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}; do
	name=ferula-${version#v}-${platform/\//-}
	mkdir "$out/$name"
	GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -tags clouds -ldflags='-s -w' -o "$out/$name/ferula" ./cmd/ferula
	bin/tools/sbom "$out/$name/ferula" >"$out/$name.cdx.json"
	if [[ $platform == "$(go env GOHOSTOS)/$(go env GOHOSTARCH)" ]]; then cp "$out/$name/ferula" bin/ferula; fi
	cp -r LICENSE README.md CHANGELOG.md SECURITY.md mixin deploy "$made/completion" "$made/man" "$out/$name/"
	tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -czf "$out/$name.tar.gz" "$name"
	rm -r "${out:?}/$name"
done
(cd "$out" && sha256sum -- *.tar.gz *.json >SHA256SUMS)
cat "$out/SHA256SUMS"
