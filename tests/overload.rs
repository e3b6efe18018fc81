//! Too much, too little or invalid input from some clients does not affect others.

mod support;

use rustix::process::{Resource, Signal, getrlimit};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::time::Duration;
use support::PATIENCE;
use support::clock::{Deadline, Stopwatch, pass};
use support::metrics::Metrics;
use support::mount::Mount;
use support::nbd::{self, Client, OPTION_ABORT, OPTION_GO, go, request};
use support::random::{Random, seed_of};
use support::server::{FAST, Server};
use support::tools::{absent, skipped, start_fio};

const MIB: u64 = 1 << 20;
/// `NBD_ENOSPC`.
const ENOSPC: i32 = 28;

/// Checks that a well-behaved client is served repeatedly.
fn works(server: &Server, volume: &str) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    for round in 0..20 {
        let data = [round; 4_096];
        client.write(u64::from(round) * 8_192, &data).expect("written");
        assert_eq!(client.read(u64::from(round) * 8_192, 4_096).expect("read"), data);
    }
    client.flush().expect("flushed");
}

#[test]
fn two_hundred_connections_work_on_one_volume() {
    const CONNECTIONS: u64 = 200;
    for options in ["--store memory", "--store local --io pread"] {
        let server = Server::start(options);
        let volume = server.attached(FAST);
        let everyone_is_in = Barrier::new(usize::try_from(CONNECTIONS).expect("small"));
        std::thread::scope(|scope| {
            for number in 0..CONNECTIONS {
                let address = server.nbd;
                let volume = &volume;
                let everyone_is_in = &everyone_is_in;
                scope.spawn(move || {
                    let client = Client::open(address, volume);
                    everyone_is_in.wait();
                    let mut client = client.expect("attached");
                    let mut random = Random::new(number);
                    for _ in 0..20 {
                        let start = number * MIB + random.below(240) * 4_096;
                        let size = 4_096 << random.below(3);
                        let data = random.bytes(size);
                        client.write(start, &data).expect("written");
                        let length = u32::try_from(data.len()).expect("short");
                        assert!(client.read(start, length).expect("read") == data);
                    }
                });
            }
        });
        works(&server, &volume);
    }
}

