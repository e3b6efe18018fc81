//! The bare Debian in which tests install the package, and which systemd boots in a container.

use crate::{run, setup};
use std::path::Path;
use std::process::Command;

/// Its folder, relative to the workspace's.
const FOLDER: &str = "target/bare-debian";
/// The release: the oldest on which the package must work.
const RELEASE: &str = "bookworm";
/// The packages with which systemd boots it.
const BOOTABLE: &str = "--include=systemd-sysv,dbus";
const MIRROR: &str = "http://deb.debian.org/debian";

/// Unpacks it, unless it exists. It needs root.
pub fn debian(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    // Renamed last, so that an interrupted one is unpacked again.
    if folder.join("usr/sbin/init").is_symlink() {
        return Ok(());
    }
    if !setup::is_root() {
        println!("no bare Debian without root: its test is skipped");
        return Ok(());
    }
    let beside = root.join("target/bare-debian.part");
    let io = |error: std::io::Error| format!("{}: {error}", beside.display());
    // What was interrupted, and a system that cannot be booted.
    for old in [&beside, &folder] {
        if old.exists() {
            std::fs::remove_dir_all(old).map_err(io)?;
        }
    }
    println!("unpacking Debian {RELEASE} in {}", folder.display());
    let mut unpack = Command::new("debootstrap");
    unpack.args(["--variant=minbase", BOOTABLE, RELEASE]).arg(&beside).arg(MIRROR);
    let printed = run::output(&mut unpack);
    if let Err(error) = printed {
        println!("{error}: the test on a bare Debian is skipped");
        return Ok(());
    }
    std::fs::rename(&beside, &folder).map_err(io)
}
