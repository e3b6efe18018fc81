#!/bin/sh
# Linux 6.18, btrfs-progs 6.2 (Debian 12): `btrfs device remove cancel` ends with status 1 and
# "Operation canceled" after it has cancelled a removal. It also ends with status 1 if nothing runs.
#
# Seen: status 1, `exclusive_operation` is `none`, and the device is still listed. The kernel
# answers the request by ECANCELED if it has passed the request on to a removal, and by ENOTCONN if
# there is none; `btrfs` prints each as an error. `btrfs balance cancel` ends with status 0. The
# same message was reported of a removal that continued (kdave/btrfs-progs, issue 1012).
#
# A program that cancels a removal has to look at the file system, whatever the status is.
#
# The removal takes a minute here by a limit for its reads, with the controller blkio of cgroup v1.
set -eu
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }
group=/sys/fs/cgroup/blkio/finding-$$
mkdir "$group" || { echo "needs cgroup v1 with blkio"; exit 1; }
btrfs --version | grep -qx 'btrfs-progs v6.2' || echo "another version: $(btrfs --version)"
case $(uname -r) in 6.18.*) ;; *) echo "another kernel: $(uname -r)" ;; esac
folder=$(mktemp -d -p /dev/shm)
devices=
trap 'umount "$folder/mount" 2>/dev/null || true
    for device in $devices; do losetup -d "$device"; done
    rm -rf "$folder"; rmdir "$group" || true' EXIT
mkdir "$folder/mount"
truncate -s 1G "$folder/first"
# Its chunks are larger than those of the first device.
truncate -s 3G "$folder/second"
for name in first second; do devices="$devices $(losetup --find --show "$folder/$name")"; done
set -- $devices
mkfs.btrfs -q -f -d single -m single "$1" >/dev/null 2>&1
mount -o nodiscard "$1" "$folder/mount"
head -c 300M /dev/urandom > "$folder/mount/data"
sync -f "$folder/mount"
btrfs device add -f -K "$2" "$folder/mount" >/dev/null
uuid=$(findmnt -n -o UUID "$folder/mount")

# Prints the operation that the kernel executes.
running() { cat "/sys/fs/btrfs/$uuid/exclusive_operation"; }

echo "$(cat "/sys/block/$(basename "$1")/dev") 5000000" > "$group/blkio.throttle.read_bps_device"
sh -c 'echo $$ > "$1/cgroup.procs"; exec btrfs device remove 1 "$2"' \
    sh "$group" "$folder/mount" >/dev/null 2>&1 &
remover=$!
tries=0
while [ "$(running)" != "device remove" ] && [ "$tries" -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
sleep 1
status=0
btrfs device remove cancel "$folder/mount" >/dev/null 2>"$folder/said" || status=$?
wait "$remover" || true
said=$(cat "$folder/said")
echo "status $status: $said; runs: $(running)"
idle=0
btrfs device remove cancel "$folder/mount" >/dev/null 2>"$folder/said" || idle=$?
echo "without a removal: status $idle: $(cat "$folder/said")"
[ "$(running)" = none ] || { echo "changed: the removal runs"; exit 1; }
btrfs filesystem show "$folder/mount" | grep -q "$1" || { echo "the device has left"; exit 1; }
case $said in *"Operation canceled"*) ;; *) echo "no removal was cancelled"; exit 1 ;; esac
[ "$status" != 0 ] || { echo "changed: a cancelled removal is a success"; exit 1; }
[ "$idle" != 0 ] || { echo "changed: no removal is a success"; exit 1; }
