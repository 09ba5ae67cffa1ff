#!/usr/bin/env bash
# Runs the page's end-to-end test in Chromium against a new ferula process with a free
# port and an empty folder, and removes both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
pid=
cleanup() {
	if [[ -n $pid ]]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT

go build -o "$work/ferula" ./cmd/ferula
"$work/ferula" serve --web.listen-address=127.0.0.1:0 --grpc-address=127.0.0.1:0 --storage.tsdb.path="$work/data" 2>"$work/log" &
pid=$!
url=
for _ in $(seq 100); do
	url=$(sed -n 's#.*msg=Ready url=\(http://[^ ]*\)/ .*#\1#p' "$work/log" | head -n 1)
	[[ -n $url ]] && break
	sleep 0.2
done
[[ -n $url ]] || { cat "$work/log"; exit 1; }
sleep 20 # a graph needs a few scrapes
cd ui
[[ -d node_modules ]] || npm ci --no-audit --no-fund --loglevel=error
SCREENSHOTS=${SCREENSHOTS:-$work} npm run --silent e2e -- "$url"
