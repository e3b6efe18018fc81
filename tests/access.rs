//! Who gets at the NBD server of this machine: without TCP, and over the unix socket by user.

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use support::PATIENCE;
use support::clock::Deadline;
use support::process::{Output, run};
use support::server::Server;
use support::tools::{absent, skipped, tool};

/// Users and a group that no machine has.
const FRIEND: u32 = 61_001;
const MEMBER: u32 = 61_002;
const STRANGER: u32 = 61_003;
const GROUP: u32 = 62_000;

/// Inodes of the TCP sockets that a process listens on.
fn tcp_listeners(server: &Server) -> usize {
    let process = format!("/proc/{}", server.pid());
    let listening: Vec<String> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(format!("{process}/net/{table}")).ok())
        .flat_map(|table| table.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields.get(3) == Some(&"0A")).then(|| format!("socket:[{}]", fields[9]))
        })
        .collect();
    let files = std::fs::read_dir(format!("{process}/fd")).expect("our own child");
    files
        .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
        .filter(|link| listening.iter().any(|socket| Path::new(socket) == link))
        .count()
}

#[test]
fn without_tcp_there_is_the_socket_and_nothing_else() {
    if absent(&["nbdinfo"]) {
        return;
    }
    let both = Server::start("--store memory");
    assert_eq!(tcp_listeners(&both), 2, "the API and NBD");
    let server = Server::start("--store memory --nbd-listen none");
    assert_eq!(tcp_listeners(&server), 1, "the API");
    let volume = server.attached("--size 2");
    let size = run(&mut tool("nbdinfo", &format!("--size {}", server.unix_uri(&volume)))).ok();
    assert_eq!(size.trim(), (2_u64 << 30).to_string());
    // Nobody is told an address that does not answer.
    let mut show = support::server::evenkeel(server.folder());
    show.env("EVENKEEL_NBD_LISTEN", "none").env("EVENKEEL_ENDPOINT", &server.endpoint);
    show.args(["volume", "show", &volume, "--data-dir"]).arg(server.data_dir());
    let shown = run(&mut show).ok();
    assert!(shown.contains("nbd+unix://") && !shown.contains("nbd://"), "{shown}");
    let mut serve = support::server::evenkeel(server.folder());
    let both = run(serve.args(["serve", "--nbd-listen", "none,127.0.0.1:0"])).fails_with(2);
    assert!(both.contains("none stands beside an address"), "{both}");
}

/// A server whose socket lies in a folder that everybody may enter.
fn open_to(options: &str) -> (Server, String) {
    let folder = tempfile::Builder::new().prefix("evenkeel-").tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let socket = folder.path().join("nbd.sock").display().to_string();
    let data_dir = folder.path().join("data");
    let options = format!("--store memory --nbd-listen none --nbd-unix {socket} {options}");
    (Server::start_in(folder, data_dir, &options), socket)
}

/// What a client of that user and that group is told the size of a volume is.
fn size_for(user: u32, group: u32, socket: &str, volume: &str) -> Output {
    let who = format!("--reuid={user} --regid={user} --groups={group} nbdinfo --size");
    run(tool("setpriv", &who).arg(format!("nbd+unix:///{volume}?socket={socket}")))
}

#[test]
fn the_socket_is_for_its_owner_and_for_those_who_are_named() {
    if absent(&["nbdinfo", "setpriv"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be other users");
        return;
    }
    let mode = |socket: &str| {
        let found = std::fs::metadata(socket).expect("a socket");
        (found.mode() & 0o777, found.gid())
    };
    let asked = |(server, socket): &mut (Server, String)| {
        let volume = server.attached("--size 1");
        // Root may always, in what way it listens.
        assert!(size_for(0, 0, socket, &volume).status.success());
        let clients = [(FRIEND, FRIEND), (MEMBER, GROUP), (STRANGER, STRANGER)];
        clients.map(|(user, group)| size_for(user, group, socket, &volume).status.success())
    };
    let mut served = open_to("");
    assert_eq!(asked(&mut served), [false, false, false]);
    assert_eq!(mode(&served.1).0, 0o600);
    let mut served = open_to(&format!("--nbd-unix-group {GROUP}"));
    assert_eq!(asked(&mut served), [false, true, false]);
    assert_eq!(mode(&served.1), (0o660, GROUP));
    let mut served = open_to(&format!("--nbd-unix-users {FRIEND} --nbd-unix-group {GROUP}"));
    assert_eq!(asked(&mut served), [true, true, false]);
    assert_eq!(mode(&served.1), (0o666, GROUP));
    // Who was sent away by us, not by the kernel, is in the log.
    let server = &mut served.0;
    Deadline::after(PATIENCE).ask("a line about the stranger", || {
        server.process().logged().contains(&format!("uid={STRANGER}"))
    });
    let log = server.stop();
    assert!(log.contains("nbd-unix-users"), "{log}");
    for other in [FRIEND, MEMBER] {
        assert!(!log.contains(&format!("uid={other}")), "{log}");
    }
}

#[test]
fn the_pool_is_its_servers_alone() {
    let server = Server::start("");
    let mode = std::fs::metadata(server.data_dir().join("pool")).expect("made at the start").mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_files_of_volumes_are_their_servers_alone() {
    let folder = tempfile::Builder::new().prefix("evenkeel-").tempdir().expect("a folder");
    let volumes = folder.path().join("data/volumes");
    let mode = || std::fs::metadata(&volumes).expect("made at the start").mode() & 0o777;
    let data_dir = folder.path().join("data");
    let mut server = Server::start_in(folder, data_dir, "--store files");
    assert_eq!(mode(), 0o700);
    server.stop();
    // As servers before this one left it.
    std::fs::set_permissions(&volumes, PermissionsExt::from_mode(0o755)).expect("ours");
    server.restart();
    assert_eq!(mode(), 0o700);
}
