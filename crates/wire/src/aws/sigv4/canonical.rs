//! The canonical request: the form of a request that both client and server hash.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use super::Request;
use crate::aws::percent;

/// The canonical request of `request`, with the headers in `signed_headers` (sorted, separated by
/// `;`).
pub(super) fn request(
    request: &Request<'_>,
    query: &[(String, String)],
    signed_headers: &str,
    body_hash: &str,
) -> String {
    let mut out = String::with_capacity(512);
    out.push_str(request.method);
    out.push('\n');
    path_into(&mut out, request.path);
    out.push('\n');
    query_into(&mut out, query);
    out.push('\n');
    for name in signed_headers.split(';') {
        out.push_str(name);
        out.push(':');
        header_into(&mut out, request.headers, name);
        out.push('\n');
    }
    for line in ["\n", signed_headers, "\n", body_hash] {
        out.push_str(line);
    }
    out
}

/// Query parameters, decoded, in the order sent; `None` if an escape is malformed. Bytes that are
/// not UTF-8 become U+FFFD, so the signature does not match.
pub(super) fn decoded_query(query: &str) -> Option<Vec<(String, String)>> {
    let text = |part: &str| {
        percent::decode(part.as_bytes()).ok().map(|b| String::from_utf8_lossy(&b).into_owned())
    };
    let pieces = query.split('&').filter(|piece| !piece.is_empty());
    pieces
        .map(|piece| {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            Some((text(name)?, text(value)?))
        })
        .collect()
}

/// The value of the first header with this name, in any case, trimmed.
pub(super) fn header<'a>(headers: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Names of all headers, in lower case, sorted, separated by `;`.
pub(super) fn names(headers: &[(&str, &str)]) -> String {
    let mut names: Vec<String> = headers.iter().map(|(n, _)| n.to_ascii_lowercase()).collect();
    names.sort();
    names.dedup();
    names.join(";")
}

/// Resolves `.` and `..`, drops empty segments, and encodes the rest once more (as all services but
/// S3 do).
fn path_into(out: &mut String, path: &str) {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    for segment in &segments {
        out.push('/');
        percent::encode_into(out, segment.as_bytes());
    }
    if segments.is_empty() || path.ends_with('/') {
        out.push('/');
    }
}

fn query_into(out: &mut String, query: &[(String, String)]) {
    let signed = query.iter().filter(|(name, _)| name != "X-Amz-Signature");
    let mut pairs: Vec<(String, String)> =
        signed.map(|(name, value)| (percent::encode(name), percent::encode(value))).collect();
    pairs.sort();
    for (index, (name, value)) in pairs.iter().enumerate() {
        if index > 0 {
            out.push('&');
        }
        out.push_str(name);
        out.push('=');
        out.push_str(value);
    }
}

/// Values of all headers with this name in the order sent, each trimmed and with runs of spaces
/// reduced to one.
fn header_into(out: &mut String, headers: &[(&str, &str)], name: &str) {
    let values = headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    for (index, (_, value)) in values.enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&single_spaced(value.trim()));
    }
}

fn single_spaced(value: &str) -> Cow<'_, str> {
    if !value.contains("  ") {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}
