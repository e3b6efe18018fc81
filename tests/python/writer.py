"""Writes at random, remembers what must survive, and checks it. Arguments: write or check, URI of
a volume, file of what is remembered.

A block holds its number and the version of its last write in each of its sectors. A version must
survive from the moment it is acknowledged with FUA, or that a flush sent after its acknowledgement
is. A later version may be there as well, whole or in some sectors: it was under way.
"""

import json
import random
import struct
import sys

import nbd

BLOCKS = 2000
BLOCK = 4096
SECTOR = 512
DEPTH = 24
# How often the progress is printed, in acknowledged requests.
REPORT = 500
DISCARDED = struct.pack(">QQ", 0, 0) * (SECTOR // 16)


def sector(block, version):
    return struct.pack(">QQ", block + 1, version) * (SECTOR // 16)


class Memory:
    """Per block: the newest version sent, acknowledged, and certain to survive."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8") as file:
                self.sent, self.durable, self.zeroed = json.load(file)
        except FileNotFoundError:
            self.sent = [0] * BLOCKS
            self.durable = [0] * BLOCKS
            # Versions that are zeroes instead of a pattern, by block.
            self.zeroed = [[] for _ in range(BLOCKS)]
        # What was found after the last crash may be an unacknowledged version: all that is known
        # of it is that it is between the two.
        self.acknowledged = list(self.durable)

    def save(self):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump([self.sent, self.durable, self.zeroed], file)


def write(handle, memory):
    choice = random.Random(sum(memory.sent) + 1)
    busy = set()
    count = {"acknowledged": 0, "failed": 0, "flushes": 0}

    def on_written(block, version, fua, error):
        busy.discard(block)
        if error.value:
            count["failed"] += 1
            return 1
        memory.acknowledged[block] = version
        if fua:
            memory.durable[block] = version
        count["acknowledged"] += 1
        if count["acknowledged"] % REPORT == 0:
            print("progress", count["acknowledged"], flush=True)
        return 1

    def on_flushed(covered, error):
        busy.discard("flush")
        if error.value:
            count["failed"] += 1
            return 1
        memory.durable = [max(pair) for pair in zip(memory.durable, covered)]
        count["flushes"] += 1
        return 1

    def send():
        block = choice.randrange(BLOCKS)
        if block in busy:
            return
        busy.add(block)
        version = memory.sent[block] + 1
        memory.sent[block] = version
        fua = choice.random() < 0.1
        flags = nbd.CMD_FLAG_FUA if fua else 0

        def done(error):
            return on_written(block, version, fua, error)

        if choice.random() < 0.1:
            memory.zeroed[block].append(version)
            handle.aio_zero(BLOCK, block * BLOCK, done, flags)
        else:
            data = nbd.Buffer.from_bytearray(bytearray(sector(block, version) * (BLOCK // SECTOR)))
            handle.aio_pwrite(data, block * BLOCK, done, flags)

    try:
        while not count["failed"]:
            while len(busy) < DEPTH:
                send()
            if "flush" not in busy and choice.random() < 0.02:
                busy.add("flush")
                covered = list(memory.acknowledged)
                handle.aio_flush(lambda error: on_flushed(covered, error))
            handle.poll(-1)
    except nbd.Error as error:
        print("ended:", error.string)
    memory.save()
    print("acknowledged", count["acknowledged"], "flushes", count["flushes"], flush=True)


def check(handle, memory):
    survivors = 0
    for block in range(BLOCKS):
        data = handle.pread(BLOCK, block * BLOCK)
        sent, durable = memory.sent[block], memory.durable[block]
        zeroes = [version for version in memory.zeroed[block] if version >= durable]
        for start in range(0, BLOCK, SECTOR):
            found = bytes(data[start:start + SECTOR])
            if found == DISCARDED and (durable == 0 or zeroes):
                continue
            assert found != DISCARDED, f"block {block} holds zeroes; version {durable} was durable"
            number, version = struct.unpack(">QQ", found[:16])
            assert found == sector(number - 1, version), f"block {block}: torn within a sector"
            assert number == block + 1, f"block {block} holds what was written to {number - 1}"
            assert durable <= version <= sent, \
                f"block {block} holds version {version}; {durable} was durable, {sent} sent"
        survivors += durable > 0
    print("survivors", survivors)


def main():
    verb, uri, path = sys.argv[1:]
    handle = nbd.NBD()
    handle.connect_uri(uri)
    {"write": write, "check": check}[verb](handle, Memory(path))


main()
