//! Every rule of validation as a table, and validation against an oracle written from the protocol
//! text.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const TERMS: Terms = Terms {
    size_bytes: 1 << 30,
    block_bytes_min: 512,
    payload_bytes_max: 32 << 20,
    read_only: false,
    structured_replies: true,
    base_allocation: true,
};

fn header(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
    RequestHeader { flags, command, cookie: 7, offset, length }
}

fn io(operation: Operation, offset: u64, length: u32) -> Result<Command, ErrorCode> {
    Ok(Command::Io { request: Request { operation, offset, length }, one_extent: false })
}

#[test]
fn every_command_with_its_flags_becomes_its_operation() {
    let fua = true;
    let zeroes = |fua, keep_allocated, only_if_fast| Operation::WriteZeroes {
        fua,
        keep_allocated,
        only_if_fast,
    };
    let table: [(u16, u16, Operation); 16] = [
        (command::READ, 0, Operation::Read),
        (command::READ, flag::FUA, Operation::Read),
        (command::READ, flag::DF, Operation::Read),
        (command::WRITE, 0, Operation::Write { fua: false }),
        (command::WRITE, flag::FUA, Operation::Write { fua }),
        (command::TRIM, 0, Operation::Discard { fua: false }),
        (command::TRIM, flag::FUA, Operation::Discard { fua }),
        (command::CACHE, 0, Operation::Cache),
        (command::CACHE, flag::FUA, Operation::Cache),
        (command::WRITE_ZEROES, 0, zeroes(false, false, false)),
        (command::WRITE_ZEROES, flag::FUA, zeroes(true, false, false)),
        (command::WRITE_ZEROES, flag::NO_HOLE, zeroes(false, true, false)),
        (command::WRITE_ZEROES, flag::FAST_ZERO, zeroes(false, false, true)),
        (
            command::WRITE_ZEROES,
            flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            zeroes(true, true, true),
        ),
        (command::BLOCK_STATUS, 0, Operation::BlockStatus),
        (command::BLOCK_STATUS, flag::FUA, Operation::BlockStatus),
    ];
    for (command, flags, operation) in table {
        let verdict = header(command, flags, 4096, 512).validate(&TERMS);
        assert_eq!(verdict, io(operation, 4096, 512), "command {command} flags {flags:#x}");
    }
    let one = header(command::BLOCK_STATUS, flag::REQ_ONE, 0, 512).validate(&TERMS);
    assert!(matches!(one, Ok(Command::Io { one_extent: true, .. })));
    assert_eq!(header(command::FLUSH, 0, 0, 0).validate(&TERMS), io(Operation::Flush, 0, 0));
    assert_eq!(
        header(command::FLUSH, flag::FUA, 0, 0).validate(&TERMS),
        io(Operation::Flush, 0, 0)
    );
    assert_eq!(header(command::DISC, 0xffff, 1, 1).validate(&TERMS), Ok(Command::Disconnect));
}

