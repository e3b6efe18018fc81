//! Every kind of reply, read back from the bytes of our server, and replies for which a client
//! closes the connection.

use super::*;
use crate::nbd::transmission::reply;
use std::vec;
use std::vec::Vec;

const DATA_BYTES_MAX: u32 = 4_096;

/// All events of `input`, fed in pieces of `cut` bytes, data taken off the stream as a caller
/// would.
fn read(input: &[u8], cut: usize) -> Result<Vec<Event>, ReplyViolation> {
    let mut reader = ReplyReader::new(DATA_BYTES_MAX);
    let mut events = Vec::new();
    let mut data_left = 0;
    for mut piece in input.chunks(cut) {
        while !piece.is_empty() {
            let skipped = piece.len().min(data_left);
            data_left -= skipped;
            piece = &piece[skipped..];
            let (consumed, event) = reader.handle(piece)?;
            piece = &piece[consumed..];
            assert!(event.is_some() || piece.is_empty(), "input is left without an event");
            if let Some(Event::Data { bytes, .. }) = event {
                data_left = usize::try_from(bytes).unwrap();
            }
            events.extend(event);
        }
    }
    Ok(events)
}

#[test]
fn every_reply_is_read_back_in_any_cuts() {
    let mut bytes = Vec::new();
    bytes.extend(reply::simple(1, None));
    bytes.extend(reply::simple(2, Some(ErrorCode::NoSpace)));
    bytes.extend(reply::offset_data(3, false, 512, 3));
    bytes.extend(b"abc");
    bytes.extend(reply::offset_hole(3, false, 515, 9));
    bytes.extend(reply::none(3));
    bytes.extend(reply::block_status(4, true, 1, 2));
    bytes.extend(reply::extent(4096, 0));
    bytes.extend(reply::extent(8192, 3));
    bytes.extend(reply::error(5, ErrorCode::Invalid));
    bytes.extend(reply::error_at(6, false, ErrorCode::Io, 1024));
    bytes.extend(reply::error_at(6, true, ErrorCode::Io, 2048));
    bytes.extend(reply::chunk(7, true, chunk::ERROR, 6 + 4)); // with a message
    bytes.extend(b"\0\0\0\x05\0\x04oops");
    bytes.extend(reply::chunk(8, true, chunk::ERROR_BIT + 9, 6 + 4 + 2)); // unknown, with a field
    bytes.extend(b"\0\0\0\x63\0\x04oops\xff\xff");
    let error = |cookie, error, offset, last| Event::Error { cookie, error, offset, last };
    let expected = vec![
        Event::Simple { cookie: 1, error: None },
        Event::Simple { cookie: 2, error: Some(ErrorCode::NoSpace) },
        Event::Data { cookie: 3, offset: 512, bytes: 3, last: false },
        Event::Hole { cookie: 3, offset: 515, bytes: 9, last: false },
        Event::Done { cookie: 3 },
        Event::Extent { cookie: 4, context: 1, bytes: 4096, flags: 0, last: false },
        Event::Extent { cookie: 4, context: 1, bytes: 8192, flags: 3, last: true },
        error(5, ErrorCode::Invalid, None, true),
        error(6, ErrorCode::Io, Some(1024), false),
        error(6, ErrorCode::Io, Some(2048), true),
        error(7, ErrorCode::Io, None, true),
        error(8, ErrorCode::Invalid, None, true),
    ];
    for cut in 1..=bytes.len() {
        assert_eq!(read(&bytes, cut), Ok(expected.clone()), "in pieces of {cut}");
    }
}

#[test]
fn invalid_reply_ends_the_connection() {
    let chunk = |last, kind, length, payload: &[u8]| {
        let mut bytes = reply::chunk(1, last, kind, length).to_vec();
        bytes.extend(payload);
        (bytes, ReplyViolation::Malformed { kind, length })
    };
    let offset = [0; 8];
    let table = [
        (vec![0; 16], ReplyViolation::Magic(0)),
        (reply::chunk(1, true, 3, 0).to_vec(), ReplyViolation::ChunkType(3)),
        chunk(false, chunk::NONE, 0, &[]),
        chunk(true, chunk::NONE, 1, &[]),
        chunk(true, chunk::OFFSET_DATA, 8, &offset),
        chunk(true, chunk::OFFSET_DATA, DATA_BYTES_MAX + 9, &offset),
        chunk(true, chunk::OFFSET_DATA, u32::MAX, &offset),
        chunk(true, chunk::OFFSET_HOLE, 11, &offset),
        chunk(true, chunk::OFFSET_HOLE, 12, &[0; 12]),
        chunk(true, chunk::BLOCK_STATUS, 4, &[0; 4]),
        chunk(true, chunk::BLOCK_STATUS, 13, &[0; 4]),
        chunk(true, chunk::BLOCK_STATUS, u32::MAX - 3, &[0; 4]),
        chunk(true, chunk::BLOCK_STATUS, 12, &[0; 12]),
        chunk(true, chunk::ERROR, 5, &[]),
        chunk(true, chunk::ERROR, 6, &[0, 0, 0, 0, 0, 0]),
        chunk(true, chunk::ERROR, 6, &[0, 0, 0, 5, 0, 1]),
        chunk(true, chunk::ERROR, 5_000, &[0, 0, 0, 5, 0x10, 1]),
        chunk(true, chunk::ERROR, u32::MAX, &[0, 0, 0, 5, 0, 0]),
        chunk(true, chunk::ERROR_OFFSET, 13, &[]),
        chunk(true, chunk::ERROR_OFFSET, 15, &[0, 0, 0, 5, 0, 0]),
    ];
    for (bytes, violation) in table {
        assert_eq!(read(&bytes, bytes.len()), Err(violation), "{bytes:x?}");
        assert_eq!(read(&bytes, 1), Err(violation), "{bytes:x?}");
    }
}
