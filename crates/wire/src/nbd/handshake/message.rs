//! The framing of options and their replies, for both roles.

use alloc::vec::Vec;
use evenkeel_core::convert::{exact, index};

use crate::nbd::ExportInfo;
use crate::nbd::constants::{
    IHAVEOPT, REPLY_MAGIC, STRING_BYTES_MAX, info, reply, transmission_flag as flag,
};

/// Bytes of an option before its data: magic, option, length.
pub(super) const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a reply before its data: magic, option, type, length.
pub(super) const REPLY_HEADER_BYTES: usize = 20;

/// Converts a length to its form on the wire.
pub(super) fn length_u32(length: usize) -> u32 {
    exact(length, "options and replies are far below 4 GiB")
}

/// Converts a length from the wire.
pub(super) fn length_usize(length: u32) -> usize {
    index(length)
}

/// "Newstyle negotiation": 64 bits magic, 32 bits option, 32 bits length, data.
pub(super) fn put_option(out: &mut Vec<u8>, option: u32, data: &[&[u8]]) {
    out.extend_from_slice(&IHAVEOPT.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    put_counted(out, data);
}

/// "Fixed newstyle negotiation": 64 bits magic, 32 bits option, 32 bits reply type, 32 bits
/// length, data.
pub(super) fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    put_counted(out, data);
}

fn put_counted(out: &mut Vec<u8>, data: &[&[u8]]) {
    let length: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend_from_slice(&length_u32(length).to_be_bytes());
    data.iter().for_each(|piece| out.extend_from_slice(piece));
}

/// "Option reply types": an error reply MAY carry a message. It is a string, so it is cut to the
/// maximum length of a string.
pub(super) fn put_error(out: &mut Vec<u8>, option: u32, kind: u32, message: &str) {
    let end = message.floor_char_boundary(STRING_BYTES_MAX);
    put_reply(out, option, kind, &[message.get(..end).unwrap_or_default().as_bytes()]);
}

/// "`NBD_REP_INFO`": 16 bits information type, then the item.
pub(super) fn put_info(out: &mut Vec<u8>, option: u32, item: u16, data: &[&[u8]]) {
    let kind = item.to_be_bytes();
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(1 + data.len());
    pieces.push(&kind);
    pieces.extend_from_slice(data);
    put_reply(out, option, reply::INFO, &pieces);
}

/// "`NBD_INFO_EXPORT`": 64 bits size, 16 bits transmission flags.
pub(super) fn put_info_export(out: &mut Vec<u8>, option: u32, export: &ExportInfo, flags: u16) {
    let pieces: [&[u8]; 2] = [&export.size_bytes.to_be_bytes(), &flags.to_be_bytes()];
    put_info(out, option, info::EXPORT, &pieces);
}

/// "`NBD_INFO_BLOCK_SIZE`": 32 bits each of minimum, preferred and maximum payload size.
pub(super) fn put_info_block_size(
    out: &mut Vec<u8>,
    option: u32,
    export: &ExportInfo,
    block_bytes_min: u32,
) {
    let pieces: [&[u8]; 3] = [
        &block_bytes_min.to_be_bytes(),
        &export.block_bytes_preferred.to_be_bytes(),
        &export.payload_bytes_max.to_be_bytes(),
    ];
    put_info(out, option, info::BLOCK_SIZE, &pieces);
}

/// "Transmission flags" with which [`Server`](super::Server) describes an export.
#[must_use]
pub fn transmission_flags(export: &ExportInfo, structured_replies: bool) -> u16 {
    let only_if = |condition: bool, flags: u16| if condition { flags } else { 0 };
    flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_CACHE
        | only_if(export.read_only, flag::READ_ONLY)
        | only_if(export.rotational, flag::ROTATIONAL)
        | only_if(export.can_multi_conn, flag::CAN_MULTI_CONN)
        // A read-only export must error writes: the server MUST NOT offer what it does not support.
        | only_if(
            !export.read_only,
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        )
        // MUST leave this flag clear if structured replies have not been negotiated.
        | only_if(structured_replies, flag::SEND_DF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn flags_follow_the_export() {
        let mut export = ExportInfo::new(String::new(), 0);
        assert_eq!(transmission_flags(&export, true), 0b1101_1110_1101);
        assert_eq!(transmission_flags(&export, false), 0b1101_0110_1101);
        export.read_only = true;
        export.rotational = true;
        export.can_multi_conn = false;
        assert_eq!(transmission_flags(&export, true), 0b0100_1001_1111);
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let mut out = Vec::new();
        put_error(&mut out, 1, reply::ERR_INVALID, &"é".repeat(STRING_BYTES_MAX));
        assert_eq!(out.len(), REPLY_HEADER_BYTES + STRING_BYTES_MAX);
        out.clear();
        let odd = std::format!("x{}", "é".repeat(STRING_BYTES_MAX));
        put_error(&mut out, 1, reply::ERR_INVALID, &odd);
        assert_eq!(out.len(), REPLY_HEADER_BYTES + STRING_BYTES_MAX - 1);
    }
}