#[test]
fn a_low_limit_of_open_files_is_raised_as_far_as_may_be() {
    const OPEN_FILES: u32 = 100;
    const CONNECTIONS: u64 = 200;
    let hard = getrlimit(Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 4 * CONNECTIONS) {
        skipped(&format!("the hard limit of open files is {hard:?}"));
        return;
    }
    for options in ["--store memory", "--store memory --io pread"] {
        let mut server = Server::start_with_open_files(OPEN_FILES, options);
        let limits = server.process().proc_file("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let mut values = line.expect("the limit of open files").split_whitespace();
        assert_eq!(values.next(), values.next(), "soft and hard: {limits}");
        let volume = server.attached(FAST);
        let open = |_| Client::open(server.nbd, &volume).expect("attached");
        let mut clients: Vec<Client> = (0..CONNECTIONS).map(open).collect();
        for (client, number) in clients.iter_mut().zip(0..) {
            client.write(number * 4_096, &[7; 4_096]).expect("written");
        }
        works(&server, &volume);
    }
}

/// Returns random invalid input of several kinds; `volume` may be harmed.
fn nonsense(random: &mut Random, volume: &str) -> Vec<u8> {
    let count = usize::try_from(random.below(3_000)).expect("small");
    let option = |number: u32, length: u32| {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes
    };
    let low = |number: u64| u32::try_from(number & 0xffff_ffff).expect("masked");
    let data = go(volume);
    let length = u32::try_from(data.len()).expect("short");
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    match random.below(6) {
        0 => bytes = random.bytes(count),
        1 => bytes.extend(random.bytes(count)),
        2 => (0..30).for_each(|_| {
            let data_length = random.below(40);
            bytes.extend(option(low(random.below(12)), low(data_length)));
            bytes.extend(random.bytes(usize::try_from(data_length).expect("small")));
        }),
        3 => bytes.extend(option(OPTION_GO, low(random.number()))),
        4 => {
            bytes.extend(option(OPTION_GO, length).into_iter().chain(data));
            bytes.extend(random.bytes(count));
        }
        _ => {
            bytes.extend(option(OPTION_GO, length).into_iter().chain(data));
            for _ in 0..40 {
                let command = u16::try_from(random.below(12)).expect("small");
                let start = random.number() >> random.below(64);
                let length = random.number();
                let mut head =
                    request(command, random.number(), start, low(length) >> random.below(32));
                head[5] = u8::try_from(random.below(64)).expect("small");
                bytes.extend(head);
            }
        }
    }
    let end = bytes.len() - usize::try_from(random.below(30)).expect("small").min(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Sends all bytes and the end of the stream, and waits until the server ends the connection.
fn pour(
    mut stream: impl Read + Write,
    half_close: impl FnOnce() -> std::io::Result<()>,
    bytes: &[u8],
) {
    // The server may end the connection before; errors are ignored then.
    let _ = stream.write_all(bytes);
    let _ = half_close();
    let mut replies = [0; 65_536];
    loop {
        match stream.read(&mut replies) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the server keeps the connection: {error}; sent {bytes:02x?}"),
        }
    }
}

#[test]
fn nonsense_on_every_port_harms_no_client() {
    let mut server = Server::start("");
    let victim = server.attached("--size 1");
    let good = server.attached("--size 1");
    let mut random = Random::new(seed_of("overload -- nonsense"));
    for _ in 0..500 {
        for address in [server.nbd, server.api] {
            let bytes = nonsense(&mut random, &victim);
            let stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            pour(&stream, || stream.shutdown(std::net::Shutdown::Write), &bytes);
        }
        let bytes = nonsense(&mut random, &victim);
        let stream = UnixStream::connect(server.socket()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        pour(&stream, || stream.shutdown(std::net::Shutdown::Write), &bytes);
    }
    assert!(server.process().is_running());
    works(&server, &good);
    assert_eq!(server.list("volume ls").len(), 2);
    server.stop();
}

#[test]
fn silent_clients_delay_no_other_client() {
    let server = Server::start("--store memory");
    let volume = server.attached("--size 1");
    let connect = |address| TcpStream::connect(address).expect("a connection");
    let unix = || UnixStream::connect(server.socket()).expect("a connection");
    let _silent: Vec<_> =
        (0..60).map(|_| (connect(server.nbd), connect(server.api), unix())).collect();
    let _halfway: Vec<Client> = (0..60)
        .map(|number| {
            let mut client = Client::connect(server.nbd).expect("a connection");
            let option = [OPTION_GO, OPTION_ABORT][number % 2];
            client.send_option_head(option, 1_000).expect("sent");
            client
        })
        .collect();
    let mut idle: Vec<Client> =
        (0..60).map(|_| Client::open(server.nbd, &volume).expect("attached")).collect();
    // A write whose payload does not come.
    for client in &mut idle {
        client.send(nbd::WRITE, 0, 0, 1 << 20).expect("sent");
    }
    works(&server, &volume);
    assert_eq!(server.list("volume ls").len(), 1);
}

/// Writes whole MiB from the start until a write fails; returns how many succeeded, and the error.
fn fill(client: &mut Client) -> (u64, i32) {
    for number in 0..1_000 {
        if let Err(error) = client.write(number * MIB, &[7; 1 << 20]) {
            return (number, error.raw_os_error().unwrap_or_else(|| panic!("{error}")));
        }
    }
    panic!("the disk does not fill up")
}

/// A disk on which a pool is soon full: the pool has tables, and reserves room for logs.
const FULL_SOON: &str = "size=96m";

fn a_full_disk_is_an_error_and_no_end(io: &str) {
    let Some(mount) = Mount::tmpfs(FULL_SOON) else { return };
    fill_a_disk(io, &mount, 10..96);
}

fn fill_a_disk(options: &str, mount: &Mount, room_mib: Range<u64>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start_in(folder, mount.path().join("data"), options);
    let large = server.attached(FAST);
    let small = server.attached(FAST);
    let mut victim = Client::open(server.nbd, &small).expect("attached");
    victim.write(0, &[1; 65_536]).expect("written");
    let mut client = Client::open(server.nbd, &large).expect("attached");
    let (written, error) = fill(&mut client);
    assert_eq!(error, ENOSPC);
    assert!(room_mib.contains(&written), "{written} MiB, not {room_mib:?}");
    // The connection stays, and existing blocks can be read and overwritten, on both volumes.
    for number in 0..written {
        assert!(client.read(number * MIB, 1 << 20).expect("read") == [7; 1 << 20]);
    }
    victim.write(4_096, &[2; 4_096]).expect("no new space needed");
    assert_eq!(
        victim.read(0, 12_288).expect("read")[4_000..4_200],
        [[1; 96].as_slice(), &[2; 104]].concat()
    );
    // A volume may still have room that it got before.
    assert_eq!(fill(&mut victim).1, ENOSPC);
    assert_eq!(server.list("volume ls").len(), 2);
    let refused = server.evenkeel("volume create --size 1");
    assert!(refused.status.success() || refused.stderr.contains("error: "), "{refused}");
    // Freed space can be used at once.
    client.send(nbd::TRIM, 1, 0, u32::try_from(written * MIB).expect("small")).expect("sent");
    assert_eq!(client.reply().expect("a reply"), (0, 1));
    let is_there = || victim.write(20 * MIB, &[3; 1 << 20]).is_ok();
    Deadline::after(PATIENCE).ask("space for the other volume", is_there);
    client.write(0, &[4; 1 << 20]).expect("there is space again");
    client.flush().expect("flushed");
    server.create("--size 1");
    // A server that crashes on a full disk starts again with its data.
    assert_eq!(fill(&mut client).1, ENOSPC);
    server.kill_9();
    server.restart();
    let mut client = Client::open(server.nbd, &large).expect("attached");
    assert!(client.read(0, 1 << 20).expect("read") == [7; 1 << 20]);
    drop(client);
    server.evenkeel(&format!("volume detach {large} --wait")).ok();
    server.evenkeel(&format!("volume rm {large}")).ok();
    let mut victim = Client::open(server.nbd, &small).expect("attached");
    victim.write(2 * MIB, &[5; 1 << 20]).expect("there is space again");
    server.stop();
}

/// Returns the bytes of a file system that are free.
fn free_bytes(mount: &Mount) -> u64 {
    let state = rustix::fs::statvfs(mount.path()).expect("mounted");
    state.f_bavail * state.f_frsize
}

/// The journal and the audit may be beside the pool: a twentieth stays free, and at most 64 MiB.
#[test]
fn pool_file_leaves_a_part_of_its_disk_free() {
    let Some(mount) = Mount::tmpfs(FULL_SOON) else { return };
    let serve = |mount: &Mount| {
        let folder = tempfile::tempdir().expect("a folder");
        let pool = mount.path().join("pool");
        File::create(&pool).expect("an empty file");
        let data = folder.path().join("data");
        Server::start_in(folder, data, &format!("--pool {}", pool.display()))
    };
    let server = serve(&mount);
    let volume = server.attached(FAST);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(fill(&mut client).1, ENOSPC);
    let part = 96 * MIB / 20;
    let free = free_bytes(&mount);
    assert!((part..part + 4 * MIB).contains(&free), "{free} bytes are free, not {part}");
    drop((client, server));

    let Some(large) = Mount::tmpfs("size=4g") else { return };
    let server = serve(&large);
    // An eighth of a pool is for its own pages.
    let bytes = Metrics::of(&server).single("store_total_bytes") / 7.0 * 8.0;
    let most = (4_096 - 64) as f64 * MIB as f64;
    assert!(bytes <= most && bytes > most - 64.0 * MIB as f64, "{bytes} of {most} bytes");
}

#[test]
fn full_disk_is_an_error_and_no_exit_with_io_uring() {
    a_full_disk_is_an_error_and_no_end("--io uring");
}

#[test]
fn full_disk_is_an_error_and_no_exit_with_plain_calls() {
    a_full_disk_is_an_error_and_no_end("--io pread");
}

/// File systems with delayed allocation or preallocation.
#[test]
#[ignore = "full: tests/overload.rs::full_disk_is_an_error_and_no_exit_with_io_uring stays"]
fn full_ext4_or_xfs_is_an_error_and_no_exit() {
    for (mkfs, mib) in [("mkfs.ext4 -q -F", 160), ("mkfs.xfs -q -f", 320)] {
        let Some(mount) = Mount::disk(mkfs, mib * MIB) else { return };
        fill_a_disk("", &mount, 60..mib);
    }
}

/// Credits spent on a full disk must not come back with a restart. The space that a detach needs
/// must not go to other volumes, as nothing could be deleted then.
#[test]
fn full_disk_keeps_credits_and_lets_volumes_be_deleted() {
    let Some(mount) = Mount::tmpfs(FULL_SOON) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start_in(folder, mount.path().join("data"), "");
    let large = server.attached(FAST);
    let other = server.attached(FAST);
    let spender = server.attached("--type gp2 --size 10");
    let mut spending = Client::open(server.nbd, &spender).expect("attached");
    spending.write(0, &[1; 65_536]).expect("written");
    let mut greedy = Client::open(server.nbd, &other).expect("attached");
    let mut client = Client::open(server.nbd, &large).expect("attached");
    assert_eq!(fill(&mut client).1, ENOSPC);
    drop(client);
    // Takes all space to the last page, and again when there is more.
    let mut next = 0;
    let mut eat = || {
        while greedy.write(next, &[9; 4_096]).is_ok() {
            next += 4_096;
        }
    };
    eat();
    server.evenkeel(&format!("volume detach {large} --wait")).ok();
    eat();
    // Far more than a crash is assumed to have spent since the last report.
    let begin = server.credits(&spender);
    for _ in 0..15_000 {
        spending.read(0, 4_096).expect("read");
    }
    eat();
    let left = server.credits(&spender);
    let since = Stopwatch::start();
    // Time for a report of the balance.
    pass(Duration::from_secs(3));
    server.kill_9();
    server.restart();
    let after = server.credits(&spender);
    // 100 credits per second are earned meanwhile.
    let earned = (100.0 * since.seconds()).ceil() as u64 + 1;
    assert!(after <= left + earned, "{after} after {left}: {begin} before");
    for volume in [&large, &other, &spender] {
        server.evenkeel(&format!("volume detach {volume} --wait"));
        server.evenkeel(&format!("volume rm {volume}")).ok();
    }
    assert!(server.list("volume ls").is_empty());
}

/// The server is started repeatedly on a disk that other files fill to the last page each time,
/// with and without a clean stop. It starts, it serves, and its volumes can be deleted.
#[test]
fn server_starts_and_deletes_volumes_on_a_disk_that_stays_full() {
    let Some(mount) = Mount::tmpfs(FULL_SOON) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start_in(folder, mount.path().join("data"), "");
    let large = server.attached("--size 64");
    let other = server.attached("--size 64");
    let mut client = Client::open(server.nbd, &large).expect("attached");
    assert_eq!(fill(&mut client).1, ENOSPC);
    drop(client);
    let mut next = 0;
    let mut eat = |server: &Server| {
        // At the end the volume is detached.
        if let Ok(mut greedy) = Client::open(server.nbd, &other) {
            while greedy.write(next, &[9; 4_096]).is_ok() {
                next += 4_096;
            }
        }
        // A file outside the pool takes the rest.
        let filler = File::options().append(true).create(true).open(mount.path().join("filler"));
        let mut filler = filler.expect("a file");
        while filler.write_all(&[1; 512]).is_ok() {}
    };
    eat(&server);
    for round in 0..6 {
        match round % 2 {
            0 => server.kill_9(),
            _ => _ = server.stop(),
        }
        server.restart();
        eat(&server);
        let mut client = Client::open(server.nbd, &large).expect("attached");
        assert_eq!(client.read(0, 4_096).expect("read"), [7; 4_096]);
    }
    let metrics = Metrics::of(&server);
    assert!(metrics.single("store_free_bytes") < metrics.single("store_total_bytes") / 10.0);
    for volume in [&large, &other] {
        server.evenkeel(&format!("volume detach {volume} --wait")).ok();
        eat(&server);
        server.evenkeel(&format!("volume rm {volume}")).ok();
    }
    assert!(server.list("volume ls").is_empty());
    let logged = server.stop();
    assert!(logged.contains("nearly full"), "{logged}");
}

#[test]
fn a_stop_under_load_is_clean() {
    if absent(&["fio"]) {
        return;
    }
    for options in ["--io uring", "--io pread", "--store memory"] {
        let mut server = Server::start(options);
        let volumes = [server.attached(FAST), server.attached("--type io2 --size 4 --iops 100")];
        // A client that does not read its replies is waited for, but not forever.
        let mut lazy = Client::open(server.nbd, &volumes[0]).expect("attached");
        let unread = if options == "--io uring" { 100 } else { 0 };
        (0..unread).for_each(|n| lazy.send(nbd::READ, n, 0, 1 << 20).expect("sent"));
        let _silent = TcpStream::connect(server.nbd).expect("a connection");
        let _quiet = TcpStream::connect(server.api).expect("a connection");
        let job = "--rw=randrw --bs=64k --iodepth=64 --size=256m --time_based --runtime=300 \
                   --status-interval=1 --eta=never";
        let mut loads: Vec<_> = [server.tcp_uri(&volumes[0]), server.unix_uri(&volumes[1])]
            .iter()
            .map(|uri| start_fio(&server, uri, job))
            .collect();
        for load in &mut loads {
            load.wait_for_line("total_ios");
        }
        server.process().signal(Signal::TERM);
        // A second signal changes nothing.
        server.stop();
        for load in loads {
            let output = load.finish();
            assert!(!output.status.success(), "fio did not notice: {output}");
        }
        server.restart();
        if options != "--store memory" {
            works(&server, &volumes[0]);
        }
    }
}
