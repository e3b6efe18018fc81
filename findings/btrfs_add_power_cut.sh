#!/bin/sh
# Linux 6.18, btrfs-progs 6.2 (Debian 12): after a power cut during `btrfs device add`,
# `btrfs check` reports that the superblock has the wrong size, and fails. The file system is whole.
#
# Seen: "ERROR: super total bytes ... smaller than real device(s) size ...", "mounting this fs may
# fail for newer kernels". An fsync writes the superblock of the last commit to all devices, also
# to one whose addition is not committed yet. The check counts that device. The kernel mounts the
# file system without it, and a scrub finds no fault.
#
# The repair that it names, `btrfs rescue fix-device-size`, is not needed.
#
# The power cut freezes the file system with the files of the devices, and copies them. It is
# repeated until it is between both.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
export BLKID_FILE=/dev/null
folder=$(mktemp -d -p /dev/shm)
below=
devices=
trap 'touch "$folder/stop"; wait; umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done
    umount "$folder/below" 2>/dev/null || true; losetup -d "$below"; rm -rf "$folder"' EXIT
mkdir "$folder/mount" "$folder/below"
truncate -s 4G "$folder/file"
below=$(losetup --find --show "$folder/file")
mkfs.xfs -q "$below"
mount "$below" "$folder/below"

attach() {
    devices=
    for file in "$@"; do devices="$devices $(losetup --find --show "$folder/$file")"; done
}

# Prints the number of devices that the superblock of a file has.
devices_of() {
    btrfs inspect-internal dump-super "$folder/below/$1" 2>/dev/null |
        sed -n 's/^num_devices[^0-9]*//p'
}

for number in 1 2 3; do truncate -s 600M "$folder/below/$number"; done
attach below/1 below/2 below/3
set -- $devices
mkfs.btrfs -q -f -K -d single -m single "$1" "$2" >/dev/null 2>&1
mount -o "nodiscard,device=$2" "$1" "$folder/mount"
for writer in 1 2 3 4 5 6; do
    while [ ! -e "$folder/stop" ]; do
        dd if=/dev/zero of="$folder/mount/$writer" bs=4096 count=1 conv=notrunc,fsync status=none
    done &
done
tries=0
found=
while [ -z "$found" ] && [ "$tries" -lt 300 ]; do
    tries=$((tries + 1))
    btrfs device add -f -K "$3" "$folder/mount" >/dev/null &
    adder=$!
    sleep "0.0$(printf %02d $((tries % 25)))"
    fsfreeze -f "$folder/below"
    if [ "$(devices_of 3)" = 2 ]; then
        found=yes
        for number in 1 2 3; do
            cp --sparse=always "$folder/below/$number" "$folder/copy$number"
        done
    fi
    fsfreeze -u "$folder/below"
    wait "$adder"
    btrfs device remove "$3" "$folder/mount"
done
touch "$folder/stop"
wait
umount "$folder/mount"
for device in $devices; do
    btrfs device scan --forget "$device"
    losetup -d "$device"
done
devices=
[ -n "$found" ] || { echo "changed: no power cut of $tries was during an addition"; exit 1; }
attach copy1 copy2 copy3
set -- $devices
status=0
btrfs check --readonly "$1" >"$folder/said" 2>&1 || status=$?
echo "the check: status $status: $(grep -m 1 'super total' "$folder/said" || true)"
for device in $devices; do btrfs device scan "$device" >/dev/null; done
mount -o nodiscard "$1" "$folder/mount"
btrfs scrub start -B "$folder/mount" | tail -1
[ "$status" != 0 ] || { echo "changed: the check succeeds"; exit 1; }
