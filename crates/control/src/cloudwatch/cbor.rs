//! CBOR (RFC 8949), as far as Smithy's RPC v2 protocol uses it: maps with texts as keys, lists,
//! texts, numbers, times (tag 1). Byte strings and other tags do not occur.
//!
//! It is a hundred lines, so no crate is worth a dependency for it.

use super::value::Value;
use evenkeel_core::convert::index;

/// The deepest nesting that is accepted. The deepest request has six levels.
const DEPTH_MAX: u32 = 16;
/// The additional information of an item without a length, which a break ends.
const INDEFINITE: u8 = 31;
const BREAK: u8 = 0xff;
/// The tag of a time in seconds.
const TIME: u64 = 1;

/// Decodes a value, which must take all bytes.
///
/// # Errors
/// The text has the error.
pub fn decode(bytes: &[u8]) -> Result<Value, String> {
    let mut reader = Reader { rest: bytes };
    let value = reader.item(DEPTH_MAX)?;
    match reader.rest {
        [] => Ok(value),
        rest => Err(format!("{} bytes follow the end", rest.len())),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (array, rest) = self.rest.split_first_chunk().ok_or("it ends too early")?;
        self.rest = rest;
        Ok(*array)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(index(length)).ok_or("it ends too early")?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the number in a head's additional information, or after it.
    fn number(&mut self, info: u8) -> Result<u64, String> {
        Ok(match info {
            0..=23 => info.into(),
            24 => self.byte()?.into(),
            25 => u16::from_be_bytes(self.array()?).into(),
            26 => u32::from_be_bytes(self.array()?).into(),
            27 => u64::from_be_bytes(self.array()?),
            _ => return Err(format!("there is no additional information {info}")),
        })
    }

    #[allow(clippy::cast_precision_loss)] // no parameter is that large
    fn item(&mut self, depth: u32) -> Result<Value, String> {
        let depth = depth.checked_sub(1).ok_or("it is nested too deep")?;
        let head = self.byte()?;
        let major = head >> 5;
        let info = head & 0x1f;
        Ok(match major {
            0 => Value::Number(self.number(info)? as f64),
            1 => Value::Number(-1.0 - self.number(info)? as f64),
            3 => Value::Text(self.text(info)?),
            4 => Value::List(self.items(info, |reader| reader.item(depth))?),
            5 => Value::Map(self.items(info, |reader| match reader.item(depth)? {
                Value::Text(name) => Ok((name, reader.item(depth)?)),
                _ => Err("a key is not a text".into()),
            })?),
            6 => match (self.number(info)?, self.item(depth)?) {
                (TIME, Value::Number(seconds)) => Value::Time(seconds),
                (tag, _) => return Err(format!("tag {tag} is not supported here")),
            },
            7 => self.simple(info)?,
            _ => return Err("byte strings are not supported".into()),
        })
    }

    fn simple(&mut self, info: u8) -> Result<Value, String> {
        Ok(match info {
            20 => Value::Bool(false),
            21 => Value::Bool(true),
            22 | 23 => Value::Null,
            25 => Value::Number(half(u16::from_be_bytes(self.array()?))),
            26 => Value::Number(f32::from_be_bytes(self.array()?).into()),
            27 => Value::Number(f64::from_be_bytes(self.array()?)),
            _ => return Err(format!("there is no simple value {info}")),
        })
    }

    fn text(&mut self, info: u8) -> Result<String, String> {
        let mut bytes = Vec::new();
        if info == INDEFINITE {
            while !self.is_break() {
                let head = self.byte()?;
                if head >> 5 != 3 {
                    return Err("a part of a text is none".into());
                }
                let length = self.number(head & 0x1f)?;
                bytes.extend(self.take(length)?);
            }
        } else {
            let length = self.number(info)?;
            bytes.extend(self.take(length)?);
        }
        String::from_utf8(bytes).map_err(|_| "a text is not UTF-8".into())
    }

    /// Reads elements until the end. Each takes at least a byte, so there are no more than bytes.
    fn items<T>(
        &mut self,
        info: u8,
        mut one: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let mut items = Vec::new();
        if info == INDEFINITE {
            while !self.is_break() {
                items.push(one(self)?);
            }
        } else {
            for _ in 0..self.number(info)? {
                items.push(one(self)?);
            }
        }
        Ok(items)
    }

    fn is_break(&mut self) -> bool {
        let found = self.rest.strip_prefix(&[BREAK]);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }
}

/// Converts a number of 16 bits: a sign, five bits of exponent, ten of fraction.
fn half(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff);
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        _ => (1.0 + fraction / 1_024.0) * 2_f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// Encodes a value.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, value);
    bytes
}

