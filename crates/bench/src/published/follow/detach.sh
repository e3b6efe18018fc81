#!/bin/sh
# Removes the disk of a volume.
folder=$(dirname "$0")/stack/added-$1
losetup -d "$2"
# The first volumes have other folders, which the run removes at its end.
test -d "$folder" || exit 0
tries=0
until fusermount3 -u "$folder"; do
    tries=$((tries + 1))
    test $tries -lt 100 || exit 1
    sleep 0.1
done
