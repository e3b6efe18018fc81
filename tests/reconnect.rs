//! The server ends and starts again: the effects on its clients, and the actions that they need. In
//! prose: docs/operating/clients.md.

mod support;

use rustix::process::Signal;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::time::Duration;
use support::PATIENCE;
use support::clock::{Deadline, pass};
use support::cluster::signal_server;
use support::guest::{Guest, HOST, has_no_guest};
use support::nbd::Client;
use support::process::{Running, start};
use support::server::Server;
use support::tools::{absent, tool};

/// Volumes with credits: a server that stops closes them first.
const WITH_CREDITS: &str = "--type gp2 --size 4";

/// Returns a port below those that the kernel assigns to clients, so that it is still free when the
/// server starts again.
fn port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).expect("small");
    let first = first + 20 * TAKEN.fetch_add(1, Ordering::Relaxed);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..first + 20).find(free).expect("a free port")
}

/// Starts a server that uses the same port after a restart.
fn server(options: &str) -> Server {
    Server::start(&format!("{options} --nbd-listen 127.0.0.1:{}", port()))
}

/// Stops the server by SIGTERM, or kills it.
fn end(server: &mut Server, signal: Signal) {
    match signal {
        Signal::TERM => drop(server.stop()),
        _ => server.kill_9(),
    }
}

/// A client that connects, works until an error, and connects again at once.
struct Tireless {
    connected: AtomicU32,
    refused: Mutex<Vec<String>>,
}

impl Tireless {
    fn run(&self, address: SocketAddr, volume: &str, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            match Client::open(address, volume) {
                Ok(mut client) => {
                    self.connected.fetch_add(1, Ordering::Relaxed);
                    while !is_over.load(Ordering::Relaxed) && client.read(0, 512).is_ok() {}
                }
                Err(error) if error.to_string().contains("no export") => {
                    self.refused.lock().expect("no panic").push(error.to_string());
                }
                Err(_) => pass(Duration::from_millis(1)),
            }
        }
    }
}

/// Sets the flag when dropped, also if a test fails: the clients would otherwise never end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn client_that_reconnects_at_once_is_never_refused() {
    const VOLUMES: usize = 40;
    let mut server = server("");
    let mut volumes: Vec<String> = (0..VOLUMES).map(|_| server.attached(WITH_CREDITS)).collect();
    // The first one is closed before all others, and the last one is started after them.
    volumes.sort();
    let volumes = [&volumes[0], &volumes[VOLUMES - 1]];
    let address = server.nbd;
    let is_over = AtomicBool::new(false);
    let clients = volumes.map(|_| Tireless { connected: 0.into(), refused: Mutex::default() });
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        for (client, volume) in clients.iter().zip(volumes) {
            let is_over = &is_over;
            scope.spawn(move || client.run(address, volume, is_over));
        }
        for signal in [Signal::TERM, Signal::KILL, Signal::TERM, Signal::TERM] {
            let count = |client: &Tireless| client.connected.load(Ordering::Relaxed);
            Deadline::after(PATIENCE).ask("clients", || clients.iter().all(|c| count(c) > 0));
            end(&mut server, signal);
            clients.iter().for_each(|client| client.connected.store(0, Ordering::Relaxed));
            server.restart();
            Deadline::after(PATIENCE)
                .ask("both come back", || clients.iter().all(|c| count(c) > 0));
        }
    });
    for client in clients {
        assert_eq!(client.refused.into_inner().expect("no panic"), [""; 0]);
    }
}

#[test]
fn qemu_with_a_reconnect_delay_sees_no_error() {
    if absent(&["qemu-io"]) {
        return;
    }
    for signal in [Signal::TERM, Signal::KILL] {
        let mut server = server("");
        let volume = server.attached(WITH_CREDITS);
        let image = format!(
            "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={},export={volume},\
             reconnect-delay=60",
            server.nbd.port()
        );
        let mut qemu_io = tool("stdbuf", "-oL qemu-io --image-opts");
        let mut qemu_io = start(qemu_io.arg(image).stdin(Stdio::piped()));
        // qemu-io buffers its input, and waits for more of it even if it has a whole line. So each
        // line is sent after the previous one is answered.
        qemu_io.tell("write -f -P 7 0 4k");
        qemu_io.wait_for_line("wrote 4096/4096");
        end(&mut server, signal);
        // Sent while no server runs.
        qemu_io.tell("read -P 7 0 4k");
        server.restart();
        qemu_io.wait_for_line("read 4096/4096");
        qemu_io.tell("write -P 8 4k 4k");
        qemu_io.wait_for_line("wrote 4096/4096");
        let output = qemu_io.finish();
        assert!(output.status.success() && !output.stdout.contains("failed"), "{output}");
    }
}

/// Starts an nbdkit between the server and a client that cannot reconnect; nbdkit reconnects for
/// it.
fn proxy(server: &Server, volume: &str) -> (Running, u16) {
    let port = port();
    let mut nbdkit = tool("nbdkit", "-f --ipaddr 127.0.0.1 --filter=retry nbd");
    nbdkit.args([format!("--port={port}"), "hostname=127.0.0.1".to_owned()]);
    nbdkit.args([format!("port={}", server.nbd.port()), format!("export={volume}")]);
    let nbdkit = start(nbdkit.args(["retry-delay=1", "retry-exponential=no", "retries=60"]));
    let answers = || TcpStream::connect(("127.0.0.1", port)).is_ok();
    Deadline::after(PATIENCE).ask("nbdkit", answers);
    (nbdkit, port)
}

