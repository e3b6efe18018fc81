//! The dirty pages of a file system while data moves.
//!
//! The kernel writes what a move has copied in bursts of up to half of the dirty pages that the
//! file system may have. Durable writes wait behind such a burst at the limit of a volume. So a
//! btrfs has few dirty pages during a move. Kernels before 6.2 have no strict limit in bytes, and
//! keep theirs.

use std::fs;
use std::io;

use crate::Fault;

/// The least bound during a move, in bytes. With less, a move does not reach its pace.
const BYTES_MIN: u64 = 2 << 20;
/// The bound during a move is what the move reads in one part of this many of a second.
const PARTS: u64 = 32;
/// The parts of the host's dirty pages in which the kernel counts.
const MILLION: u64 = 1_000_000;

/// Bound of the dirty pages of a btrfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dirty {
    /// Parts of a million of the dirty pages that the host may have.
    pub per_million: u64,
    /// Whether it also holds while the host has fewer dirty pages than it may have.
    pub is_strict: bool,
}

impl Dirty {
    /// Returns the present bound of a btrfs; `None` if the kernel has no strict bound in bytes.
    pub fn of(uuid: &str) -> Option<Self> {
        let read = |name: &str| {
            let text = fs::read_to_string(path(uuid, name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        read("max_bytes")?;
        Some(Self { per_million: read("max_ratio_fine")?, is_strict: read("strict_limit")? == 1 })
    }

    /// Puts this bound in force.
    pub fn restore(self, uuid: &str) -> Result<(), Fault> {
        write(uuid, "max_ratio_fine", self.per_million)?;
        write(uuid, "strict_limit", u64::from(self.is_strict))
    }

    /// Returns the most dirty bytes that the file system may have, of those of the host.
    pub fn bytes(self, all: u64) -> u64 {
        if !self.is_strict || self.per_million >= MILLION {
            return all;
        }
        let part = u128::from(all) * u128::from(self.per_million) / u128::from(MILLION);
        part as u64
    }

    /// Puts the bound of a move in force, unless this one is lower.
    pub fn bound(self, uuid: &str, all: u64, bytes_per_s: u64) -> Result<(), Fault> {
        let wanted = (bytes_per_s / PARTS).max(BYTES_MIN);
        if self.bytes(all) <= wanted {
            return Ok(());
        }
        write(uuid, "max_bytes", wanted)?;
        write(uuid, "strict_limit", 1)
    }
}

fn path(uuid: &str, name: &str) -> String {
    format!("/sys/fs/btrfs/{uuid}/bdi/{name}")
}

fn write(uuid: &str, name: &str, value: u64) -> Result<(), Fault> {
    let path = path(uuid, name);
    match fs::write(&path, value.to_string()) {
        // It is not mounted any more, and a mount begins with the kernel's own bound.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Fault::Later(format!("{path}: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_bound_are_a_part_of_those_of_the_host_if_it_is_strict() {
        let dirty = |per_million, is_strict| Dirty { per_million, is_strict };
        assert_eq!(dirty(250_000, true).bytes(1 << 30), 256 << 20);
        assert_eq!(dirty(250_000, false).bytes(1 << 30), 1 << 30);
        assert_eq!(dirty(MILLION, true).bytes(u64::MAX), u64::MAX);
    }
}
