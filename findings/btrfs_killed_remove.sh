#!/bin/sh
# Linux 6.18: if `btrfs device remove` is killed by SIGKILL at its end, the kernel completes the
# removal, but the device that has left keeps its superblock. Without the kill, the kernel clears
# it.
#
# Seen: a device with the UUID of the file system that `btrfs filesystem show` does not list.
# `btrfs device add -f` refuses it then ("is mounted").
#
# A program that detaches the device has to look for a superblock on it, and to clear it.
#
# The time between the last byte that moves and the end is short. Here it is made long by a limit
# for the writes of the other device, with the controller blkio of cgroup v1.
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
for name in first second third; do
    truncate -s 600M "$folder/$name"
    devices="$devices $(losetup --find --show "$folder/$name")"
done
set -- $devices
mkfs.btrfs -q -f -d single -m single "$1" >/dev/null 2>&1
mount -o nodiscard "$1" "$folder/mount"
head -c 50M /dev/urandom > "$folder/mount/data"
sync -f "$folder/mount"
uuid=$(findmnt -n -o UUID "$folder/mount")
number=$(cat "/sys/block/$(basename "$1")/dev")

# Prints whether a device has the superblock of a btrfs.
superblock() {
    sync
    dd if="$1" bs=4096 skip=16 count=1 iflag=direct 2>/dev/null | grep -aq _BHRfS_M &&
        echo "a superblock" || echo "none"
}

# Adds a device, and removes it, which is killed or not. No chunk is on it, so its removal begins
# with its end.
remove() {
    btrfs device add -f -K "$1" "$folder/mount" >/dev/null
    sync -f "$folder/mount"
    # The kernel has not read its superblock, and does not by the number of the device.
    blockdev --flushbufs "$1"
    limited=$number
    echo "$limited 65536" > "$throttle"
    btrfs device remove 2 "$folder/mount" &
    remover=$!
    sleep 0.05
    if [ "$2" = killed ]; then kill -KILL "$remover"; fi
    echo "$limited 0" > "$throttle"
    limited=
    wait "$remover" 2>/dev/null || true
    while [ "$(cat "/sys/fs/btrfs/$uuid/exclusive_operation")" != none ]; do sleep 0.1; done
    if btrfs filesystem show "$folder/mount" | grep -q "$1"; then
        echo "changed: $1 is not removed"
        exit 1
    fi
}

remove "$2" whole
whole=$(superblock "$2")
remove "$3" killed
killed=$(superblock "$3")
echo "the device that has left has: $whole; after a kill: $killed"
[ "$whole" = none ] || { echo "changed: the superblock stays without a kill"; exit 1; }
if [ "$killed" != "a superblock" ]; then
    echo "changed: the superblock is cleared after a kill"
    exit 1
fi
