//! The target of a load: an NBD export, a file or a block device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::LabError;
use crate::nbd_uri::NbdUri;

/// The target of a load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// An NBD export, over fio's own client: no mount, no root, no page cache.
    Nbd(NbdUri),
    /// A file or a block device of this machine.
    Path {
        /// Its path.
        path: PathBuf,
        /// Whether it supports direct I/O, without the page cache.
        direct: bool,
    },
    /// Files of one size in a folder of a mounted file system, used without the page cache. Several
    /// jobs share them.
    Files {
        /// The folder.
        folder: PathBuf,
        /// The number of files.
        files: u64,
        /// Bytes of each, in MiB.
        mib: u64,
    },
}

/// The kind and the size of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathKind {
    /// A regular file; its size in bytes.
    File(u64),
    /// A block device; its size in bytes.
    Device(u64),
}

impl From<NbdUri> for Target {
    fn from(uri: NbdUri) -> Self {
        Self::Nbd(uri)
    }
}

impl Target {
    /// Opens a file or a block device to check it, without changing it. With `writes` it must be
    /// writable, and a device must not be mounted.
    ///
    /// # Errors
    /// [`LabError::BadTarget`] when there is nothing to read, or nothing that may be written.
    pub fn path(path: &Path, writes: bool) -> Result<(Self, PathKind), LabError> {
        let bad = |why: String, hint: &str| LabError::BadTarget {
            name: path.display().to_string(),
            why,
            hint: hint.to_owned(),
        };
        let said = |error: io::Error| bad(error.to_string(), "name a file or a block device");
        let metadata = fs::metadata(path).map_err(said)?;
        let is_device = metadata.file_type().is_block_device();
        if !is_device && !metadata.is_file() {
            let why = "it is neither a file nor a block device".to_owned();
            return Err(bad(why, "a volume is named by its id, an NBD export by its address"));
        }
        // O_EXCL without O_CREAT: the kernel refuses a block device that is mounted.
        let exclusive = if is_device && writes { OFlags::EXCL } else { OFlags::empty() };
        let open = |flags: OFlags| {
            let flags = i32::try_from((flags | exclusive).bits()).unwrap_or(0);
            OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path)
        };
        let in_use = |error: io::Error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                bad("it is mounted or otherwise in use".to_owned(), "unmount it, or only read it")
            }
            _ => said(error),
        };
        let file = open(OFlags::empty()).map_err(in_use)?;
        let bytes = length(&file).map_err(said)?;
        if bytes == 0 {
            return Err(bad("it is empty".to_owned(), "fill it, or give it a size (truncate)"));
        }
        // Some file systems, such as tmpfs before Linux 6.6, have no direct I/O.
        let direct = open(OFlags::DIRECT).is_ok();
        let kind = if is_device { PathKind::Device(bytes) } else { PathKind::File(bytes) };
        Ok((Self::Path { path: path.to_owned(), direct }, kind))
    }

    /// Returns the process on this machine that serves the target, if it is known.
    pub(crate) fn server(&self) -> Option<u32> {
        match self {
            Self::Nbd(uri) => uri.server(),
            Self::Path { .. } | Self::Files { .. } => None,
        }
    }

    /// Returns the options of fio that name the target. Without `writes` they keep fio from
    /// writing.
    #[must_use]
    pub fn fio_options(&self, writes: bool) -> Vec<String> {
        match self {
            Self::Nbd(uri) => vec!["--ioengine=nbd".to_owned(), format!("--uri={}", uri.as_str())],
            Self::Path { path, direct } => {
                // A colon separates files in fio's list of them.
                let name = path.to_string_lossy().replace(':', "\\:");
                let mut options = vec![
                    "--ioengine=libaio".to_owned(),
                    format!("--direct={}", u8::from(*direct)),
                    format!("--filename={name}"),
                ];
                if !writes {
                    options.push("--readonly".to_owned());
                }
                options
            }
            Self::Files { folder, files, mib } => vec![
                "--ioengine=libaio".to_owned(),
                "--direct=1".to_owned(),
                format!("--directory={}", folder.to_string_lossy().replace(':', "\\:")),
                format!("--nrfiles={files}"),
                format!("--filesize={mib}m"),
                "--filename_format=f.$filenum".to_owned(),
                "--file_service_type=random".to_owned(),
            ],
        }
    }
}

fn length(file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_at_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b");
        fs::write(&path, [7; 4_096]).unwrap();
        let (target, kind) = Target::path(&path, true).unwrap();
        assert_eq!(kind, PathKind::File(4_096));
        assert_eq!(fs::read(&path).unwrap(), [7; 4_096]);
        let options = target.fio_options(false).join(" ");
        assert!(options.ends_with("a\\:b --readonly"), "{options}");
        assert!(!target.fio_options(true).join(" ").contains("readonly"));
    }

    #[test]
    fn undrivable_target_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| Target::path(path, false).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("neither a file nor a block device"));
        assert!(refused(&folder.path().join("none")).contains("No such file"));
        let empty = folder.path().join("empty");
        fs::write(&empty, []).unwrap();
        assert!(refused(&empty).contains("it is empty"));
        assert!(NbdUri::parse("http://x").unwrap_err().to_string().contains("nbd://HOST"));
    }
}
