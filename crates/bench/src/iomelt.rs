//! A test in the manner of IOMelt 0.6: one process makes one call at a time, in passes over a small
//! file that is open for synchronous writing, without `O_DIRECT`.
//!
//! IOMelt is in no distribution, and its newer versions have another default test. The passes are
//! the published ones: serial write, serial read, random rewrite, random reread, and a mixed pass
//! in which each call is a read or a write at random. One pass is added: random reads without
//! read-ahead. Positions are drawn with replacement, and the last block is never drawn. Before
//! passes that read, the file is dropped from the page cache.

use evenkeel_core::convert::saturating;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use evenkeel_core::random::Random;
use rustix::fs::{Advice, OFlags, fadvise};

use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;

/// Bytes of each call.
const BLOCK_BYTES: u64 = 4 << 10;

/// A pass over the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Writes the file from begin to end.
    SerialWrite,
    /// Reads the file from begin to end.
    SerialRead,
    /// Writes random blocks.
    RandomRewrite,
    /// Reads random blocks.
    RandomReread,
    /// Reads random blocks without read-ahead. It is no published pass: its difference to the pass
    /// before shows the effect of the page cache and of useless reads.
    RandomRereadAlone,
    /// Reads or writes random blocks, each with equal chance.
    Mixed,
}

impl Pass {
    /// All passes in their order.
    pub const ALL: [Self; 6] = [
        Self::SerialWrite,
        Self::SerialRead,
        Self::RandomRewrite,
        Self::RandomReread,
        Self::RandomRereadAlone,
        Self::Mixed,
    ];

    /// Returns whether it is one of the five that are always run.
    #[must_use]
    pub const fn is_published(self) -> bool {
        !matches!(self, Self::RandomRereadAlone)
    }

    /// Returns its name in the published tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SerialWrite => "serial write",
            Self::SerialRead => "serial read",
            Self::RandomRewrite => "random rewrite",
            Self::RandomReread => "random reread",
            Self::RandomRereadAlone => "random reread, nothing read ahead",
            Self::Mixed => "random read and write",
        }
    }

    const fn is_serial(self) -> bool {
        matches!(self, Self::SerialWrite | Self::SerialRead)
    }

    /// Returns whether the file is dropped from the page cache before. The rewrite follows a read
    /// of the whole file, and uses its cached pages.
    const fn forgets(self) -> bool {
        !matches!(self, Self::SerialWrite | Self::RandomRewrite)
    }
}

/// A file between two passes.
#[derive(Debug)]
pub struct Melt {
    file: File,
    calls: u64,
    random: Random,
}

impl Melt {
    /// Creates a file in `folder` for `calls` blocks, which the first pass writes.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new(folder: &Path, calls: u64, seed: u64) -> Result<Self, LabError> {
        let path = folder.join("iomelt");
        let flags = i32::try_from(OFlags::SYNC.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).custom_flags(flags);
        let file = options.open(&path).map_err(LabError::io("cannot make", &path))?;
        Ok(Self { file, calls, random: Random::new(seed, 0) })
    }

    /// Runs a pass; returns its time in nanoseconds. [`Pass::SerialWrite`] must be the first.
    ///
    /// # Errors
    /// When a call fails.
    pub fn run(&mut self, pass: Pass) -> Result<u64, LabError> {
        let fault = |what: &'static str| LabError::io(what, "the file of IOMelt's manner");
        if pass.forgets() {
            let forgotten = fadvise(&self.file, 0, None, Advice::DontNeed);
            forgotten.map_err(|error| fault("cannot forget the pages of")(error.into()))?;
        }
        let ahead = match pass {
            Pass::RandomRereadAlone => Advice::Random,
            _ => Advice::Normal,
        };
        let advised = fadvise(&self.file, 0, None, ahead);
        advised.map_err(|error| fault("cannot say how it reads")(error.into()))?;
        let mut block = [0x5a_u8; BLOCK_BYTES as usize];
        let began = clock::now();
        for call in 0..self.calls {
            cancel::go_on()?;
            let number = if pass.is_serial() {
                call
            } else {
                self.random.below(self.calls.saturating_sub(1))
            };
            let writes = match pass {
                Pass::SerialWrite | Pass::RandomRewrite => true,
                Pass::SerialRead | Pass::RandomReread | Pass::RandomRereadAlone => false,
                Pass::Mixed => self.random.one_in(2),
            };
            let at = number * BLOCK_BYTES;
            if writes {
                self.file.write_all_at(&block, at).map_err(fault("cannot write to"))?
            } else {
                self.file.read_exact_at(&mut block, at).map_err(fault("cannot read"))?
            }
        }
        let took = clock::now() - began;
        Ok(saturating::<_, u64>(took.as_nanos()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_leave_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut melt = Melt::new(folder.path(), 16, 1).unwrap();
        for pass in Pass::ALL {
            assert!(melt.run(pass).unwrap() > 0, "{}", pass.name());
        }
        let bytes = std::fs::read(folder.path().join("iomelt")).unwrap();
        assert_eq!(bytes.len(), 16 * 4_096);
        assert!(bytes.iter().all(|byte| *byte == 0x5a));
    }

    #[test]
    fn pass_without_its_file_or_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut melt = Melt::new(folder.path(), 16, 1).unwrap();
        assert!(melt.run(Pass::SerialRead).is_err(), "nothing was written yet");
        assert!(Melt::new(Path::new("/no/such/folder"), 16, 1).is_err());
    }
}
