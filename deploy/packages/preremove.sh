#!/bin/sh
# Stops the units before a removal, not before an upgrade. Data in /var/lib/ferula and the user stay.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now ferula-serve ferula-query ferula-query-frontend ferula-store ferula-sidecar ferula-profiles-compact
	fi
	;;
esac
