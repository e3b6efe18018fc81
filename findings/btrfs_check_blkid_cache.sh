#!/bin/sh
# btrfs-progs 6.2 (Debian 12), util-linux 2.38: `btrfs check` does not see a device whose content
# has changed within two seconds after a program read it by libblkid, and reports damage.
#
# Seen: "bad tree block ..., bytenr mismatch, want=..., have=0" of a file system that is whole. The
# program finds the other devices in the cache of libblkid (`/run/blkid/blkid.tab`), which does not
# read a device again for two seconds. If the device had other content then, the program takes it
# for missing, and what it should read from it for zeros. Other programs that call libblkid at the
# same time fill the cache, too.
#
# With `BLKID_FILE=/dev/null` each program reads all devices itself, and the check finds no fault.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
btrfs --version | grep -qx 'btrfs-progs v6.2' || echo "another version: $(btrfs --version)"
folder=$(mktemp -d -p /dev/shm)
devices=
trap 'umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done; rm -rf "$folder"' EXIT
mkdir "$folder/mount"
truncate -s 600M "$folder/first" "$folder/second" "$folder/other"
mkfs.ext4 -q -F "$folder/other"
first=$(losetup --find --show "$folder/first")
second=$(losetup --find --show "$folder/second")
devices="$first $second"
mkfs.btrfs -q -f -d single -m single "$first" >/dev/null 2>&1
mount -o nodiscard "$first" "$folder/mount"
btrfs device add -f -K "$second" "$folder/mount" >/dev/null
# The new device gets the trees.
btrfs balance start -f -mdevid=1 "$folder/mount" >/dev/null
umount "$folder/mount"
btrfs device scan --forget "$first"
btrfs device scan --forget "$second"

# Lets the second device have another file.
hold() {
    losetup -d "$second"
    tries=0
    until losetup "$second" "$folder/$1" 2>/dev/null || [ "$tries" -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
}

hold other
# Older entries are read again.
sleep 3
blkid "$second" >/dev/null
hold second
cached=0
btrfs check --readonly "$first" >"$folder/said" 2>&1 || cached=$?
echo "with the cache: status $cached: $(grep -m 1 'bad tree block' "$folder/said" || true)"
fresh=0
BLKID_FILE=/dev/null btrfs check --readonly "$first" >"$folder/said" 2>&1 || fresh=$?
echo "without: status $fresh"
[ "$fresh" = 0 ] || { cat "$folder/said"; echo "the file system is damaged"; exit 1; }
[ "$cached" != 0 ] || { echo "changed: the check sees the device"; exit 1; }
