//! Parsing of the data of options. Returns a refusal for malformed data.

use alloc::format;
use alloc::string::String;

use crate::nbd::bytes::Cursor;
use crate::nbd::constants::{STRING_BYTES_MAX, base_allocation, info, reply};

/// A refusal of an option: the reply type and the text for the client's user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    /// One of `NBD_REP_ERR_*`.
    pub reply: u32,
    /// Names the object, the value, the limit and the next step.
    pub message: String,
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self { reply: reply::ERR_INVALID, message: message.into() }
    }

    fn cut_short(what: &str) -> Self {
        Self::invalid(format!("the option's data ends before {what}"))
    }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InfoRequest<'a> {
    pub name: &'a str,
    pub wanted: Wanted,
}

/// The information that a client requested, of the kinds that are sent on request only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Wanted {
    pub name: bool,
    pub description: bool,
    pub block_size: bool,
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ContextRequest<'a> {
    pub name: &'a str,
    /// No query at all: everything when listing, nothing when selecting.
    pub no_query: bool,
    /// `base:` is among the queries.
    pub wildcard: bool,
    /// `base:allocation` is among the queries.
    pub base_allocation: bool,
}

/// "Conventions": a string is UTF-8 and MUST NOT contain NUL, and MUST be no longer than 4096
/// bytes.
pub(super) fn string<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Refusal> {
    if bytes.len() > STRING_BYTES_MAX {
        let message = format!("{what} of {} bytes exceeds {STRING_BYTES_MAX}", bytes.len());
        return Err(Refusal { reply: reply::ERR_TOO_BIG, message });
    }
    match core::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) => Err(Refusal::invalid(format!("{what} contains a NUL character"))),
        Err(error) => {
            let at = error.valid_up_to();
            Err(Refusal::invalid(format!("{what} is not UTF-8 at byte {at}")))
        }
    }
}

/// "`NBD_OPT_INFO` and `NBD_OPT_GO`": 32 bits name length, name, 16 bits count, 16 bits each.
pub(super) fn info_request(data: &[u8]) -> Result<InfoRequest<'_>, Refusal> {
    let mut cursor = Cursor::new(data);
    let name = counted_string(&mut cursor, "the export name")?;
    let count = cursor.u16().ok_or_else(|| Refusal::cut_short("the number of requests"))?;
    let mut wanted = Wanted::default();
    for _ in 0..count {
        let item = cursor.u16().ok_or_else(|| Refusal::cut_short("its last request"))?;
        // The server MUST ignore any information requests it does not understand. A repeated
        // request is the client's error; one answer is enough.
        match item {
            info::NAME => wanted.name = true,
            info::DESCRIPTION => wanted.description = true,
            info::BLOCK_SIZE => wanted.block_size = true,
            _ => {}
        }
    }
    nothing_left(&cursor)?;
    Ok(InfoRequest { name, wanted })
}

/// "`NBD_OPT_LIST_META_CONTEXT`": name, 32 bits number of queries, each 32 bits length and text.
pub(super) fn context_request(data: &[u8]) -> Result<ContextRequest<'_>, Refusal> {
    let mut cursor = Cursor::new(data);
    let name = counted_string(&mut cursor, "the export name")?;
    let count = cursor.u32().ok_or_else(|| Refusal::cut_short("the number of queries"))?;
    let mut request =
        ContextRequest { name, no_query: count == 0, wildcard: false, base_allocation: false };
    // A huge count ends at the first missing query: the data bounds the loop.
    for _ in 0..count {
        // The server MUST ignore query strings belonging to an unknown namespace, and unknown leaf
        // names of `base`. One without a colon MAY be refused; it is ignored like any other.
        match counted_string(&mut cursor, "a query")? {
            base_allocation::WILDCARD => request.wildcard = true,
            base_allocation::NAME => request.base_allocation = true,
            _ => {}
        }
    }
    nothing_left(&cursor)?;
    Ok(request)
}

fn counted_string<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a str, Refusal> {
    let length = cursor.u32().ok_or_else(|| Refusal::cut_short(what))?;
    let bytes = cursor.take(length).ok_or_else(|| Refusal::cut_short(what))?;
    string(bytes, what)
}

fn nothing_left(cursor: &Cursor<'_>) -> Result<(), Refusal> {
    match cursor.rest().len() {
        0 => Ok(()),
        left => Err(Refusal::invalid(format!("the option's data is {left} B too long"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn info(name: &[u8], requests: &[u16]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        data.extend(name);
        data.extend(u16::try_from(requests.len()).unwrap().to_be_bytes());
        data.extend(requests.iter().flat_map(|r| r.to_be_bytes()));
        data
    }

    fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        data.extend(name);
        data.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
        for query in queries {
            data.extend(u32::try_from(query.len()).unwrap().to_be_bytes());
            data.extend(*query);
        }
        data
    }

    #[test]
    fn every_cut_of_a_valid_option_is_invalid_and_so_is_every_extension() {
        let valid = info(b"vol", &[1, 3, 77]);
        let wanted = Wanted { name: true, description: false, block_size: true };
        assert_eq!(info_request(&valid), Ok(InfoRequest { name: "vol", wanted }));
        let valid_contexts = contexts(b"vol", &[b"base:allocation", b"qemu:x", b"nocolon"]);
        assert!(context_request(&valid_contexts).unwrap().base_allocation);
        for end in 0..valid.len() {
            assert_eq!(info_request(&valid[..end]).unwrap_err().reply, reply::ERR_INVALID, "{end}");
        }
        for end in 0..valid_contexts.len() {
            let refusal = context_request(&valid_contexts[..end]).unwrap_err();
            assert_eq!(refusal.reply, reply::ERR_INVALID, "{end}");
        }
        for mut longer in [valid.clone(), valid_contexts.clone()] {
            longer.push(0);
            assert!(info_request(&longer).is_err() && context_request(&longer).is_err());
        }
    }

    #[test]
    fn strings_keep_the_conventions() {
        let longest = [b'a'; STRING_BYTES_MAX];
        assert!(string(&longest, "it").is_ok());
        let cases: [(&[u8], u32, &str); 3] = [
            (&[b'a'; STRING_BYTES_MAX + 1], reply::ERR_TOO_BIG, "it of 4097 bytes exceeds 4096"),
            (b"ab\xff", reply::ERR_INVALID, "it is not UTF-8 at byte 2"),
            (b"a\0", reply::ERR_INVALID, "it contains a NUL character"),
        ];
        for (bytes, reply, message) in cases {
            assert_eq!(string(bytes, "it"), Err(Refusal { reply, message: message.into() }));
        }
    }

    #[test]
    fn lengths_that_lie_are_invalid() {
        let mut data = info(b"vol", &[]);
        data[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(info_request(&data).unwrap_err().reply, reply::ERR_INVALID);
        let mut data = contexts(b"vol", &[]);
        data[7..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(context_request(&data).unwrap_err().reply, reply::ERR_INVALID);
    }
}
