//! Block requests, for all protocols and stores.

/// The operation of a request. Offsets and lengths are in bytes; the payload is kept beside the
/// request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Returns the bytes of the range.
    Read,
    /// Replaces the bytes of the range.
    Write {
        /// Durable before the reply (force unit access).
        fua: bool,
    },
    /// Makes all changes durable that were answered before this request arrived.
    Flush,
    /// Declares the range's content as unused; it reads as zeroes or as before.
    Discard {
        /// Durable before the reply.
        fua: bool,
    },
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The range stays allocated (NBD's `NO_HOLE`).
        keep_allocated: bool,
        /// Fail with "not supported" if the zeroes would have to be written one by one (NBD's
        /// `FAST_ZERO`).
        only_if_fast: bool,
    },
    /// Asks which parts of the range are holes.
    BlockStatus,
    /// Loads the range into a cache; may do nothing.
    Cache,
}

impl Operation {
    /// Returns whether the operation changes the volume's content.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }

    /// Returns whether its success promises durability.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        match self {
            Self::Flush => true,
            Self::Write { fua } | Self::Discard { fua } | Self::WriteZeroes { fua, .. } => fua,
            Self::Read | Self::BlockStatus | Self::Cache => false,
        }
    }

    /// Returns the payload bytes of a request of `length` bytes: those of the range for reads and
    /// writes, none for the others.
    #[must_use]
    pub const fn payload_bytes(self, length: u32) -> u32 {
        match self {
            Self::Read | Self::Write { .. } => length,
            _ => 0,
        }
    }
}

/// One block request: an operation on a byte range of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes; 0 for a flush.
    pub length: u32,
}

impl Request {
    /// Returns the number of its payload bytes.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        self.operation.payload_bytes(self.length)
    }
}

/// Failure of a request, in terms that each protocol can translate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The device below failed.
    Io,
    /// The device returned other data than was written: the checksum does not match.
    Rotten,
    /// No space is left below.
    NoSpace,
    /// The range or the flags are invalid for this volume.
    Invalid,
    /// The operation is not supported (for example a fast zero that would be slow).
    NotSupported,
    /// The volume was detached or the server is going down.
    ShuttingDown,
    /// The volume may not be written.
    ReadOnly,
    /// A resource limit of the server was hit.
    NoMemory,
}
