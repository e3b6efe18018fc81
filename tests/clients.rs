//! Unmodified NBD clients with the built binary: libnbd's tools, qemu's, fio.

mod support;

use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use support::nbd::{Client, OPTION_GO, REPLY_UNKNOWN, go};
use support::process::run;
use support::random::Random;
use support::server::{FAST, Server};
use support::tools::{absent, fio, libnbd, tool};

const GIB: u64 = 1 << 30;
const MIB: usize = 1 << 20;

fn described(text: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(text).expect("JSON");
    report["exports"].as_array().expect("exports").clone()
}

#[test]
fn nbdinfo_shows_the_provisioned_volume() {
    if absent(&["nbdinfo"]) {
        return;
    }
    let server = Server::start("--store memory");
    let volume = server.attached("--type io2 --size 7 --iops 100");
    for uri in [server.tcp_uri(&volume), server.unix_uri(&volume)] {
        let exports = described(&run(&mut tool("nbdinfo", &format!("--json {uri}"))).ok());
        assert_eq!(exports.len(), 1);
        let export = &exports[0];
        assert_eq!(export["export-name"], volume);
        assert_eq!(export["export-size"], 7 * GIB);
        assert_eq!(export["block_size_minimum"], 512);
        assert_eq!(export["block_size_preferred"], 4_096);
        assert_eq!(export["block_size_maximum"], 32 * MIB);
        assert_eq!(export["is_read_only"], false);
        let can = ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"];
        for ability in can {
            assert_eq!(export[format!("can_{ability}")], true, "{ability}");
        }
        assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    }
}

#[test]
fn nbdinfo_lists_attached_volumes_only() {
    if absent(&["nbdinfo"]) {
        return;
    }
    let server = Server::start("--store memory");
    let list = || {
        let uri = server.tcp_uri("");
        let exports = described(&run(&mut tool("nbdinfo", &format!("--list --json {uri}"))).ok());
        let mut names: Vec<String> = exports
            .iter()
            .map(|export| export["export-name"].as_str().expect("a name").to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(), [""; 0]);
    let mut attached = [server.attached("--size 1"), server.attached("--size 1")];
    let detached = server.create("--size 1");
    attached.sort();
    assert_eq!(list(), attached);
    server.evenkeel(&format!("volume attach {detached} --wait")).ok();
    assert_eq!(list().len(), 3);
    for volume in &attached {
        server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    }
    assert_eq!(list(), [detached]);
}

#[test]
fn no_other_export_exists_and_the_message_says_why() {
    let server = Server::start("--store memory");
    let detached = server.create("--size 1");
    let volume = server.attached("--size 1");
    let upper = volume.to_uppercase();
    for name in ["", "nope", &detached, &upper, "vol-00000000000000000"] {
        let mut client = Client::connect(server.nbd).expect("a connection");
        client.send_option(OPTION_GO, &go(name)).expect("sent");
        let reply = client.option_reply().expect("a reply");
        let message = String::from_utf8(reply.data).expect("text");
        assert_eq!(reply.kind, REPLY_UNKNOWN, "{name}: {message}");
        assert!(message.contains("attached"), "{name}: {message}");
        assert!(message.contains(name), "{name}: {message}");
        // A second attempt on the same connection may use the right name.
        client.send_option(OPTION_GO, &go(&volume)).expect("sent");
        assert!(client.option_reply().expect("a reply").kind < REPLY_UNKNOWN);
    }
}

#[test]
fn nbdcopy_brings_a_file_in_and_out() {
    if absent(&["nbdcopy"]) {
        return;
    }
    let server = Server::start("");
    let original = Random::new(1).bytes(64 * MIB);
    let source = server.folder().join("source");
    std::fs::write(&source, &original).expect("written");
    let volume = server.attached("--type io2 --size 4 --iops 4000");
    for (number, uri) in [server.tcp_uri(&volume), server.unix_uri(&volume)].iter().enumerate() {
        let copy_in = format!("--connections=4 --requests=16 {} {uri}", source.display());
        run(&mut tool("nbdcopy", &copy_in)).ok();
        let copy = server.folder().join(format!("copy-{number}"));
        let copy_out = format!("--connections=4 --flush {uri} {}", copy.display());
        run(&mut tool("nbdcopy", &copy_out)).ok();
        let metadata = copy.metadata().expect("a copy");
        assert_eq!(metadata.size(), 4 * GIB);
        // Ranges that were never written are known as holes, and are neither read nor written.
        assert!(metadata.blocks() * 512 < 128 << 20, "{} blocks", metadata.blocks());
        let mut data = vec![0; 64 * MIB];
        std::fs::File::open(&copy).expect("open").read_exact(&mut data).expect("read");
        assert!(data == original, "the copy differs");
    }
}

/// Runs one check of tests/python/protocol.py, over both transports, on both stores, with both ways
/// of I/O.
fn protocol(check: &str) {
    if absent(&["libnbd for Python"]) {
        return;
    }
    for options in ["--store memory --io uring", "--store local --io pread", "--store local"] {
        let server = Server::start(options);
        for over_tcp in [true, false] {
            let volume = server.attached(FAST);
            let uri = if over_tcp { server.tcp_uri(&volume) } else { server.unix_uri(&volume) };
            println!("{check} with {options} at {uri}");
            libnbd("protocol.py", &[&uri, check]);
        }
    }
}

#[test]
fn libnbd_negotiates() {
    protocol("negotiation");
}

#[test]
fn libnbd_sees_allocated_ranges() {
    protocol("allocation");
}

#[test]
fn libnbd_writes_zeroes() {
    protocol("zeroes");
}

#[test]
fn libnbd_flushes_and_forces_unit_access() {
    protocol("durability");
}

#[test]
fn libnbd_gets_errors_for_wrong_requests_and_stays_connected() {
    protocol("wrong_requests");
}

#[test]
fn libnbd_that_knows_no_blocks_begins_and_ends_anywhere() {
    protocol("any_offset");
}

#[test]
fn libnbd_is_refused_other_exports() {
    protocol("wrong_export");
}

#[test]
fn nbdsh_talks_to_the_server() {
    if absent(&["nbdsh"]) {
        return;
    }
    let server = Server::start("--store memory");
    let uri = server.unix_uri(&server.attached("--size 1"));
    let mut nbdsh = tool("nbdsh", "");
    // It runs the first `python3` on the path, which must be the one with libnbd.
    nbdsh.env("PATH", format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default()));
    nbdsh.args(["-u", &uri, "-c", "h.pwrite(b'k' * 512, 512); print(h.pread(1024, 0)[510:514])"]);
    assert_eq!(run(&mut nbdsh).ok(), "bytearray(b'\\x00\\x00kk')\n");
}

