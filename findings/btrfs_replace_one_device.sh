#!/bin/sh
# Linux 6.18: a btrfs of one device whose `btrfs replace` is interrupted by a power cut cannot be
# mounted any more without `-o degraded`. One of two devices or more can.
#
# Seen: "cannot mount because device replace operation is ongoing and tgtdev (devid 0) is missing,
# need to run 'btrfs dev scan'?" The kernel registers no device of a file system of one device at a
# scan, and the target of a replacement does not count. `mount -o degraded` and
# `btrfs replace cancel` repair it, and no data is lost.
#
# So the agent refuses to replace the only device: it adds the new one, and removes the old one.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
folder=$(mktemp -d)
devices=
trap 'umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done; rm -rf "$folder"' EXIT
mkdir "$folder/mount"

attach() {
    devices=
    for name in "$@"; do devices="$devices $(losetup --find --show "$folder/$name")"; done
}

# Interrupts the replacement of the first device of `$1` devices; then the copies are attached.
interrupt() {
    rm -f "$folder"/file*
    truncate -s 600M "$folder/file1" "$folder/file2" "$folder/file3"
    attach file1 file2 file3
    set -- "$1" $devices
    members=$2
    [ "$1" = 2 ] && members="$2 $3"
    mkfs.btrfs -q -f -d single -m single $members >/dev/null 2>&1
    mount "$2" "$folder/mount"
    head -c 200M /dev/urandom > "$folder/mount/data"
    sync -f "$folder/mount"
    uuid=$(findmnt -n -o UUID "$folder/mount")
    for limit in "/sys/fs/btrfs/$uuid/devinfo"/*/scrub_speed_max; do echo 10485760 > "$limit"; done
    btrfs replace start -B -K 1 "$4" "$folder/mount" 2>/dev/null &
    sleep 2
    # A power cut: what the devices have now. Only the copy writes, and to the target.
    sync -f "$folder/mount"
    for number in 1 2 3; do cp "$folder/file$number" "$folder/file$number.copy"; done
    btrfs replace cancel "$folder/mount"
    wait
    umount "$folder/mount"
    btrfs device scan --forget $devices
    losetup -d $devices
    attach file1.copy file2.copy file3.copy
    for device in $devices; do btrfs device scan "$device" >/dev/null 2>&1 || true; done
    first=$(echo $devices | cut -d ' ' -f 1)
}

detach() {
    umount "$folder/mount"
    btrfs device scan --forget $devices 2>/dev/null || true
    losetup -d $devices
    devices=
}

interrupt 2
two=0
mount "$first" "$folder/mount" 2>/dev/null || two=$?
[ "$two" = 0 ] || { echo "changed: two devices cannot be mounted"; exit 1; }
btrfs replace cancel "$folder/mount" 2>/dev/null || true
sleep 1
detach
interrupt 1
one=0
mount "$first" "$folder/mount" 2>/dev/null || one=$?
[ "$one" != 0 ] || { echo "changed: one device can be mounted"; exit 1; }
mount -o degraded "$first" "$folder/mount"
btrfs replace cancel "$folder/mount"
umount "$folder/mount"
mount "$first" "$folder/mount"
detach
echo "mount after an interrupted replacement: of two devices $two, of one device $one"
