#!/bin/sh
# Linux 6.18: after a power cut at the very end of `btrfs device remove`, the file system can be
# mounted only with `-o degraded`.
#
# Seen: "devid 2 uuid ... is missing", "open_ctree failed: -2". The kernel clears the superblock of
# the device that has left before it commits the transaction without that device. Between both, a
# power cut leaves a file system that lists a device without a superblock. The device is empty by
# then: `mount -o degraded` and `btrfs device remove missing` repair it, and no data is lost.
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

truncate -s 600M "$folder/file1" "$folder/file2"
attach file1 file2
set -- $devices
mkfs.btrfs -q -f -d single -m single "$1" >/dev/null 2>&1
mount -o nodiscard "$1" "$folder/mount"
head -c 50M /dev/urandom > "$folder/mount/data"
sum=$(md5sum < "$folder/mount/data")
sync -f "$folder/mount"
# No chunk is on this one, so its removal begins with its end.
btrfs device add -f -K "$2" "$folder/mount" >/dev/null
sync -f "$folder/mount"
limited=$(cat "/sys/block/$(basename "$1")/dev")
echo "$limited 65536" > "$throttle"
btrfs device remove 2 "$folder/mount" &
remover=$!
tries=0
while [ "$(superblock "$2")" = yes ] && [ "$tries" -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
# A power cut: what the devices have now.
cp "$folder/file1" "$folder/file1.copy"
cp "$folder/file2" "$folder/file2.copy"
echo "$limited 0" > "$throttle"
limited=
wait "$remover"
umount "$folder/mount"
btrfs device scan --forget $devices
losetup -d $devices
attach file1.copy file2.copy
set -- $devices
for device in $devices; do btrfs device scan "$device" >/dev/null 2>&1 || true; done
plain=0
mount "$1" "$folder/mount" 2>/dev/null || plain=$?
[ "$plain" != 0 ] || { echo "changed: it can be mounted"; exit 1; }
mount -o degraded "$1" "$folder/mount"
btrfs device remove missing "$folder/mount"
umount "$folder/mount"
mount "$1" "$folder/mount"
[ "$sum" = "$(md5sum < "$folder/mount/data")" ] || { echo "changed: data differs"; exit 1; }
echo "mount after the cut: $plain; after the removal of the missing device: 0; the data is whole"
