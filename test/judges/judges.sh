#!/usr/bin/env bash
# Runs the suites of others against bin/ferula and writes their scores to the file of the argument. Packages of npm and
# PyPI are installed into test/clients/.cache/judges.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FERULA_CLIENTS_DIR:-$here/../clients/.cache}/judges
prometheus=$("$here/../peers/build.sh" prometheus)
mkdir -p "$cache"
cp "$here"/perses/* "$cache/"
(cd "$cache" && npm ci --no-audit --no-fund --ignore-scripts --legacy-peer-deps --loglevel=error >&2)
[[ -e $cache/python/installed ]] || {
	python3 -m venv "$cache/python" >&2
	"$cache/python/bin/pip" install --quiet --disable-pip-version-check prometheus-client==0.26.0 >&2
	touch "$cache/python/installed"
}
cd "$here"
export GOWORK=off
# The receiver tests of the suite use a field of TimeSeries that the Prometheus of the suite's go.mod has no more.
suite=github.com/prometheus/compliance/remotewrite
go mod download "$suite"
chmod -R u+w "$cache/remotewrite" 2>/dev/null || true
rm -rf "$cache/remotewrite"
cp -r "$(go list -m -f '{{.Dir}}' "$suite")" "$cache/remotewrite"
chmod -R u+w "$cache/remotewrite"
(cd "$cache/remotewrite" && GOFLAGS=-mod=mod go get -t ./receiver github.com/prometheus/prometheus@v0.307.3)
go run . -ferula "$here/../../bin/ferula" -prometheus "$prometheus" -clients "$(cd "$cache" && pwd)" \
	-remote "$(cd "$cache/remotewrite" && pwd)" -out "$1"
