//! Encoding of values: numbers are big-endian with a fixed width; no panics and no `as`. A value
//! has exactly one form, so decoded bytes encode to the same bytes.
//!
//! [`Reader`] is given the bytes of a frame and returns values, or a [`Malformed`] that names the
//! field and its offset. [`Writer`] is given values and stores at most as many bytes as a frame may
//! have.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

use evenkeel_core::convert::{index, saturating};
use evenkeel_core::limits::AGENT_FRAME_BYTES_MAX;

use super::Bytes;

/// Version of the hello, its answer and the packets. Frames have their own
/// ([`VERSION`](super::VERSION)).
pub const SESSION_VERSION: u16 = 1;

/// The error for bytes that are no message of this version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The path of the field from the message: `volumes[3].balances.bytes`.
    pub field: String,
    /// The offset of the field in the frame, in bytes.
    pub offset: usize,
    /// The problem.
    pub problem: Problem,
}

/// A problem with a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The bytes are not a frame of this protocol.
    NotAFrame,
    /// The frame is of another version.
    UnknownVersion(u16),
    /// The session is of another version.
    UnknownSession(u16),
    /// No message, or no variant, has this number.
    UnknownKind(u8),
    /// The frame ends before the field does.
    Truncated {
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// The frame would be longer than a frame may be.
    TooLong {
        /// The announced length in bytes.
        length: u32,
    },
    /// Bytes follow after the end.
    Trailing {
        /// Their number.
        bytes: usize,
    },
    /// The value is reserved, or out of the field's range.
    OutOfRange,
    /// The bytes of a text are not UTF-8.
    NotUtf8,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, offset, problem } = self;
        write!(f, "field {field} at byte {offset}: ")?;
        match problem {
            Problem::NotAFrame => f.write_str("these bytes are no agent message"),
            Problem::UnknownVersion(version) => {
                let known = super::VERSION;
                write!(f, "version {version} is unknown, {known} is spoken here; update one side")
            }
            Problem::UnknownSession(version) => {
                let known = SESSION_VERSION;
                write!(f, "version {version} is unknown, {known} is spoken here; update one side")
            }
            Problem::UnknownKind(kind) => write!(f, "kind {kind} is unknown"),
            Problem::Truncated { needed, left } => {
                write!(f, "{needed} bytes are needed, {left} are left")
            }
            Problem::TooLong { length } => {
                write!(f, "{length} bytes are too long, the limit is {AGENT_FRAME_BYTES_MAX}")
            }
            Problem::Trailing { bytes } => write!(f, "{bytes} bytes follow the end"),
            Problem::OutOfRange => f.write_str("the value is out of range"),
            Problem::NotUtf8 => f.write_str("the text is not UTF-8"),
        }
    }
}

impl core::error::Error for Malformed {}

/// A value with a byte form.
pub(super) trait Wire: Sized {
    fn write(&self, to: &mut Writer);
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Collects the bytes of one frame.
pub(super) struct Writer {
    bytes: Vec<u8>,
    /// The number of bytes appended, stored or not.
    length: usize,
}

impl Writer {
    pub fn new() -> Self {
        Self { bytes: Vec::new(), length: 0 }
    }

    /// Appends bytes. Beyond the longest frame they are counted but not stored.
    pub fn put(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len());
        if self.kept_all() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// All appended bytes, or their number if they are too many for a frame.
    pub fn finish(self) -> Result<Vec<u8>, usize> {
        if self.kept_all() { Ok(self.bytes) } else { Err(self.length) }
    }

