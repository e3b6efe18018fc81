//! The error values of the protocol.

use core::fmt;

use evenkeel_core::request::Failure;

/// The error of a request ("Error values").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ErrorCode {
    /// `NBD_EPERM`: a write to a read-only export.
    NotPermitted,
    /// `NBD_EIO`: the device below failed.
    Io,
    /// `NBD_ENOMEM`: a resource limit of the server was hit.
    NoMemory,
    /// `NBD_EINVAL`: the request is invalid.
    Invalid,
    /// `NBD_ENOSPC`: a write beyond the end, or no space below.
    NoSpace,
    /// `NBD_EOVERFLOW`: a read larger than the maximum payload.
    Overflow,
    /// `NBD_ENOTSUP`: a fast zero that would be slow.
    NotSupported,
    /// `NBD_ESHUTDOWN`: the server is shutting down.
    ShuttingDown,
}

impl ErrorCode {
    /// All error values.
    pub const ALL: [Self; 8] = [
        Self::NotPermitted,
        Self::Io,
        Self::NoMemory,
        Self::Invalid,
        Self::NoSpace,
        Self::Overflow,
        Self::NotSupported,
        Self::ShuttingDown,
    ];

    /// The number on the wire; never 0, which means success.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::NotPermitted => 1,
            Self::Io => 5,
            Self::NoMemory => 12,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
            Self::NotSupported => 95,
            Self::ShuttingDown => 108,
        }
    }

    /// The error of a number from the wire; `None` for 0. The client SHOULD treat an unexpected
    /// value as if it had been `NBD_EINVAL`.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::NotPermitted,
            5 => Self::Io,
            12 => Self::NoMemory,
            28 => Self::NoSpace,
            75 => Self::Overflow,
            95 => Self::NotSupported,
            108 => Self::ShuttingDown,
            _ => Self::Invalid,
        })
    }
}

impl fmt::Display for ErrorCode {
    /// The name in the protocol text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "NBD_EPERM",
            Self::Io => "NBD_EIO",
            Self::NoMemory => "NBD_ENOMEM",
            Self::Invalid => "NBD_EINVAL",
            Self::NoSpace => "NBD_ENOSPC",
            Self::Overflow => "NBD_EOVERFLOW",
            Self::NotSupported => "NBD_ENOTSUP",
            Self::ShuttingDown => "NBD_ESHUTDOWN",
        })
    }
}

impl From<Failure> for ErrorCode {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io | Failure::Rotten => Self::Io,
            Failure::NoSpace => Self::NoSpace,
            Failure::Invalid => Self::Invalid,
            Failure::NotSupported => Self::NotSupported,
            Failure::ShuttingDown => Self::ShuttingDown,
            Failure::ReadOnly => Self::NotPermitted,
            Failure::NoMemory => Self::NoMemory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_round_trip_and_unknown_ones_are_invalid() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        }
        assert_eq!(ErrorCode::from_number(0), None);
        assert_eq!(ErrorCode::from_number(13), Some(ErrorCode::Invalid));
    }
}
