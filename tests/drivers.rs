//! Clients of the EC2 API by others, with their original calls in their order: the EBS CSI driver,
//! Terraform's provider, the SDK for Go, dsnap, and every verb of aws-cli.

mod support;

use std::os::unix::fs::PermissionsExt;

use support::process::run;
use support::server::Server;
use support::tools::{absent, in_target, in_venv};

/// The path of the pool's file in a data folder.
const POOL: &str = "pool";

/// Runs one check of a script of tests/python with the Python of the AWS clients.
fn check(server: &Server, script: &str, check: &str) {
    let python = in_venv("python");
    let script = format!("{}/tests/python/{script}", env!("CARGO_MANIFEST_DIR"));
    let pool = server.data_dir().join(POOL);
    let nbd = server.nbd;
    let pool = pool.display();
    run(&mut server.shell(&format!("exec {python} -B {script} {check} {nbd} {pool}"))).ok();
}

/// Runs a check on a server of its own with these options; does nothing without that Python.
fn check_on(options: &str, script: &str, name: &str) {
    if absent(&[&in_venv("python")]) {
        return;
    }
    check(&Server::start(options), script, name);
}

/// Runs a check on a server that has a key.
fn check_with_key(options: &str, script: &str, name: &str) {
    if absent(&[&in_venv("python")]) {
        return;
    }
    let (_folder, server) = with_key(options);
    check(&server, script, name);
}

/// Starts a server whose key is in another folder.
fn with_key(options: &str) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    std::fs::write(&key, "5a".repeat(32)).expect("a key");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("ours alone");
    let server = Server::start(&format!("--store local {options} --key-file {}", key.display()));
    (folder, server)
}

#[test]
fn the_csi_driver_provisions() {
    check_on("--store local", "csi.py", "provisioning");
}

#[test]
fn the_csi_driver_asks_for_many_at_once() {
    check_on("--store local", "csi.py", "batches");
}

#[test]
fn the_csi_driver_encrypts() {
    check_with_key("", "csi.py", "encrypting");
}

#[test]
fn the_csi_driver_attaches_and_detaches() {
    check_on("--store local", "csi.py", "publishing");
}

#[test]
fn the_csi_driver_expands_and_modifies() {
    check_on("--store local", "csi.py", "expanding");
}

#[test]
fn the_csi_driver_knows_an_optimizing_volume() {
    check_on("--store local --modify-policy aws", "csi.py", "optimizing");
}

#[test]
fn the_csi_driver_makes_snapshots_and_clones() {
    check_on("--store local", "csi.py", "snapshots");
}

#[test]
fn terraform_s_resources_come_and_go() {
    check_with_key("", "terraform.py", "everything");
}

#[test]
fn a_copy_holds_the_bytes_of_its_source_and_none_that_came_later() {
    check_on("--store local", "disks.py", "copies");
}

#[test]
fn an_encrypted_copy_has_the_bytes_and_the_disk_does_not_show_them() {
    check_with_key("", "disks.py", "encryption");
}

#[test]
fn dsnap_downloads_an_image_bit_for_bit() {
    check_on("--store local", "disks.py", "images");
}

#[test]
fn aws_cli_has_every_verb_and_waits() {
    if absent(&[&in_venv("aws")]) {
        return;
    }
    check_with_key("--recycle-bin-days 1", "aws_cli.py", "");
}

#[test]
fn the_sdk_for_go_takes_a_volume_through_its_life() {
    let smoke = in_target("go/smoke");
    if absent(&[&smoke]) {
        return;
    }
    let server = Server::start("--store local");
    run(&mut server.shell(&format!("exec {smoke}"))).ok();
}
