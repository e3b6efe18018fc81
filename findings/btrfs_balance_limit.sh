#!/bin/sh
# Linux 6.18, btrfs-progs 6.2 (Debian 12): `btrfs balance start -dusage=70,limit=20` moves no chunk
# if fewer than 20 chunks match, and ends with success. `limit=0..20` moves those that match.
#
# Seen: of a file system with 9 chunks of data of which at most half is used, `limit=20` relocates 0
# and `limit=0..20` all 9. The kernel keeps the single limit and the least number of a range
# in the same bytes, and compares the number of matching chunks with the least number also if no
# range was given.
#
# A program that empties a few chunks at a time has to give a range.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
btrfs --version | grep -qx 'btrfs-progs v6.2' || echo "another version: $(btrfs --version)"
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
folder=$(mktemp -d)
device=
trap 'umount "$folder/mount" 2>/dev/null || true
    losetup -d "$device" || true; rm -rf "$folder"' EXIT
mkdir "$folder/mount"
truncate -s 900M "$folder/file"
device=$(losetup --find --show "$folder/file")
mkfs.btrfs -q -f -d single -m single "$device" >/dev/null 2>&1
mount "$device" "$folder/mount"
for number in 1 2 3 4; do
    head -c 100M /dev/urandom > "$folder/mount/$number"
    sync -f "$folder/mount"
done
rm "$folder/mount/1" "$folder/mount/3"
sync -f "$folder/mount"

relocated() {
    btrfs balance start "-dusage=70,limit=$1" "$folder/mount" |
        sed -n 's/Done, had to relocate \([0-9]*\) out of .*/\1/p'
}
single=$(relocated 20)
range=$(relocated 0..20)
echo "limit=20: $single chunks; limit=0..20: $range chunks"
[ "$single" = 0 ] || { echo "changed: limit=20 relocates chunks"; exit 1; }
[ "$range" -gt 0 ] || { echo "changed: no chunk matches"; exit 1; }
