#!/bin/sh
# btrfs-progs 6.2 (Debian 12): `btrfs check` of a file system whose `btrfs replace` was interrupted
# reports that the superblock has the wrong size, and fails. The file system is whole.
#
# Seen: after a power cut in the middle of a replacement, "ERROR: super total bytes ... smaller than
# real device(s) size ...", "mounting this fs may fail for newer kernels". It counts the target of
# the replacement as one more device. The kernel mounts the file system, continues the replacement,
# and then the same check finds nothing.
#
# The repair that it names, `btrfs rescue fix-device-size`, is not needed.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
btrfs --version | grep -qx 'btrfs-progs v6.2' || echo "another version: $(btrfs --version)"
folder=$(mktemp -d)
devices=
trap 'umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done; rm -rf "$folder"' EXIT
mkdir "$folder/mount"
truncate -s 600M "$folder/source" "$folder/other" "$folder/target"
source=$(losetup --find --show "$folder/source")
other=$(losetup --find --show "$folder/other")
target=$(losetup --find --show "$folder/target")
devices="$source $other $target"
# Two devices: a file system of one is not mounted again.
mkfs.btrfs -q -f -d single -m single "$source" "$other" >/dev/null 2>&1
mount -o "device=$other" "$source" "$folder/mount"
head -c 500M /dev/urandom > "$folder/mount/data"
sync -f "$folder/mount"
uuid=$(findmnt -n -o UUID "$folder/mount")
echo 20971520 > "/sys/fs/btrfs/$uuid/devinfo/1/scrub_speed_max"
btrfs replace start 1 "$target" "$folder/mount" >/dev/null
sleep 2
# A power cut: what the devices have now. Only the copy writes, and to the target.
sync -f "$folder/mount"
cp "$folder/source" "$folder/source.copy"
cp "$folder/other" "$folder/other.copy"
cp "$folder/target" "$folder/target.copy"
btrfs replace cancel "$folder/mount"
# The program in the background ends a moment later.
until umount "$folder/mount" 2>/dev/null; do sleep 1; done
btrfs device scan --forget "$source" "$other" "$target"
losetup -d "$source" "$other" "$target"
devices=
source=$(losetup --find --show "$folder/source.copy")
other=$(losetup --find --show "$folder/other.copy")
target=$(losetup --find --show "$folder/target.copy")
devices="$source $other $target"
btrfs device scan "$source" "$other" "$target" >/dev/null
interrupted=0
btrfs check --readonly "$source" > "$folder/output" 2>&1 || interrupted=$?
grep 'ERROR' "$folder/output" || true

mount -o "device=$other,device=$target" "$source" "$folder/mount"
while [ "$(cat "/sys/fs/btrfs/$uuid/exclusive_operation")" != none ]; do sleep 1; done
btrfs replace status -1 "$folder/mount"
umount "$folder/mount"
finished=0
btrfs check --readonly "$target" > /dev/null 2>&1 || finished=$?
echo "check of the interrupted replacement: status $interrupted; of the finished one: $finished"
[ "$interrupted" != 0 ] || { echo "changed: the first check succeeds"; exit 1; }
[ "$finished" = 0 ] || { echo "changed: the second check fails"; exit 1; }
