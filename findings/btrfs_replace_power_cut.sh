#!/bin/sh
# Linux 6.18: after a power cut at the very end of `btrfs replace`, a file system with the profile
# "single" cannot be mounted, not even with `-o degraded`.
#
# Seen: "devid 2 uuid ... is missing", "failed to read chunk tree: -2"; with `-o degraded` "writable
# mount is not allowed due to too many missing devices". The kernel clears the superblock of the old
# device before it commits the transaction that makes the new device its successor. Between both, a
# power cut leaves an old device without a superblock and a new device that does not count yet.
#
# The kernel clears only the magic number of each superblock. The script writes it again: then the
# file system can be mounted, the kernel completes the replacement, and the data is whole.
#
# Addition of the new device and removal of the old one have no such moment: the old device is empty
# when its superblock is cleared (btrfs_remove_power_cut.sh).
#
# The time between both is that of one commit. Here it is made long by a limit for the writes of the
# other device, with the controller blkio of cgroup v1.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
throttle=/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device
[ -w "$throttle" ] || { echo "needs cgroup v1 with blkio"; exit 1; }
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
folder=$(mktemp -d -p /dev/shm)
devices=
limited=
trap '[ -z "$limited" ] || echo "$limited 0" > "$throttle"
    umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done; rm -rf "$folder"' EXIT
mkdir "$folder/mount"

attach() {
    devices=
    for name in "$@"; do devices="$devices $(losetup --find --show "$folder/$name")"; done
}

# Prints whether a device has the superblock of a btrfs.
superblock() {
    dd if="$1" bs=4096 skip=16 count=1 iflag=direct 2>/dev/null | grep -aq _BHRfS_M && echo yes ||
        echo no
}

truncate -s 600M "$folder/file1" "$folder/file2" "$folder/file3"
attach file1 file2 file3
set -- $devices
mkfs.btrfs -q -f -d single -m single "$1" "$2" >/dev/null 2>&1
mount -o nodiscard "$1" "$folder/mount"
head -c 400M /dev/urandom > "$folder/mount/data"
sum=$(md5sum < "$folder/mount/data")
sync -f "$folder/mount"
limited=$(cat "/sys/block/$(basename "$1")/dev")
echo "$limited 4096" > "$throttle"
btrfs replace start -B -f -K 2 "$3" "$folder/mount" &
replacer=$!
tries=0
while [ "$(superblock "$2")" = yes ] && [ "$tries" -lt 6000 ]; do
    tries=$((tries + 1))
    sleep 0.01
done
# A power cut: what the devices have now.
for name in file1 file2 file3; do cp "$folder/$name" "$folder/$name.copy"; done
echo "$limited 0" > "$throttle"
limited=
wait "$replacer"
umount "$folder/mount"
btrfs device scan --forget $devices
losetup -d $devices
attach file1.copy file2.copy file3.copy
set -- $devices
scan() {
    for device in $devices; do btrfs device scan "$device" >/dev/null 2>&1 || true; done
}
scan
plain=0
mount "$1" "$folder/mount" 2>/dev/null || plain=$?
[ "$plain" != 0 ] || { echo "changed: it can be mounted"; exit 1; }
degraded=0
mount -o degraded "$1" "$folder/mount" 2>/dev/null || degraded=$?
[ "$degraded" != 0 ] || { echo "changed: it can be mounted with -o degraded"; exit 1; }
# The superblock is at 64 KiB, its magic number at byte 64 of it. The copy at 64 MiB stays cleared.
printf _BHRfS_M | dd of="$2" bs=1 seek=$((65536 + 64)) conv=notrunc 2>/dev/null
scan
mount "$1" "$folder/mount"
tries=0
while ! btrfs replace status -1 "$folder/mount" | grep -q finished && [ "$tries" -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
[ "$sum" = "$(md5sum < "$folder/mount/data")" ] || { echo "changed: data differs"; exit 1; }
btrfs replace status -1 "$folder/mount" | grep -q finished || { echo "changed: no end"; exit 1; }
echo "mount after the cut: $plain, with -o degraded: $degraded; with the magic number: whole"
