//! Access to the NBD server of this machine: without TCP, and over the unix socket by user.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use support::PATIENCE;
use support::clock::Deadline;
use support::process::{Output, run};
use support::server::Server;
use support::tools::{absent, skipped, tool};

/// Users and a group that do not exist on any machine.
const FRIEND: u32 = 61_001;
const MEMBER: u32 = 61_002;
const STRANGER: u32 = 61_003;
const GROUP: u32 = 62_000;

/// Returns the inodes of the TCP sockets that a process listens on.
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
fn server_without_tcp_listens_on_the_socket_only() {
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
    // An address that does not answer is not printed.
    let mut show = support::server::evenkeel(server.folder());
    show.env("EVENKEEL_NBD_LISTEN", "none").env("EVENKEEL_ENDPOINT", &server.endpoint);
    show.args(["volume", "show", &volume, "--data-dir"]).arg(server.data_dir());
    let shown = run(&mut show).ok();
    assert!(shown.contains("nbd+unix://") && !shown.contains("nbd://"), "{shown}");
    let mut serve = support::server::evenkeel(server.folder());
    let both = run(serve.args(["serve", "--nbd-listen", "none,127.0.0.1:0"])).fails_with(2);
    assert!(both.contains("none stands beside an address"), "{both}");
}

/// Starts a server whose socket is in a folder that every user may enter.
fn open_to(options: &str) -> (Server, String) {
    let folder = tempfile::Builder::new().prefix("evenkeel-").tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let socket = folder.path().join("nbd.sock").display().to_string();
    let data_dir = folder.path().join("data");
    let options = format!("--store memory --nbd-listen none --nbd-unix {socket} {options}");
    (Server::start_in(folder, data_dir, &options), socket)
}

/// Asks for the size of a volume as a client of this user and group.
fn size_for(user: u32, group: u32, socket: &str, volume: &str) -> Output {
    let who = format!("--reuid={user} --regid={user} --groups={group} nbdinfo --size");
    run(tool("setpriv", &who).arg(format!("nbd+unix:///{volume}?socket={socket}")))
}

#[test]
fn socket_admits_its_owner_and_named_users_only() {
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
        // Root may connect with any of these options.
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
    // A client that the server refused, and not the kernel, is in the log.
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
fn verbs_find_the_region_of_the_server_on_their_folder() {
    let server = Server::start("--region eu-local-7");
    server.evenkeel("volume create --size 1").ok();
    let shell = "test \"$AWS_REGION\" = eu-local-7 && evenkeel volume ls -o json";
    assert!(run(&mut server.shell(shell)).ok().contains("vol-"));
    let refused = server.evenkeel("volume ls --region elsewhere-1").fails_with(1);
    assert!(refused.contains("elsewhere-1"), "{refused}");
}

#[test]
fn a_configuration_file_that_another_user_can_write_is_refused_by_every_verb() {
    let (folder, _) = support::server::new_folder();
    let file = folder.path().join("evenkeel.toml");
    std::fs::write(&file, "region = \"r\"\n").expect("a file");
    let verb = || support::server::evenkeel(folder.path());
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).expect("ours");
    for line in [&["volume", "ls"][..], &["serve"], &["store", "check"], &["doctor"]] {
        let refused = run(verb().args(line)).fails_with(2);
        let reason = "evenkeel.toml is not read, because the working folder can be written by";
        assert!(refused.contains(reason), "{line:?}: {refused}");
    }
    let named = run(verb().args(["--config", "evenkeel.toml", "env", "--help"])).ok();
    assert!(!named.is_empty());
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    std::fs::write(&file, "key-command = \"touch ran\"\n").expect("a file");
    let refused = run(verb().args(["store", "check"])).fails_with(2);
    assert!(refused.contains("evenkeel.toml:1: key-command is not read"), "{refused}");
}

/// Runs a script in a folder until its first line of output, and then aborts it. Returns whether it
/// left a core dump; `None` if it has ended before.
fn aborted(folder: &Path, script: &str) -> Option<bool> {
    let script = format!("ulimit -c unlimited && {script}");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_evenkeel")]).current_dir(folder);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("a shell");
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("text");
    if line.is_empty() {
        child.wait().expect("our child");
        return None;
    }
    run(&mut tool("kill", &format!("-ABRT {}", child.id()))).ok();
    Some(child.wait().expect("our child").core_dumped())
}

#[test]
fn a_server_that_is_aborted_leaves_no_core_dump() {
    let (folder, _) = support::server::new_folder();
    if aborted(folder.path(), "echo ready && exec sleep 60") != Some(true) {
        return skipped("this machine makes no core dumps");
    }
    let serve = "exec \"$0\" serve --store memory --listen 127.0.0.1:0 --nbd-listen none";
    assert_eq!(aborted(folder.path(), serve), Some(false));
}
