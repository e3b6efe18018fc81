//! Requests and replies byte for byte, written out from the protocol text, as both roles hold them.

mod nbd_support;

use evenkeel_core::request::{Operation, Request};
use evenkeel_wire::nbd::constants::{base_allocation, chunk};
use evenkeel_wire::nbd::transmission::{
    Command, ErrorCode, Event, ReplyReader, RequestHeader, Terms, reply,
};
use nbd_support::bytes;

const TERMS: Terms = Terms {
    size_bytes: 1 << 30,
    block_bytes_min: 512,
    payload_bytes_max: 32 << 20,
    read_only: false,
    structured_replies: true,
    base_allocation: true,
};

/// Both roles agree on the bytes of a request, and the server on its meaning.
fn request(text: &str, cookie: u64, operation: Operation, offset: u64, length: u32) {
    let expected: [u8; 28] = bytes(text).try_into().expect("28 bytes");
    let request = Request { operation, offset, length };
    let header = RequestHeader::new(cookie, &request, false);
    assert_eq!(header.encode(), expected);
    assert_eq!(RequestHeader::decode(&expected), Ok(header));
    assert_eq!(header.validate(&TERMS), Ok(Command::Io { request, one_extent: false }));
}

/// The server writes these bytes, and the client reads these events from them.
fn replies(text: &str, head: &[u8], events: &[Event]) {
    assert_eq!(bytes(text), head);
    let mut reader = ReplyReader::new(4096);
    let mut rest = head;
    for event in events {
        let (consumed, found) = reader.handle(rest).expect("a reply");
        assert_eq!(found.as_ref(), Some(event));
        rest = &rest[consumed..];
    }
    assert_eq!(rest, &[] as &[u8]);
}

#[test]
fn requests() {
    request(
        "25609513 0000 0000 00000000000000aa 0000000000001000 00000200 ; NBD_CMD_READ",
        0xaa,
        Operation::Read,
        4096,
        512,
    );
    request(
        "25609513 0001 0001 0123456789abcdef 0000000000000000 00040000 ; NBD_CMD_WRITE, FUA",
        0x0123_4567_89ab_cdef,
        Operation::Write { fua: true },
        0,
        256 << 10,
    );
    request(
        "25609513 0000 0003 ffffffffffffffff 0000000000000000 00000000 ; NBD_CMD_FLUSH",
        u64::MAX,
        Operation::Flush,
        0,
        0,
    );
    request(
        "25609513 0000 0004 0000000000000001 000000003ffffe00 00000200 ; NBD_CMD_TRIM",
        1,
        Operation::Discard { fua: false },
        (1 << 30) - 512,
        512,
    );
    request(
        "25609513 0000 0005 0000000000000001 0000000000000000 00000200 ; NBD_CMD_CACHE",
        1,
        Operation::Cache,
        0,
        512,
    );
    request(
        "25609513 0013 0006 0000000000000001 0000000000000000 40000000 ; NBD_CMD_WRITE_ZEROES,
         ; FUA | NO_HOLE | FAST_ZERO, the whole export",
        1,
        Operation::WriteZeroes { fua: true, keep_allocated: true, only_if_fast: true },
        0,
        1 << 30,
    );
    request(
        "25609513 0000 0007 0000000000000001 0000000000000000 00000200 ; NBD_CMD_BLOCK_STATUS",
        1,
        Operation::BlockStatus,
        0,
        512,
    );
    let disconnect = bytes("25609513 0000 0002 0000000000000001 0000000000000000 00000000");
    let header = RequestHeader::decode(&disconnect.try_into().expect("28 bytes")).unwrap();
    assert_eq!(header.validate(&TERMS), Ok(Command::Disconnect));
}

#[test]
fn simple_replies() {
    let simple = Terms { structured_replies: false, ..TERMS };
    replies(
        "67446698 00000000 00000000000000aa ; success; a read's data would follow",
        simple.read_head(0xaa, 4096, 512).as_bytes(),
        &[Event::Simple { cookie: 0xaa, error: None }],
    );
    replies(
        "67446698 0000001c 00000000000000aa ; NBD_ENOSPC",
        simple.failure(0xaa, ErrorCode::NoSpace).as_bytes(),
        &[Event::Simple { cookie: 0xaa, error: Some(ErrorCode::NoSpace) }],
    );
    replies(
        "67446698 00000000 00000000000000aa ; success without data, the same with chunks",
        TERMS.success(0xaa).as_bytes(),
        &[Event::Simple { cookie: 0xaa, error: None }],
    );
}

#[test]
fn structured_replies() {
    replies(
        "668e33ef 0001 0001 00000000000000aa 00000208 ; DONE, OFFSET_DATA, 8 + 512 bytes
         0000000000001000                             ; offset; the data would follow",
        TERMS.read_head(0xaa, 4096, 512).as_bytes(),
        &[Event::Data { cookie: 0xaa, offset: 4096, bytes: 512, last: true }],
    );
    replies(
        "668e33ef 0000 0002 00000000000000aa 0000000c ; OFFSET_HOLE, 12 bytes
         0000000000001000 00000200                    ; offset, hole size",
        &reply::offset_hole(0xaa, false, 4096, 512),
        &[Event::Hole { cookie: 0xaa, offset: 4096, bytes: 512, last: false }],
    );
    replies(
        "668e33ef 0001 0000 00000000000000aa 00000000 ; DONE, NONE",
        &reply::none(0xaa),
        &[Event::Done { cookie: 0xaa }],
    );
    let hole = base_allocation::STATE_HOLE | base_allocation::STATE_ZERO;
    let mut status = TERMS.block_status_head(0xaa, 2).as_bytes().to_vec();
    status.extend(reply::extent(4096, 0));
    status.extend(reply::extent(8192, hole));
    let extent = |bytes, flags, last| {
        let context = base_allocation::CONTEXT_ID;
        Event::Extent { cookie: 0xaa, context, bytes, flags, last }
    };
    replies(
        "668e33ef 0001 0005 00000000000000aa 00000014 ; DONE, BLOCK_STATUS, 4 + 2 * 8 bytes
         00000001                                     ; context id
         00001000 00000000                            ; 4 KiB of data
         00002000 00000003                            ; 8 KiB of HOLE | ZERO",
        &status,
        &[extent(4096, 0, false), extent(8192, 3, true)],
    );
}

#[test]
fn structured_errors() {
    let cookie = 0xaa;
    replies(
        "668e33ef 0001 8001 00000000000000aa 00000006 ; DONE, ERROR, 6 bytes
         00000016 0000                                ; NBD_EINVAL, no message",
        TERMS.failure(cookie, ErrorCode::Invalid).as_bytes(),
        &[Event::Error { cookie, error: ErrorCode::Invalid, offset: None, last: true }],
    );
    replies(
        "668e33ef 0001 8002 00000000000000aa 0000000e ; DONE, ERROR_OFFSET, 14 bytes
         00000005 0000 0000000000001000               ; NBD_EIO, no message, offset",
        &reply::error_at(cookie, true, ErrorCode::Io, 4096),
        &[Event::Error { cookie, error: ErrorCode::Io, offset: Some(4096), last: true }],
    );
    assert_eq!(chunk::ERROR_OFFSET, 0x8002);
}
