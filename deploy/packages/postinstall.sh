#!/bin/sh
# Makes the user of the units, lets it read the configuration, and restarts the units that run.
set -e
getent passwd ferula >/dev/null ||
	useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin ferula
chgrp ferula /etc/ferula
# dpkg does not write a configuration again that was deleted.
[ ! -e /etc/ferula/prometheus.yml ] || chgrp ferula /etc/ferula/prometheus.yml
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart 'ferula-*.service'
fi