    fn kept_all(&self) -> bool {
        u32::try_from(self.length).is_ok_and(|length| length <= AGENT_FRAME_BYTES_MAX)
    }
}

/// An element of the path from the message to a field.
#[derive(Clone, Copy)]
enum PathElement {
    Field(&'static str),
    Item(u32),
}

/// Reads values from the front of a frame's bytes and tracks their path and offset.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
    path: Vec<PathElement>,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0, path: Vec::new() }
    }

    /// Reads the field of this name.
    pub fn field<T: Wire>(&mut self, name: &'static str) -> Result<T, Malformed> {
        self.within(PathElement::Field(name), T::read)
    }

    /// Reads a value within a field of this name; an error includes the name.
    pub fn in_field<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        self.within(PathElement::Field(name), read)
    }

    fn within<T>(
        &mut self,
        step: PathElement,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        self.path.push(step);
        let value = read(self);
        self.path.pop();
        value
    }

    /// Reads a fixed number of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(N));
        };
        (self.rest, self.offset) = (rest, self.offset + N);
        Ok(*bytes)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.truncated(length));
        };
        (self.rest, self.offset) = (rest, self.offset + length);
        Ok(bytes)
    }

    /// Reads a text of this many bytes.
    pub fn text(&mut self, length: usize) -> Result<String, Malformed> {
        let bytes = self.take(length)?;
        match core::str::from_utf8(bytes) {
            Ok(text) => Ok(text.into()),
            Err(_) => Err(self.malformed(length, Problem::NotUtf8)),
        }
    }

    fn truncated(&self, needed: usize) -> Malformed {
        self.malformed(0, Problem::Truncated { needed, left: self.rest.len() })
    }

    /// The error for the present field, of which this many bytes were read.
    pub fn malformed(&self, read: usize, problem: Problem) -> Malformed {
        let mut field = String::new();
        for step in &self.path {
            // Writing to a `String` cannot fail.
            let _ = match step {
                PathElement::Field(name) if field.is_empty() => write!(field, "{name}"),
                PathElement::Field(name) => write!(field, ".{name}"),
                PathElement::Item(position) => write!(field, "[{position}]"),
            };
        }
        Malformed { field, offset: self.offset.saturating_sub(read), problem }
    }

    /// The number of bytes not read yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Checks that everything was read.
    pub fn finish(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(self.malformed(0, Problem::Trailing { bytes })),
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn write(&self, to: &mut Writer) {
                to.put(&self.to_be_bytes());
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                from.array().map(Self::from_be_bytes)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128);

impl Wire for bool {
    fn write(&self, to: &mut Writer) {
        u8::from(*self).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(from.malformed(1, Problem::OutOfRange)),
        }
    }
}

/// A byte that is 1 if a value follows, then the value.
impl<T: Wire> Wire for Option<T> {
    fn write(&self, to: &mut Writer) {
        self.is_some().write(to);
        if let Some(value) = self {
            value.write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::read(from)?.then(|| T::read(from)).transpose()
    }
}

impl<T: Wire> Wire for Box<T> {
    fn write(&self, to: &mut Writer) {
        T::write(self, to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(from).map(Self::new)
    }
}

/// A value after the id of its owner.
impl<A: Wire, B: Wire> Wire for (A, B) {
    fn write(&self, to: &mut Writer) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((from.field("id")?, from.field("value")?))
    }
}

/// The number of items, then the items. Memory grows with the items read, not with the announced
/// number.
impl<T: Wire> Wire for Vec<T> {
    fn write(&self, to: &mut Writer) {
        // This many would not fit into a frame: [`Writer::finish`] refuses it as too long.
        saturating::<_, u32>(self.len()).write(to);
        self.iter().for_each(|item| item.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::read(from)?;
        let mut items = Self::new();
        for position in 0..count {
            items.push(from.within(PathElement::Item(position), T::read)?);
        }
        Ok(items)
    }
}

/// The number of bytes, then the bytes.
impl Wire for Bytes {
    fn write(&self, to: &mut Writer) {
        saturating::<_, u32>(self.0.len()).write(to);
        to.put(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = index(u32::read(from)?);
        Ok(Self(from.take(length)?.into()))
    }
}

/// The number of bytes, then UTF-8.
impl Wire for String {
    fn write(&self, to: &mut Writer) {
        saturating::<_, u32>(self.len()).write(to);
        to.put(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = index(u32::read(from)?);
        from.text(length)
    }
}