#[test]
fn qemu_img_converts_and_compares() {
    if absent(&["qemu-img"]) {
        return;
    }
    let server = Server::start("");
    let volume = server.attached("--type io2 --size 4 --iops 4000");
    let uri = server.tcp_uri(&volume);
    let info = run(&mut tool("qemu-img", &format!("info --output=json {uri}"))).ok();
    let info: Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["virtual-size"], 4 * GIB);
    let raw = server.folder().join("raw");
    let mut image = Random::new(2).bytes(24 * MIB);
    image[8 * MIB..16 * MIB].fill(0);
    std::fs::write(&raw, &image).expect("written");
    let qcow2 = server.folder().join("image.qcow2");
    let raw = raw.display();
    let qcow2 = qcow2.display();
    let qemu_img = |arguments: &str| run(&mut tool("qemu-img", arguments));
    qemu_img(&format!("convert -f raw -O qcow2 {raw} {qcow2}")).ok();
    qemu_img(&format!("convert -n -f qcow2 -O raw {qcow2} {uri}")).ok();
    qemu_img(&format!("compare -f qcow2 -F raw {qcow2} {uri}")).ok();
    // Writes to a block that is zero in the image.
    run(tool("qemu-io", "-f raw -c").args(["write -P 7 9M 4k", &uri])).ok();
    let difference = qemu_img(&format!("compare -f qcow2 -F raw {qcow2} {uri}")).fails_with(1);
    assert!(difference.contains("offset 9437184"), "{difference}");
}

#[test]
fn qemu_io_reads_back_its_writes() {
    if absent(&["qemu-io"]) {
        return;
    }
    for options in ["--store memory", "--store local --io pread"] {
        let server = Server::start(options);
        for uri in [0, 1].map(|_| server.unix_uri(&server.attached(FAST))) {
            let mut qemu_io = tool("qemu-io", "-f raw -d unmap");
            let commands = [
                "write -P 0xaa 0 8M",
                "discard 1M 1M",
                "write -z 2M 1M",
                "write -z -u 3M 1M",
                "write -f -P 0xbb 4608 1536",
                "flush",
                "read -P 0xaa 0 4608",
                "read -P 0xbb 4608 1536",
                "read -P 0xaa 6144 1042432",
                "read -P 0 1M 3M",
                "read -P 0xaa 4M 4M",
                "read -P 0 8M 8M",
                "aio_write -P 0xcc 16M 1M",
                "aio_write -P 0xdd 17M 1M",
                "aio_flush",
                "read -P 0xcc 16M 1M",
                "read -P 0xdd 17M 1M",
                "read -P 0 64G 512",
            ];
            for command in commands {
                qemu_io.args(["-c", command]);
            }
            let text = run(qemu_io.arg(&uri)).fails_with(1);
            // Only the last command fails: it is past the end.
            assert!(!text.contains("verification failed"), "{text}");
            assert_eq!(text.matches("failed").count(), 1, "{text}");
            assert!(text.contains("read failed: "), "{text}");
        }
    }
}

/// Makes random writes with 32 of them under way, which fio reads back and checks.
fn fio_verifies(options: &str) {
    if absent(&["fio"]) {
        return;
    }
    let server = Server::start(options);
    let jobs = [
        "--rw=randwrite --bs=4k --size=48m",
        "--rw=randwrite --bs=256k --size=128m",
        "--rw=randrw --bssplit=512/10:4k/50:64k/30:256k/10 --blockalign=512 --size=64m",
        // By default fio may send a write of a block while its discard is under way.
        "--rw=randtrimwrite --bs=64k --size=64m --serialize_overlap=1",
    ];
    for (job, over_tcp) in jobs.into_iter().zip([true, false].into_iter().cycle()) {
        let volume = server.attached(FAST);
        let uri = if over_tcp { server.tcp_uri(&volume) } else { server.unix_uri(&volume) };
        let verify = "--iodepth=32 --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7";
        let result = fio(&server, &uri, &format!("{job} {verify}"));
        let wrote = result["write"]["total_ios"].as_u64().expect("a count");
        let read = result["read"]["total_ios"].as_u64().expect("a count");
        assert!(wrote > 0 && read > 0, "{job}: {wrote} writes, {read} reads");
    }
}

#[test]
fn fio_verifies_memory_with_io_uring() {
    fio_verifies("--store memory --io uring");
}

#[test]
#[ignore = "full: tests/clients.rs::fio_verifies_memory_with_io_uring stays"]
fn fio_verifies_memory_with_plain_calls() {
    fio_verifies("--store memory --io pread");
}

#[test]
fn fio_verifies_a_pool_with_io_uring() {
    fio_verifies("--store local --io uring");
}

#[test]
fn fio_verifies_a_pool_with_plain_calls() {
    fio_verifies("--store local --io pread");
}
