//! The vocabulary of a block request, the same for NBD, NVMe and every store.

/// What a client asks for. Offsets and lengths are bytes; the payload travels beside the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Return the bytes of the range.
    Read,
    /// Replace the bytes of the range.
    Write {
        /// Durable before the reply (force unit access).
        fua: bool,
    },
    /// Everything replied to before this request arrived becomes durable before the reply.
    Flush,
    /// The range's content is no longer needed; it reads as zeroes or as before.
    Discard {
        /// Durable before the reply.
        fua: bool,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The range stays allocated (NBD's `NO_HOLE`).
        keep_allocated: bool,
        /// Fail with "not supported" rather than write the zeroes out one by one (NBD's
        /// `FAST_ZERO`).
        only_if_fast: bool,
    },
    /// Say which parts of the range are holes.
    BlockStatus,
    /// Bring the range closer; may do nothing.
    Cache,
}

impl Operation {
    /// Whether the operation changes the volume's content.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }

    /// Whether a success says that something is durable.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        match self {
            Self::Flush => true,
            Self::Write { fua } | Self::Discard { fua } | Self::WriteZeroes { fua, .. } => fua,
            Self::Read | Self::BlockStatus | Self::Cache => false,
        }
    }

    /// Payload bytes of a request of `length` bytes: reads and writes carry their range, the others
    /// nothing.
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
    /// What to do.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes; 0 for a flush.
    pub length: u32,
}

impl Request {
    /// Payload bytes it carries.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        self.operation.payload_bytes(self.length)
    }
}

/// How a request can fail, in the words every protocol can translate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The device below failed.
    Io,
    /// What the device returned is not what was written: its checksum does not fit.
    Rotten,
    /// No space is left below.
    NoSpace,
    /// The range or the flags make no sense for this volume.
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