/// The program bounds the depth: code, not input, builds the values that are written.
fn append(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(0xf6),
        Value::Bool(value) => bytes.push(0xf4 + u8::from(*value)),
        Value::Number(number) => append_number(bytes, *number),
        Value::Time(seconds) => {
            head(bytes, 6, TIME);
            append_number(bytes, *seconds);
        }
        Value::Text(text) => append_text(bytes, text),
        Value::List(items) => {
            head(bytes, 4, items.len() as u64);
            items.iter().for_each(|item| append(bytes, item));
        }
        Value::Map(fields) | Value::Dictionary(fields) => {
            head(bytes, 5, fields.len() as u64);
            for (name, value) in fields {
                append_text(bytes, name);
                append(bytes, value);
            }
        }
    }
}

fn append_number(bytes: &mut Vec<u8>, number: f64) {
    bytes.push(0xfb);
    bytes.extend(number.to_be_bytes());
}

fn append_text(bytes: &mut Vec<u8>, text: &str) {
    head(bytes, 3, text.len() as u64);
    bytes.extend(text.as_bytes());
}

fn head(bytes: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    match number {
        0..=23 => bytes.push(major | number as u8),
        24..=0xff => bytes.extend([major | 24, number as u8]),
        0x100..=0xffff => {
            bytes.push(major | 25);
            bytes.extend((number as u16).to_be_bytes());
        }
        _ => {
            bytes.push(major | 27);
            bytes.extend(number.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Examples of RFC 8949, appendix A.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let number = |value: f64| Value::Number(value);
        for (hex, expected) in [
            ("17", number(23.0)),
            ("1864", number(100.0)),
            ("1903e8", number(1_000.0)),
            ("1a000f4240", number(1_000_000.0)),
            ("1b000000e8d4a51000", number(1e12)),
            ("20", number(-1.0)),
            ("3903e7", number(-1_000.0)),
            ("f93c00", number(1.0)),
            ("f97bff", number(65_504.0)),
            ("f90001", number(5.960_464_477_539_063e-8)),
            ("f9c400", number(-4.0)),
            ("fa47c35000", number(100_000.0)),
            ("fb3ff199999999999a", number(1.1)),
            ("f4", Value::Bool(false)),
            ("f5", Value::Bool(true)),
            ("f6", Value::Null),
            ("c11a514b67b0", Value::Time(1_363_896_240.0)),
            ("62c3bc", Value::text("\u{fc}")),
            ("83010203", Value::List([1.0, 2.0, 3.0].map(number).into())),
            ("9f0102ff", Value::List([1.0, 2.0].map(number).into())),
            ("a161616141", Value::map([("a", Value::text("A"))])),
            ("bf6161016162f5ff", Value::map([("a", number(1.0)), ("b", Value::Bool(true))])),
            ("7f657374726561646d696e67ff", Value::text("streaming")),
        ] {
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(decode(&bytes), Ok(expected), "{hex}");
        }
    }

    #[test]
    fn malformed_cbor_is_refused() {
        assert!(decode(&[0x81; 15]).unwrap_err().contains("early"));
        assert!(decode(&[0x81; 17]).unwrap_err().contains("deep"));
        for bytes in [
            &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..],
            &[0x7b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0x00],
            &[0x01, 0x02],
            &[0xa1, 0x01, 0x02],
            &[0xc2, 0x01],
            &[0xff],
            &[],
        ] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            (-1e15..1e15).prop_map(Value::Number),
            (0.0..1e10).prop_map(Value::Time),
            "\\PC{0,300}".prop_map(Value::Text),
        ];
        leaf.prop_recursive(4, 40, 30, |inner| {
            let list = proptest::collection::vec(inner.clone(), 0..30).prop_map(Value::List);
            let map = proptest::collection::vec(("[a-z]{1,9}", inner), 0..9).prop_map(Value::Map);
            prop_oneof![list, map]
        })
    }

    proptest! {
        #[test]
        fn encoded_value_decodes_to_itself(value in values()) {
            prop_assert_eq!(decode(&encode(&value)), Ok(value));
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
