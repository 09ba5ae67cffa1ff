#!/usr/bin/env bash
# Checks what `make release` has written into bin/release: the checksums, their signature if there is one, and the packages of
# this machine's architecture. They are installed and removed in an overlay of this system, which is thrown away; there
# systemd-analyze verifies the units with the installed program and user. Called as root, in a mount namespace of its own, by
# `make release-check`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/bin/release
(cd "$out" && sha256sum --quiet -c SHA256SUMS)
if [[ -e $out/SHA256SUMS.sig ]]; then
	ssh-keygen -Y check-novalidate -n ferula-release -s "$out/SHA256SUMS.sig" <"$out/SHA256SUMS"
fi
arch=$(go env GOHOSTARCH)
root=$(mktemp -d)
mount --make-rprivate /
trap 'umount -R "$root"; rmdir "$root"' EXIT
mount -t tmpfs tmpfs "$root"

installed() { # NAME: mounts a copy of this system at $system, with the packages in /tmp/release
	system=$root/$1/system
	mkdir -p "$root/$1"/{upper,work,system}
	mount -t overlay overlay -o "lowerdir=/,upperdir=$root/$1/upper,workdir=$root/$1/work" "$system"
	mount --rbind /proc "$system/proc"
	# Of the devices only these, in a directory of its own: what a package's script does to /dev is thrown away, too.
	mount -t tmpfs tmpfs "$system/dev"
	for device in null zero urandom; do
		touch "$system/dev/$device"
		mount --bind "/dev/$device" "$system/dev/$device"
	done
	mkdir -p "$system/tmp/release"
	cp "$out"/ferula-*-linux-"$arch"."$1" "$system/tmp/release/"
	if chroot "$system" getent passwd ferula >/dev/null; then chroot "$system" userdel ferula; fi
}
works() { # checks the installed package
	chroot "$system" ferula --version
	chroot "$system" getent passwd ferula >/dev/null
	# shellcheck disable=SC2016
	chroot "$system" sh -c 'systemd-analyze verify --man=no /usr/lib/systemd/system/ferula-*.service'
	[[ $(chroot "$system" stat -c '%U:%G %a' /etc/ferula /etc/ferula/prometheus.yml | sort -u | tr '\n' ' ') == "root:ferula 640 root:ferula 750 " ]]
	chroot "$system" setpriv --reuid=ferula --regid=ferula --clear-groups ferula check config /etc/ferula/prometheus.yml
	chroot "$system" sh -c 'gzip -t /usr/share/man/man1/ferula.1.gz && bash -n /usr/share/bash-completion/completions/ferula'
}
keep() { # writes what a removal must leave
	mkdir -p "$system/var/lib/ferula/serve/wal"
	touch "$system/var/lib/ferula/serve/wal/00000000" "$system/etc/ferula/web.yml"
}
removed() {
	if [[ ! -e $system/var/lib/ferula/serve/wal/00000000 || ! -e $system/etc/ferula/web.yml ]]; then
		echo "the removal deleted data, or a file that is not the package's" >&2
		return 1
	fi
	chroot "$system" getent passwd ferula >/dev/null
	if [[ -e $system/usr/bin/ferula || -e $system/usr/lib/systemd/system/ferula-serve.service ]]; then
		echo "files are left after the removal" >&2
		return 1
	fi
}

if command -v dpkg >/dev/null; then
	installed deb
	chroot "$system" sh -c 'dpkg -i /tmp/release/*.deb'
	works
	echo '# mine' >>"$system/etc/ferula/prometheus.yml"
	chroot "$system" sh -c 'dpkg -i /tmp/release/*.deb' # an upgrade keeps a changed configuration
	grep -q '# mine' "$system/etc/ferula/prometheus.yml"
	rm "$system/etc/ferula/prometheus.yml"
	chroot "$system" sh -c 'dpkg -i /tmp/release/*.deb' # and one that was deleted stays deleted
	[[ ! -e $system/etc/ferula/prometheus.yml ]]
	chroot "$system" sh -c 'dpkg -i --force-confmiss /tmp/release/*.deb'
	keep
	chroot "$system" dpkg -r ferula
	removed
	chroot "$system" dpkg -P ferula
	removed
	[[ ! -e $system/etc/ferula/prometheus.yml ]]
else
	echo "no dpkg: the .deb is not checked" >&2
fi
if command -v rpm >/dev/null; then
	installed rpm
	# What Debian installs is unknown to rpm: --nodeps.
	chroot "$system" sh -c 'rpm -i --nodeps /tmp/release/*.rpm'
	works
	keep
	chroot "$system" rpm -e ferula
	removed
else
	echo "no rpm: the .rpm is not checked" >&2
fi
