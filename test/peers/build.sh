#!/usr/bin/env bash
# Builds the peers from their released Go modules, or installs them from npm, and prints the path of each binary, one per
# line, in the order of the arguments:
#
#	test/peers/build.sh prometheus prometheus-3.5 promtool thanos versitygw victoriametrics fake-gcs-server azurite
#
# It builds from the committed go.mod and go.sum of each peer into FERULA_PEERS_DIR (default test/peers/.cache). The
# file name has a hash of module files, Go version, tags and flags, and an existing file is not built again. With -n, a
# missing binary is an error. Peers are not patched. azurite is a program for node: npm installs the versions of the
# committed package-lock.json.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FERULA_PEERS_DIR:-$here/.cache}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

# The repository's workspace must not raise the versions of a peer's dependencies, and a build must not change its go.mod.
export GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0

usage() {
	echo "usage: build.sh [-n] [prometheus|prometheus-3.5|promtool|thanos|versitygw|victoriametrics|fake-gcs-server|azurite]..." >&2
	exit 2
}

# peer NAME sets folder, module, package, tags, the variable of its version, and what that begins with.
peer() {
	case $1 in
	prometheus | promtool)
		folder=prometheus module=github.com/prometheus/prometheus
		package=$module/cmd/$1 tags=remove_all_sd variable=github.com/prometheus/common/version.Version
		;;
	prometheus-3.5) # the release with long-term support
		folder=$1 module=github.com/prometheus/prometheus
		package=$module/cmd/prometheus tags=remove_all_sd variable=github.com/prometheus/common/version.Version
		;;
	thanos)
		folder=thanos module=github.com/thanos-io/thanos
		package=$module/cmd/thanos tags=slicelabels variable=github.com/prometheus/common/version.Version
		;;
	versitygw)
		folder=versitygw module=github.com/versity/versitygw
		package=$module/cmd/versitygw tags='' variable=main.Version
		;;
	victoriametrics)
		folder=victoriametrics module=github.com/VictoriaMetrics/VictoriaMetrics
		package=$module/app/victoria-metrics tags='' variable=$module/lib/buildinfo.Version prefix=victoria-metrics-v
		export CGO_ENABLED=1 # as its releases for Linux: zstd in C
		;;
	fake-gcs-server)
		folder=fake-gcs-server module=github.com/fsouza/fake-gcs-server
		package=$module tags='' variable=main.Version
		;;
	*) usage ;;
	esac
}

# release MODULE_VERSION prints the version of the release: the module v0.315.0 is Prometheus 3.15.0.
release() {
	local version=${1#v}
	if [[ $module == github.com/prometheus/prometheus ]]; then
		local minor=${version#0.}
		local patch=${minor#*.}
		minor=${minor%%.*}
		version=$((minor / 100)).$((10#${minor: -2})).$patch
	fi
	echo "$version"
}

build() {
	local name=$1 folder module package tags variable prefix=''
	peer "$name"
	cd "$here/$folder"
	local version flags key binary
	version=$(awk -v m="$module" '$1 == m { print $2 } $1 == "require" && $2 == m { print $3 }' go.mod)
	flags="-X $variable=$prefix$(release "$version")"
	key=$({
		cat go.mod go.sum
		go version
		go env GOARCH GOAMD64 GOARM64
		echo "$package $tags $flags"
	} | sha256sum | cut -c1-12)
	binary=$cache/$name-$version-$key
	if [[ ! -x $binary ]]; then
		[[ -z $only_find ]] || { echo "$name $version is not built" >&2 && exit 1; }
		# Of two concurrent calls, the second waits for the first and finds its binary.
		exec 9>"$cache/$name.lock"
		flock 9
		if [[ ! -x $binary ]]; then
			echo "building $name $version; this takes minutes" >&2
			nice go build -trimpath -buildvcs=false -tags "$tags" -ldflags "$flags" -o "$binary.part" "$package" >&2
			mv "$binary.part" "$binary"
		fi
		exec 9>&-
	fi
	echo "$binary"
}

# install NAME installs a peer from npm. Its path has a hash of package-lock.json and node's version.
install() {
	local name=$1 key to
	cd "$here/$name"
	key=$({ cat package.json package-lock.json && node --version; } 2>/dev/null | sha256sum | cut -c1-12)
	to=$cache/$name-$key
	if [[ ! -d $to ]]; then
		[[ -z $only_find ]] || { echo "$name is not installed" >&2 && exit 1; }
		exec 9>"$cache/$name.lock"
		flock 9
		if [[ ! -d $to ]]; then
			echo "installing $name" >&2
			rm -rf "$to.part"
			mkdir "$to.part"
			cp package.json package-lock.json "$to.part"
			(cd "$to.part" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >&2)
			mv "$to.part" "$to"
		fi
		exec 9>&-
	fi
	echo "$to/node_modules/.bin/$name-blob"
}

only_find=
if [[ ${1:-} == -n ]]; then
	only_find=1
	shift
fi
(($# > 0)) || usage
for name in "$@"; do
	case $name in
	azurite) (install "$name") ;;
	*) (build "$name") ;;
	esac
done
