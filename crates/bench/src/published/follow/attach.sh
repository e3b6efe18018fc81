#!/bin/sh
# Makes a disk of a volume: nbdfuse presents it as a file, which a loop device makes a disk. Each
# step is written to the journal of the run before it is done, so that it is undone at the end.
set -e
run=$(dirname "$0")
folder=$run/stack/added-$1
mkdir -p "$folder"
printf 'fuse %s\nloop %s\nmount %s\nserver %s\n' "$folder" "$folder/nbd" \
    "$run/stack/mnt" "$run/stack/mnt/postgres" >>"$run/stack/chain.journal"
setsid nbdfuse -C 16 "$folder/nbd" "$2" </dev/null >/dev/null 2>&1 &
tries=0
until [ -e "$folder/nbd" ]; do
    tries=$((tries + 1))
    test $tries -lt 300
    sleep 0.1
done
losetup --find --show --direct-io=on "$folder/nbd"
