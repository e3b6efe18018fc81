"""The NBD protocol as libnbd speaks it. Arguments: URI of an empty volume, name of a check."""

import errno
import sys

import nbd

KIB = 1024
MIB = 1024 * KIB
HOLE_AND_ZERO = nbd.STATE_HOLE | nbd.STATE_ZERO


def connect(uri):
    handle = nbd.NBD()
    # Wrong requests are to reach the server.
    handle.set_strict_mode(0)
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_uri(uri)
    return handle


def extents(handle, count, offset, flags=0):
    """Block status as a list of (length, state), neighbours of one state made one."""
    found = []

    def on_extents(context, start, entries, error):
        assert context == nbd.CONTEXT_BASE_ALLOCATION, context
        assert start == offset, start
        for length, state in zip(entries[::2], entries[1::2]):
            if found and found[-1][1] == state:
                found[-1] = (found[-1][0] + length, state)
            else:
                found.append((length, state))

    handle.block_status(count, offset, on_extents, flags)
    return found


def error_of(call, *arguments):
    """The errno with which a call fails; None if it does not."""
    try:
        call(*arguments)
    except nbd.Error as error:
        return error.errnum
    return None


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def negotiation(handle, uri):
    assert handle.get_structured_replies_negotiated()
    assert handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    can = [handle.can_flush(), handle.can_fua(), handle.can_trim(), handle.can_zero(),
           handle.can_df(), handle.can_multi_conn(), handle.can_cache()]
    assert all(can), can
    assert not handle.is_read_only()
    # Without structured replies it works, too.
    simple = nbd.NBD()
    simple.set_request_structured_replies(False)
    simple.connect_uri(uri)
    assert not simple.get_structured_replies_negotiated()
    handle.pwrite(b"structured" + bytes(502), 0)
    expect(simple.pread(512, 0)[:10], b"structured")
    simple.shutdown()
    # "Don't fragment": one chunk, and the offset that was asked for.
    chunks = []

    def on_chunk(data, offset, status, error):
        chunks.append((len(data), offset, status))

    handle.pread_structured(MIB, 4 * KIB, on_chunk, nbd.CMD_FLAG_DF)
    expect([chunk[:2] for chunk in chunks], [(MIB, 4 * KIB)])
    # The oldest way into transmission.
    old = nbd.NBD()
    old.set_handshake_flags(0)
    old.connect_uri(uri)
    expect(old.pread(512, 0)[:10], b"structured")


def allocation(handle, uri):
    size = handle.get_size()
    expect(extents(handle, 8 * MIB, 0), [(8 * MIB, HOLE_AND_ZERO)])
    handle.pwrite(b"d" * MIB, MIB)
    handle.pwrite(b"d" * MIB, 4 * MIB)
    expect(extents(handle, 8 * MIB, 0), [
        (MIB, HOLE_AND_ZERO), (MIB, 0), (2 * MIB, HOLE_AND_ZERO), (MIB, 0),
        (3 * MIB, HOLE_AND_ZERO)])
    handle.trim(MIB, 4 * MIB)
    handle.zero(512 * KIB, MIB)
    expect(extents(handle, 8 * MIB, 0), [
        (MIB + 512 * KIB, HOLE_AND_ZERO), (512 * KIB, 0), (6 * MIB, HOLE_AND_ZERO)])
    # The second half is still there, and what was trimmed reads as zeroes.
    expect(handle.pread(4 * MIB, MIB), bytes(512 * KIB) + b"d" * 512 * KIB + bytes(3 * MIB))
    one = []
    handle.block_status(8 * MIB, 0, lambda c, o, entries, e: one.extend(entries),
                        nbd.CMD_FLAG_REQ_ONE)
    expect(one, [MIB + 512 * KIB, HOLE_AND_ZERO])
    expect(extents(handle, MIB, size - MIB), [(MIB, HOLE_AND_ZERO)])


def zeroes(handle, uri):
    for start, flags in [(0, 0), (2 * MIB, nbd.CMD_FLAG_NO_HOLE), (4 * MIB, nbd.CMD_FLAG_FUA),
                         (6 * MIB, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)]:
        handle.pwrite(b"z" * MIB, start)
        # Neither the beginning nor the end falls on a page.
        handle.zero(MIB - 3 * 512, start + 512, flags)
        data = handle.pread(MIB, start)
        expect(data[:512], b"z" * 512)
        expect(data[512:MIB - 1024], bytes(MIB - 3 * 512))
        expect(data[MIB - 1024:], b"z" * 1024)
    # More than any write may carry.
    handle.zero(200 * MIB, 0)
    expect(handle.pread(MIB, 6 * MIB), bytes(MIB))
    handle.pwrite(b"z" * MIB, 0)
    fast = error_of(handle.zero, MIB, 0, nbd.CMD_FLAG_FAST_ZERO)
    assert fast in (None, errno.ENOTSUP), fast


def durability(handle, uri):
    handle.pwrite(b"f" * 4096, 0, nbd.CMD_FLAG_FUA)
    handle.pwrite(b"g" * 512, 4096)
    handle.flush()
    handle.trim(4096, 8192, nbd.CMD_FLAG_FUA)
    # Multi-conn: what one connection's flush covers is seen by another.
    other = connect(uri)
    expect(other.pread(4608, 0), b"f" * 4096 + b"g" * 512)
    handle.cache(MIB, 0)


