#!/bin/sh
# sysstat 12.6.1 (Debian 12): `iostat -o JSON` that is stopped by SIGTERM, as a service manager or
# `timeout` stops it, writes JSON without an end. Stopped by SIGINT, it closes the document.
#
# Seen: after SIGTERM the output ends with the last report, and five brackets are missing; no JSON
# parser reads it. After SIGINT it is valid.
#
# A reader of such recordings has to take the whole reports, and to leave out the rest.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq sysstat=12.6.1-1 2>/dev/null
dpkg -x sysstat_*.deb .
LC_ALL=C ./usr/bin/iostat -V | head -n 1 | grep -qx 'sysstat version 12.6.1'

is_json() { python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" 2>/dev/null; }

LC_ALL=C timeout -s INT 2.5 ./usr/bin/iostat -d -o JSON 1 10 > int.json || true
LC_ALL=C timeout -s TERM 2.5 ./usr/bin/iostat -d -o JSON 1 10 > term.json || true
is_json int.json || { echo "changed: SIGINT leaves invalid JSON"; exit 1; }
if is_json term.json; then echo "changed: SIGTERM leaves valid JSON"; exit 1; fi
opened=$(tr -cd '[{' < term.json | wc -c)
closed=$(tr -cd ']}' < term.json | wc -c)
echo "sysstat 12.6.1, after SIGTERM: $opened brackets opened, $closed closed"
echo "after SIGINT: valid JSON"
