//! Mounts and swap files, from `/proc`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::Fault;
use evenkeel_planner::autopilot::observation::Kind;

/// A mount of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mount {
    /// Its folder.
    pub point: PathBuf,
    /// The device's number, `8:17`; one that is no device's for btrfs.
    pub number: String,
    /// The kind of its file system; `None` for one that the autopilot does not know.
    pub kind: Option<Kind>,
    /// Whether it is mounted without a device that is missing, or cannot be written.
    pub is_degraded: bool,
}

/// Returns the mount that is visible at a folder.
pub(super) fn mount_at(folder: &Path) -> Result<Mount, Fault> {
    let text = read("/proc/self/mountinfo")?;
    mounts(&text).into_iter().rfind(|mount| mount.point == folder).ok_or_else(|| {
        Fault::Refused(format!("{}: no file system is mounted there: mount it", folder.display()))
    })
}

/// Returns the files with swap.
pub(super) fn swap_files() -> Result<Vec<PathBuf>, Fault> {
    Ok(swaps(&read("/proc/swaps")?))
}

fn read(path: &str) -> Result<Vec<u8>, Fault> {
    fs::read(path).map_err(|error| Fault::Later(format!("{path}: {error}: mount /proc")))
}

fn mounts(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Parses a line: `45 27 0:39 / /data rw,noatime shared:1 - btrfs /dev/sdb rw,degraded`.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let point = unescaped(fields.nth(1)?);
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = match rest.next()? {
        b"btrfs" => Some(Kind::Btrfs),
        b"xfs" => Some(Kind::Xfs),
        b"ext4" => Some(Kind::Ext4),
        _ => None,
    };
    let more = rest.nth(1).unwrap_or_default();
    let mut all = options.split(|byte| *byte == b',').chain(more.split(|byte| *byte == b','));
    let is_degraded = all.any(|option| option == b"ro" || option == b"degraded");
    Some(Mount { point, number, kind, is_degraded })
}

/// Parses `/proc/swaps`: a heading, and a line for each partition and file.
fn swaps(text: &[u8]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in text.split(|byte| *byte == b'\n').skip(1) {
        let is_space = |byte: &u8| *byte == b' ' || *byte == b'\t';
        let mut fields = line.split(is_space).filter(|field| !field.is_empty());
        if let Some(path) = fields.next()
            && fields.next() == Some(b"file")
        {
            files.push(unescaped(path));
        }
    }
    files
}

/// Returns a path whose spaces and controls the kernel has written in octal digits: `\040`.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let value = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(value) = value.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(value);
            rest = &more[3..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns the folder of a file, for an open that asks for its file system.
pub(super) fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().as_bytes().is_empty());
    folder.unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_lines_are_parsed_with_escapes_and_optional_fields() {
        let text = b"45 27 0:39 / /a\\040b rw,noatime shared:1 master:2 - btrfs /dev/sdb rw\n\
            46 27 8:17 /x /c ro - xfs /dev/sdb1 rw,attr2\n\
            47 27 0:40 / /d rw - btrfs /dev/sdc rw,degraded,subvol=/\n\
            48 27 0:41 / /proc rw - proc proc rw\nnot a mount\n";
        let found = mounts(text);
        let summary: Vec<_> = found
            .iter()
            .map(|mount| (mount.point.to_str().unwrap(), mount.kind, mount.is_degraded))
            .collect();
        let expected = [
            ("/a b", Some(Kind::Btrfs), false),
            ("/c", Some(Kind::Xfs), true),
            ("/d", Some(Kind::Btrfs), true),
            ("/proc", None, false),
        ];
        assert_eq!(summary, expected);
        assert_eq!(found[1].number, "8:17");
    }

    #[test]
    fn swap_files_are_those_of_type_file() {
        let text = b"Filename\t\t\t\tType\t\tSize\n/dev/sda2   partition\t100\n\
            /a\\040swap   file\t\t100\t0\t-2\n";
        assert_eq!(swaps(text), [PathBuf::from("/a swap")]);
    }

    #[test]
    fn folder_without_a_mount_is_refused() {
        let fault = mount_at(Path::new("/proc/self/no-such-folder")).unwrap_err();
        let Fault::Refused(text) = fault else { panic!("{fault:?}") };
        assert!(text.contains("no-such-folder: no file system is mounted"), "{text}");
    }
}
