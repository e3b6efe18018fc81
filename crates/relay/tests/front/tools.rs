//! NBD clients of other projects, through a front that relays to another node.

use crate::cluster::{Cluster, ID, SIZE};
use std::process::Command;

/// Runs a program. Returns its output, or `None` if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    // fio leaves a file behind.
    let folder = tempfile::tempdir().unwrap();
    match Command::new(program).args(arguments).current_dir(folder.path()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed (cargo x setup installs it)");
            None
        }
        Err(error) => panic!("{program}: {error}"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
            Some(text)
        }
    }
}

#[test]
fn programs_use_a_relayed_volume() {
    let cluster = Cluster::new(2);
    let uri = format!("nbd://{}/{ID}", cluster.nodes[1].address());
    if let Some(told) = run("nbdinfo", &[&uri]) {
        assert!(told.contains(&format!("export-size: {SIZE}")), "{told}");
        assert!(told.contains("base:allocation"), "{told}");
    }
    let write = ["-f", "raw", "-c", "write -P 7 64k 128k", "-c", "read -P 7 64k 128k", &uri];
    if let Some(told) = run("qemu-io", &write) {
        assert!(told.contains("read 131072/131072"), "{told}");
    }
    if let Some(told) = run("nbdinfo", &["--map", &uri]) {
        assert!(told.contains("data") && told.contains("hole"), "{told}");
    }
    let uri_option = format!("--uri={uri}");
    let words = [
        "--name=relayed",
        "--ioengine=nbd",
        &uri_option,
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--size=1m",
        "--verify=crc32c",
        "--number_ios=2000",
    ];
    if let Some(told) = run("fio", &words) {
        assert!(told.contains("err= 0"), "{told}");
    }
}