#[test]
fn invalid_requests_are_refused_with_their_errors() {
    use ErrorCode::{Invalid, NoSpace, NotPermitted, Overflow};
    use command::{BLOCK_STATUS, CACHE, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
    let simple = Terms { structured_replies: false, base_allocation: false, ..TERMS };
    let read_only = Terms { read_only: true, ..TERMS };
    let size = TERMS.size_bytes;
    let last = size - 512;
    let too_long = TERMS.payload_bytes_max + 512;
    let table: [(&Terms, RequestHeader, ErrorCode); 33] = [
        // Unknown commands.
        (&TERMS, header(8, 0, 0, 512), Invalid),
        (&TERMS, header(u16::MAX, 0, 0, 512), Invalid),
        // Flags that are unknown, or belong to another command.
        (&TERMS, header(READ, 1 << 5, 0, 512), Invalid),
        (&TERMS, header(READ, flag::REQ_ONE, 0, 512), Invalid),
        (&TERMS, header(WRITE, flag::DF, 0, 512), Invalid),
        (&TERMS, header(WRITE, 1 << 15, 0, 512), Invalid),
        (&TERMS, header(TRIM, flag::NO_HOLE, 0, 512), Invalid),
        (&TERMS, header(CACHE, flag::FAST_ZERO, 0, 512), Invalid),
        (&TERMS, header(WRITE_ZEROES, flag::REQ_ONE, 0, 512), Invalid),
        (&TERMS, header(BLOCK_STATUS, flag::DF, 0, 512), Invalid),
        (&TERMS, header(FLUSH, flag::NO_HOLE, 0, 0), Invalid),
        // Features that were not negotiated.
        (&simple, header(READ, flag::DF, 0, 512), Invalid),
        (&simple, header(BLOCK_STATUS, 0, 0, 512), Invalid),
        // A flush has no range.
        (&TERMS, header(FLUSH, 0, 512, 0), Invalid),
        (&TERMS, header(FLUSH, 0, 0, 512), Invalid),
        // An empty range, and ranges that are not whole blocks.
        (&TERMS, header(READ, 0, 0, 0), Invalid),
        (&TERMS, header(WRITE, 0, 0, 0), Invalid),
        (&TERMS, header(READ, 0, 1, 512), Invalid),
        (&TERMS, header(WRITE, 0, 0, 513), Invalid),
        (&TERMS, header(TRIM, 0, 256, 256), Invalid),
        // Beyond the end.
        (&TERMS, header(READ, 0, size, 512), Invalid),
        (&TERMS, header(READ, 0, last, 1024), Invalid),
        (&TERMS, header(TRIM, 0, last, 1024), Invalid),
        (&TERMS, header(CACHE, 0, last, 1024), Invalid),
        (&TERMS, header(BLOCK_STATUS, 0, last, 1024), Invalid),
        (&TERMS, header(WRITE, 0, last, 1024), NoSpace),
        (&TERMS, header(WRITE_ZEROES, 0, u64::MAX - 511, 1024), NoSpace),
        // Too much payload.
        (&TERMS, header(WRITE, 0, 0, too_long), Invalid),
        (&TERMS, header(READ, 0, 0, too_long), Overflow),
        (&simple, header(READ, 0, 0, too_long), Invalid),
        // A read-only export.
        (&read_only, header(WRITE, 0, 0, 512), NotPermitted),
        (&read_only, header(TRIM, 0, 0, 512), NotPermitted),
        (&read_only, header(WRITE_ZEROES, 0, 0, 512), NotPermitted),
    ];
    for (terms, header, code) in table {
        assert_eq!(header.validate(terms), Err(code), "{header:?} {terms:?}");
    }
    // The last block itself, and lengths without payload beyond the payload's bound, are fine.
    assert!(header(WRITE, 0, last, 512).validate(&TERMS).is_ok());
    assert!(header(WRITE_ZEROES, 0, 0, 1 << 30).validate(&TERMS).is_ok());
    assert!(header(FLUSH, 0, 0, 0).validate(&read_only).is_ok());
}

#[test]
fn payload_is_expected_of_writes_only_and_is_bounded() {
    let small = Terms { payload_bytes_max: 1 << 20, ..TERMS };
    let large = Terms { payload_bytes_max: 64 << 20, ..TERMS };
    let write = |length| header(command::WRITE, 0xffff, 1, length);
    assert_eq!(header(command::READ, 0, 0, u32::MAX).payload_bytes(&TERMS), Ok(0));
    assert_eq!(header(9, 0, 0, u32::MAX).payload_bytes(&TERMS), Ok(0));
    assert_eq!(write(0).payload_bytes(&small), Ok(0));
    // Refused by `validate`, yet its payload is taken off the stream.
    assert_eq!(write(32 << 20).payload_bytes(&small), Ok(32 << 20));
    let bytes = (32 << 20) + 1;
    let too_large = PayloadTooLarge { bytes, bytes_max: 32 << 20 };
    assert_eq!(write(bytes).payload_bytes(&small), Err(too_large));
    assert_eq!(write(bytes).payload_bytes(&large), Ok(bytes));
}

#[test]
fn a_header_without_the_magic_is_no_request() {
    let mut bytes = header(command::READ, 0, 0, 512).encode();
    bytes[0] ^= 1;
    assert_eq!(RequestHeader::decode(&bytes), Err(BadMagic(0x2460_9513)));
}

/// The rules once more, as sets of reasons to refuse, with 128-bit sums instead of checked ones.
fn oracle(h: &RequestHeader, t: &Terms) -> Result<(), Vec<ErrorCode>> {
    let mut reasons = Vec::new();
    let known: u16 = match h.command {
        2 => return Ok(()),
        0 => 0b00001 | if t.structured_replies { 0b00100 } else { 0 },
        1 | 3 | 4 | 5 => 0b00001,
        6 => 0b10011,
        7 => 0b01001,
        _ => return Err(std::vec![ErrorCode::Invalid]),
    };
    let end = u128::from(h.offset) + u128::from(h.length);
    let flush = h.command == 3;
    let blocks = u128::from(h.offset) % u128::from(t.block_bytes_min) == 0
        && h.length.is_multiple_of(t.block_bytes_min)
        && h.length > 0;
    if h.flags & !known != 0
        || h.command == 7 && !t.base_allocation
        || flush && end != 0
        || !flush && !blocks
        || h.command == 1 && h.length > t.payload_bytes_max
        || h.command == 0 && h.length > t.payload_bytes_max && !t.structured_replies
        || matches!(h.command, 0 | 4 | 5 | 7) && end > u128::from(t.size_bytes)
    {
        reasons.push(ErrorCode::Invalid);
    }
    if matches!(h.command, 1 | 6) && end > u128::from(t.size_bytes) {
        reasons.push(ErrorCode::NoSpace);
    }
    if matches!(h.command, 1 | 4 | 6) && t.read_only {
        reasons.push(ErrorCode::NotPermitted);
    }
    if h.command == 0 && h.length > t.payload_bytes_max && t.structured_replies {
        reasons.push(ErrorCode::Overflow);
    }
    if reasons.is_empty() { Ok(()) } else { Err(reasons) }
}

fn any_terms() -> impl Strategy<Value = Terms> {
    (0_u64..1 << 20, 0_u32..7, any::<(bool, bool, bool)>()).prop_map(
        |(blocks, shift, (read_only, structured_replies, base_allocation))| Terms {
            size_bytes: blocks << shift,
            block_bytes_min: 1 << shift,
            payload_bytes_max: 1 << 16,
            read_only,
            structured_replies,
            base_allocation,
        },
    )
}

fn any_header() -> impl Strategy<Value = RequestHeader> {
    let offset = prop_oneof![0_u64..1 << 26, (0_u64..1 << 20).prop_map(|n| n << 6), any::<u64>()];
    let length = prop_oneof![0_u32..1 << 18, (0_u32..1 << 12).prop_map(|n| n << 6), any::<u32>()];
    let flags = prop_oneof![3 => Just(0_u16), 2 => 0_u16..64, 1 => any::<u16>()];
    let command = prop_oneof![9 => 0_u16..9, 1 => any::<u16>()];
    (flags, command, any::<u64>(), offset, length).prop_map(
        |(flags, command, cookie, offset, length)| RequestHeader {
            flags,
            command,
            cookie,
            offset,
            length,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn validation_agrees_with_the_oracle(header in any_header(), terms in any_terms()) {
        match (header.validate(&terms), oracle(&header, &terms)) {
            (Ok(_), Ok(())) => {}
            (Err(code), Err(reasons)) => prop_assert!(reasons.contains(&code), "{code:?}"),
            (got, expected) => prop_assert!(false, "{got:?} against {expected:?}"),
        }
    }

    #[test]
    fn headers_survive_a_round_trip(header in any_header()) {
        prop_assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn header_made_from_a_valid_one_means_the_same(header in any_header(), terms in any_terms()) {
        if let Ok(Command::Io { request, one_extent }) = header.validate(&terms) {
            let again = RequestHeader::new(header.cookie, &request, one_extent);
            prop_assert_eq!(again.validate(&terms), Ok(Command::Io { request, one_extent }));
            // Only flags without effect are lost: FUA on a command that does not write, and DF.
            prop_assert_eq!((again.command, again.cookie), (header.command, header.cookie));
            prop_assert_eq!(again.flags & !header.flags, 0);
        }
    }
}