/// Connects the guest's kernel client to an export as `/dev/nbd0`, and waits until it is there.
fn connect(guest: &mut Guest, port: u16, export: &str, options: &str) {
    connect_as("nbd0", guest, port, export, options);
}

/// Connects the guest's kernel client to an export, and waits until the device is there.
fn connect_as(device: &str, guest: &mut Guest, port: u16, export: &str, options: &str) {
    let client = format!("nbd-client -N '{export}' {HOST} {port} /dev/{device} {options}");
    guest.run(&format!("{client} >/tmp/log 2>&1; cat /tmp/log")).ok();
    guest.run(&format!("until cat /sys/block/{device}/pid; do sleep 0.1; done 2>/dev/null")).ok();
}

#[test]
fn a_mounted_file_system_lives_through_restarts_behind_nbdkit() {
    if has_no_guest() || absent(&["nbdkit"]) {
        return;
    }
    let mut server = server("");
    let volume = server.attached(WITH_CREDITS);
    let (_nbdkit, port) = proxy(&server, &volume);
    let mut guest = Guest::boot(server.folder());
    connect(&mut guest, port, "", "-nonetlink");
    guest.run("mke2fs /dev/nbd0 >/dev/null && mount -t ext4 /dev/nbd0 /mnt").ok();
    for (round, signal) in [Signal::TERM, Signal::KILL].into_iter().enumerate() {
        guest.run(&format!("echo before > /mnt/before-{round} && sync")).ok();
        end(&mut server, signal);
        // Requests to the disk wait meanwhile.
        let write = format!("cp /bin/busybox /mnt/copy-{round} && echo after > /mnt/after-{round}");
        guest.begin(&format!("{write} && sync && echo 3 > /proc/sys/vm/drop_caches"));
        server.restart();
        guest.finish().ok();
        let found = guest.run(&format!("cat /mnt/before-{round} /mnt/after-{round}")).ok();
        assert_eq!(found, "before\nafter\n");
        guest.run(&format!("cmp /bin/busybox /mnt/copy-{round}")).ok();
    }
    guest.run("umount /mnt && nbd-client -d /dev/nbd0").ok();
}

#[test]
fn kernel_client_reconnected_by_hand_finds_synced_data() {
    if has_no_guest() {
        return;
    }
    let mut server = server("");
    let volume = server.attached(WITH_CREDITS);
    let port = server.nbd.port();
    let mut guest = Guest::boot(server.folder());
    connect(&mut guest, port, &volume, "-nonetlink -persist");
    guest.run("mke2fs /dev/nbd0 >/dev/null && mount -t ext4 /dev/nbd0 /mnt").ok();
    for (round, signal) in [Signal::TERM, Signal::KILL].into_iter().enumerate() {
        guest.run(&format!("echo {round} > /mnt/synced && sync")).ok();
        end(&mut server, signal);
        server.restart();
        // The commands of docs/operating/clients.md.
        guest.run("umount -l /mnt; nbd-client -d /dev/nbd0 >/dev/null 2>&1; true").ok();
        guest.run("while cat /sys/block/nbd0/pid; do sleep 0.1; done >/dev/null 2>&1").ok();
        connect(&mut guest, port, &volume, "-nonetlink");
        guest.run("mount -t ext4 /dev/nbd0 /mnt").ok();
        assert_eq!(guest.run("cat /mnt/synced").ok(), format!("{round}\n"));
        guest.run("echo more > /mnt/more && sync").ok();
    }
}

/// With nbd-client's default, netlink, the kernel's client keeps requests that were under way
/// forever. Each of the two options of docs/operating/clients.md ends them with an error.
#[test]
fn the_kernel_s_client_ends_requests_in_flight_with_the_options_of_the_page() {
    if has_no_guest() {
        return;
    }
    // One boot: each of them has a device of its own.
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = Guest::boot(folder.path());
    for (number, options) in ["-nonetlink", "-t 5", "-nonetlink -t 30"].into_iter().enumerate() {
        let mut server = server("");
        let volume = server.attached(WITH_CREDITS);
        let device = format!("nbd{number}");
        connect_as(&device, &mut guest, server.nbd.port(), &volume, options);
        signal_server(&server, Signal::STOP);
        let read = format!("dd if=/dev/{device} of=/dev/null bs=4096 count=1 skip=50000");
        let end = format!("/tmp/ended-{number}");
        guest.run(&format!("({read} >/tmp/read-{number} 2>&1; echo ended >{end}) &")).ok();
        // The first column counts the reads under way.
        let in_flight = format!("grep -q '^ *[1-9]' /sys/block/{device}/inflight");
        guest.run(&format!("until {in_flight}; do sleep 0.1; done")).ok();
        server.kill_9();
        guest.run(&format!("until test -e {end}; do sleep 0.1; done")).ok();
        let text = guest.run(&format!("cat /tmp/read-{number}")).ok();
        // An error, or the end of a device that has no size any more.
        assert!(!text.contains("1+0 records in"), "{options}: {text}");
    }
}
