#!/bin/sh
# Linux 6.18, btrfs-progs 6.2 (Debian 12): if `btrfs replace start -B` is killed by SIGKILL, the
# kernel completes the replacement, but the old device keeps its superblock. Without the kill, the
# kernel clears it.
#
# Seen: two devices then have the UUID of the file system and the same device number; the old one
# has an older generation.
#
# A program that detaches the old device has to look for a superblock on it, and to clear it.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
btrfs --version | grep -qx 'btrfs-progs v6.2' || echo "another version: $(btrfs --version)"
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
folder=$(mktemp -d)
devices=
trap 'umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done; rm -rf "$folder"' EXIT
mkdir "$folder/mount"
for name in first second third fourth; do
    truncate -s 600M "$folder/$name"
    devices="$devices $(losetup --find --show "$folder/$name")"
done
set -- $devices
mkfs.btrfs -q -f -d single -m single "$1" >/dev/null 2>&1
mount "$1" "$folder/mount"
head -c 200M /dev/urandom > "$folder/mount/data"
sync -f "$folder/mount"
uuid=$(findmnt -n -o UUID "$folder/mount")
limit=/sys/fs/btrfs/$uuid/devinfo/1/scrub_speed_max

# Prints whether a device has the superblock of a btrfs.
superblock() {
    sync
    dd if="$1" bs=4096 skip=16 count=1 iflag=direct 2>/dev/null | grep -aq _BHRfS_M &&
        echo "a superblock" || echo "none"
}
# The device that is replaced was a target itself: the kernel has not read its superblock.
btrfs replace start -B -K 1 "$2" "$folder/mount" >/dev/null
btrfs replace start -B -K 1 "$3" "$folder/mount" >/dev/null
whole=$(superblock "$2")
echo 52428800 > "$limit"
btrfs replace start -B -K 1 "$4" "$folder/mount" >/dev/null &
mover=$!
sleep 1
kill -KILL "$mover"
wait "$mover" 2>/dev/null || true
while [ "$(cat "/sys/fs/btrfs/$uuid/exclusive_operation")" != none ]; do sleep 1; done
btrfs filesystem show "$folder/mount" | grep -q "$4" || { echo "changed: not replaced"; exit 1; }
killed=$(superblock "$3")
echo "the old device has: $whole; after a kill: $killed"
[ "$whole" = none ] || { echo "changed: the superblock stays without a kill"; exit 1; }
if [ "$killed" != "a superblock" ]; then
    echo "changed: the superblock is cleared after a kill"
    exit 1
fi
