#!/usr/bin/env bash
# Installs clients that push profiles, and prints one line per client: the command that
# runs it, to which the caller appends the server's address.
#
#	test/clients/build.sh [-n] go|python|node...
#
# With -n nothing is installed, and a client that is not installed is an error.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FERULA_CLIENTS_DIR:-$here/.cache}
install=yes
if [[ ${1:-} == -n ]]; then
	install=
	shift
fi

# fresh STAMP FILE...: succeeds if the stamp exists and no file is newer.
fresh() {
	local stamp=$1
	shift
	[[ -e $stamp ]] || return 1
	local file
	for file in "$@"; do
		[[ $file -nt $stamp ]] && return 1
	done
	return 0
}

missing() {
	echo "$1 is not installed: run test/clients/build.sh $1" >&2
	exit 1
}

for client in "$@"; do
	case $client in
	go)
		binary=$cache/go/client
		if ! fresh "$binary" "$here"/go/*; then
			[[ $install ]] || missing go
			mkdir -p "$cache/go"
			(cd "$here/go" && GOWORK=off go build -trimpath -o "$binary" .)
		fi
		echo "$binary"
		;;
	python)
		stamp=$cache/python/installed
		if ! fresh "$stamp" "$here/python/requirements.txt"; then
			[[ $install ]] || missing python
			mkdir -p "$cache"
			python3 -m venv "$cache/python" >&2
			"$cache/python/bin/pip" install --quiet --disable-pip-version-check -r "$here/python/requirements.txt" >&2
			touch "$stamp"
		fi
		echo "$cache/python/bin/python $here/python/push.py"
		;;
	node)
		stamp=$cache/node/installed
		if ! fresh "$stamp" "$here/node/package.json" "$here/node/package-lock.json" "$here/node/push.js"; then
			[[ $install ]] || missing node
			mkdir -p "$cache/node"
			cp "$here"/node/package.json "$here"/node/package-lock.json "$here"/node/push.js "$cache/node/"
			(cd "$cache/node" && npm ci --no-audit --no-fund --loglevel=error >&2)
			touch "$stamp"
		fi
		echo "node $cache/node/push.js"
		;;
	*)
		echo "unknown client $client" >&2
		exit 2
		;;
	esac
done
