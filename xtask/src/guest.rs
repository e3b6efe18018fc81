//! The kernel of the guest in which tests use the kernel's own NBD client: Debian's, unpacked but
//! not installed.

use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The smallest of Debian's kernels that has a serial port, ext4, virtio and nbd.
const KERNEL: &str = "linux-image-cloud-amd64";

/// The folder of the unpacked kernel.
const FOLDER: &str = "target/guest";

/// Downloads and unpacks the kernel, unless it exists. It needs no privileges.
pub fn kernel(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    // Renamed last, so that an interrupted one is unpacked again.
    if folder.is_dir() {
        return Ok(());
    }
    if std::env::consts::ARCH != "x86_64" {
        println!("setup: no guest for {}: its tests are skipped", std::env::consts::ARCH);
        return Ok(());
    }
    let beside = root.join("target/guest.part");
    let io = |error| format!("{}: {error}", beside.display());
    if beside.exists() {
        std::fs::remove_dir_all(&beside).map_err(io)?;
    }
    std::fs::create_dir_all(&beside).map_err(io)?;
    let shown = run::output(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let package = image(&shown)
        .ok_or_else(|| format!("apt-cache depends {KERNEL} names no kernel; run apt-get update"))?;
    println!("setup: unpacking {package} in {}", folder.display());
    let mut download = Command::new("apt-get");
    download.args(["-q", "-o", "Acquire::Retries=5", "download", package]).current_dir(&beside);
    run::status(&mut download)?;
    let archive = downloaded(&beside).ok_or_else(|| format!("{package}: nothing downloaded"))?;
    run::status(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&beside))?;
    std::fs::remove_file(&archive).map_err(io)?;
    std::fs::rename(&beside, &folder).map_err(io)
}

/// Returns the package of the kernel itself, on which the other one depends.
fn image(shown: &str) -> Option<&str> {
    let mut names = shown.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

fn downloaded(folder: &Path) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(folder).ok()?.flatten().map(|file| file.path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "deb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_package_is_found() {
        let shown = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(image(shown), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(image("linux-image-cloud-amd64\n"), None);
    }
}