def wrong_requests(handle, uri):
    size = handle.get_size()
    block = bytes(512)
    cases = [
        ("read, offset", errno.EINVAL, handle.pread, 512, 100),
        ("read, length", errno.EINVAL, handle.pread, 100, 0),
        ("write, offset", errno.EINVAL, handle.pwrite, block, 7),
        ("write, length", errno.EINVAL, handle.pwrite, b"x" * 513, 0),
        ("trim, offset", errno.EINVAL, handle.trim, 512, 1),
        ("zero, length", errno.EINVAL, handle.zero, 1, 0),
        ("read, past the end", errno.EINVAL, handle.pread, 1024, size - 512),
        ("read, far away", errno.EINVAL, handle.pread, 512, 2**63 - 512),
        ("write, past the end", errno.ENOSPC, handle.pwrite, bytes(1024), size - 512),
        ("write, at the end", errno.ENOSPC, handle.pwrite, block, size),
        ("zero, past the end", errno.ENOSPC, handle.zero, 1024, size - 512),
        ("trim, past the end", errno.EINVAL, handle.trim, 1024, size - 512),
        ("flags, read", errno.EINVAL, handle.pread, 512, 0, nbd.CMD_FLAG_NO_HOLE),
        ("flags, write", errno.EINVAL, handle.pwrite, block, 0, nbd.CMD_FLAG_REQ_ONE),
        ("read of 33 MiB", errno.EOVERFLOW, handle.pread, 33 * MIB, 0),
    ]
    for name, expected, call, *arguments in cases:
        found = error_of(call, *arguments)
        assert found == expected, f"{name}: {found}, expected {expected}"
        # The same connection is as good as before.
        handle.pwrite(b"a" * 512, 0)
        expect(handle.pread(512, 0), b"a" * 512)
    # At most that much may be asked for, and is.
    expect(len(handle.pread(32 * MIB, 0)), 32 * MIB)
    handle.pwrite(b"w" * (32 * MIB), size - 32 * MIB)
    expect(handle.pread(512, size - 512), b"w" * 512)


def any_offset(handle, uri):
    """Clients that never asked for block sizes may begin and end anywhere."""
    def unaware(handshake_flags=nbd.HANDSHAKE_FLAG_MASK):
        other = nbd.NBD()
        other.set_strict_mode(0)
        other.set_request_block_size(False)
        other.set_handshake_flags(handshake_flags)
        other.connect_uri(uri)
        return other

    # The new way, and the oldest.
    for other in [unaware(), unaware(0)]:
        base = bytes(range(256)) * 32
        handle.pwrite(base, 0)
        expected = bytearray(base)
        for offset, length in [(1, 1), (100, 700), (511, 2), (1024, 100), (1500, 548), (0, 513)]:
            other.pwrite(b"u" * length, offset)
            expected[offset:offset + length] = b"u" * length
            expect(other.pread(length + 3, max(offset - 1, 0)),
                   expected[max(offset - 1, 0):max(offset - 1, 0) + length + 3])
        other.zero(1000, 2000)
        expected[2000:3000] = bytes(1000)
        other.zero(3, 5000)
        expected[5000:5003] = bytes(3)
        other.flush()
        expect(handle.pread(8192, 0), expected)
        # More than one piece of work, at an odd place; and beyond the end.
        large = bytes(range(251)) * 4178
        other.pwrite(large, 1_000_001)
        expect(other.pread(len(large), 1_000_001), large)
        expect(handle.pread(512, 999_936)[65:], large[:447])
        size = other.get_size()
        expect(error_of(other.pread, 2, size - 1), errno.EINVAL)
        expect(error_of(other.pwrite, b"xx", size - 1), errno.ENOSPC)
        other.pwrite(b"x", size - 1)
        expect(handle.pread(512, size - 512)[510:], b"\0x")
    beside(handle, unaware())


def beside(handle, other):
    """Whole blocks from one client, single bytes within them from another, at the same time."""
    for number in range(200):
        block = bytes([number]) * 4096
        byte = bytearray(b"\xff")
        whole = handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(block)), 0)
        parts = [other.aio_pwrite(nbd.Buffer.from_bytearray(byte), at) for at in (7, 600, 4095)]
        wait(handle, [whole])
        wait(other, parts)
        found = handle.pread(4096, 0)
        for at, value in enumerate(found):
            assert value == number or at in (7, 600, 4095) and value == 0xff, (number, at, value)


def wait(handle, cookies):
    for cookie in cookies:
        while not handle.aio_command_completed(cookie):
            handle.poll(-1)


def wrong_export(handle, uri):
    for name in ["nope", "", "vol-00000000000000000", "x" * 4096]:
        other = nbd.NBD()
        other.set_export_name(name)
        error = error_of(other.connect_uri, uri.replace(handle.get_export_name(), ""))
        assert error == errno.ENOENT, f"{name}: {error}"


def main():
    uri, name = sys.argv[1:]
    handle = connect(uri)
    globals()[name](handle, uri)
    # Whatever happened before, the connection lives.
    handle.pread(512, 0)
    handle.shutdown()


main()
