//! The servers of a comparison: how each is started, reached, and stopped.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use evenkeel_lab::LabError;
use evenkeel_lab::child::Guarded;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_os::clock;
use evenkeel_sim::text;

/// Longest wait until a server accepts connections.
const START: Duration = Duration::from_secs(20);

/// Longest wait for a server to end when asked; then it is killed.
const STOP: Duration = Duration::from_secs(5);

/// A way to connect to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A unix socket.
    Unix,
    /// TCP over loopback.
    Tcp,
}

/// The size of an export in MiB, so that every server's own notation can be made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerSize {
    /// Mebibytes.
    pub mib: u32,
}

/// A server to compare.
///
/// In its arguments `{socket}`, `{port}`, `{file}` and `{size}` stand for the unix socket to listen
/// on, the TCP port on 127.0.0.1, a file of its own in memory, and the size in bytes.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The server's name in the table.
    pub name: String,
    /// The package that holds the program, for the message when it is missing.
    pub package: &'static str,
    /// The export's name.
    pub export: String,
    /// Program and arguments to listen on a unix socket.
    pub unix: Vec<String>,
    /// Program and arguments to listen on TCP.
    pub tcp: Vec<String>,
    /// Whether `{file}` must exist with its full size before the start.
    pub needs_file: bool,
    /// Whether it keeps written bytes. One that does not is shown as an upper bound: it is never
    /// the best that others are compared with.
    pub keeps_bytes: bool,
}

/// The places for the servers' files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// For sockets.
    pub(crate) folder: &'a Path,
    /// For files that hold exports.
    pub(crate) files: &'a Path,
    /// The size of each export.
    pub(crate) size: PeerSize,
}

/// A server that accepts connections. Dropping it stops it and removes its files.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) transport: Transport,
    pub(crate) uri: NbdUri,
    pub(crate) command: String,
    /// The path of its socket, if it listens on a unix socket.
    pub(crate) socket: PathBuf,
    child: Guarded,
    litter: Vec<PathBuf>,
}

impl PeerSize {
    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.mib) << 20
    }
}

/// Returns nbdkit's memory plugin, one of the fastest NBD servers.
#[must_use]
pub fn nbdkit_memory() -> Peer {
    nbdkit("nbdkit memory", "memory", "size={size}", false)
}

/// Returns nbdkit's file plugin on a file.
#[must_use]
pub fn nbdkit_file() -> Peer {
    nbdkit("nbdkit file", "file", "{file}", true)
}

/// Returns qemu-storage-daemon on a file in memory.
#[must_use]
pub fn qemu_file() -> Peer {
    qemu("qemu file", "driver=file,node-name=disk,filename={file}", true)
}

/// Returns qemu-storage-daemon on a file of a disk, without the page cache, limited to `iops` I/Os
/// of up to 256 KiB per second by a throttle group.
#[must_use]
pub(crate) fn qemu_limited(iops: u32) -> Peer {
    let mut peer = qemu(
        "qemu throttle",
        "driver=throttle,node-name=disk,throttle-group=limits,\
         file.driver=file,file.filename={file},file.cache.direct=on,file.aio=io_uring",
        true,
    );
    let group =
        format!("throttle-group,id=limits,limits.iops-total={iops},limits.iops-size={}", 256 << 10);
    for command in [&mut peer.unix, &mut peer.tcp] {
        command.splice(1..1, ["--object".to_owned(), group.clone()]);
    }
    peer
}

/// Returns nbdkit's memory plugin behind its `rate` filter, with this limit for reads and the same
/// for writes.
#[must_use]
pub(crate) fn nbdkit_limited(bytes_per_second: u64) -> Peer {
    let mut peer = nbdkit("nbdkit rate", "memory", "size={size}", false);
    let rate = format!("rate={}", bytes_per_second.saturating_mul(8));
    for command in [&mut peer.unix, &mut peer.tcp] {
        command.insert(1, "--filter=rate".to_owned());
        command.push(rate.clone());
    }
    peer
}

fn nbdkit(name: &str, plugin: &str, parameter: &str, needs_file: bool) -> Peer {
    let command = |listen: &[&str]| {
        let mut arguments = vec!["nbdkit", "--foreground", "--exit-with-parent"];
        arguments.extend_from_slice(listen);
        arguments.extend_from_slice(&[plugin, parameter]);
        arguments.into_iter().map(String::from).collect()
    };
    Peer {
        name: name.to_string(),
        package: "nbdkit",
        export: String::new(),
        unix: command(&["--unix", "{socket}"]),
        tcp: command(&["--ipaddr", "127.0.0.1", "--port", "{port}"]),
        needs_file,
        keeps_bytes: true,
    }
}

fn qemu(name: &str, device: &str, needs_file: bool) -> Peer {
    let command = |listen: &str| {
        let export = "type=nbd,id=export,node-name=disk,name=disk,writable=on";
        ["qemu-storage-daemon", "--blockdev", device, "--nbd-server", listen, "--export", export]
            .map(String::from)
            .to_vec()
    };
    Peer {
        name: name.to_string(),
        package: "qemu-system-common",
        export: "disk".to_string(),
        unix: command("addr.type=unix,addr.path={socket}"),
        tcp: command("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"),
        needs_file,
        keeps_bytes: needs_file,
    }
}

impl Peer {
    /// Starts the server at a unix socket, with a disk of this size; both are in a folder.
    pub(crate) fn on_disk(
        &self,
        folder: &Path,
        index: usize,
        mib: u32,
    ) -> Result<Running, LabError> {
        let place = Place { folder, files: folder, size: PeerSize { mib } };
        self.start(Transport::Unix, index, place)
    }

    /// Starts the server and waits until it accepts connections. `index` keeps its files apart from
    /// those of other servers.
    pub(crate) fn start(
        &self,
        transport: Transport,
        index: usize,
        place: Place<'_>,
    ) -> Result<Running, LabError> {
        let socket = place.folder.join(format!("server-{index}.socket"));
        let file = place.files.join(format!("server-{index}-{transport}.disk"));
        let mut litter = Vec::new();
        if self.needs_file {
            let disk =
                std::fs::File::create_new(&file).map_err(LabError::io("cannot create", &file))?;
            litter.push(file.clone());
            disk.set_len(place.size.bytes()).map_err(LabError::io("cannot size", &file))?;
        }
        let (template, address) = match transport {
            Transport::Unix => (&self.unix, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            Transport::Tcp => (&self.tcp, free_port()?),
        };
        let fill = |argument: &String| {
            argument
                .replace("{socket}", &socket.to_string_lossy())
                .replace("{port}", &address.port().to_string())
                .replace("{file}", &file.to_string_lossy())
                .replace("{size}", &place.size.bytes().to_string())
        };
        let arguments: Vec<String> = template.iter().map(fill).collect();
        let command = text::command_line(&arguments);
        let [program, rest @ ..] = &arguments[..] else {
            let what = format!("server {} has no command for {transport}", self.name);
            return Err(LabError::BadWorkload(what));
        };
        let mut server = Command::new(program);
        // A later run finds it by this folder if this run is killed.
        server.args(rest).current_dir(place.folder).stdout(Stdio::null());
        let child = Guarded::spawn(&mut server, self.package)?;
        let uri = match transport {
            Transport::Unix => NbdUri::unix(&socket, &self.export),
            Transport::Tcp => NbdUri::tcp(address, &self.export),
        };
        if transport == Transport::Unix {
            litter.push(socket.clone());
        }
        let place_of = socket.clone();
        let mut running =
            Running { name: self.name.clone(), transport, uri, command, socket, child, litter };
        running.wait_ready(|| match transport {
            Transport::Unix => UnixStream::connect(&place_of).is_ok(),
            Transport::Tcp => TcpStream::connect(address).is_ok(),
        })?;
        Ok(running)
    }
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tries to connect every 20 ms; between the tries it waits for the one other event, the
    /// server's end.
    fn wait_ready(&mut self, connects: impl Fn() -> bool) -> Result<(), LabError> {
        let deadline = clock::now() + START;
        while !connects() {
            if let Some(status) = self.child.wait_until(clock::now() + Duration::from_millis(20)) {
                return Err(LabError::ToolFailed {
                    tool: self.name.clone(),
                    how: status.to_string(),
                    said: self.child.stderr(),
                    command: self.command.clone(),
                });
            }
            if clock::now() >= deadline {
                let what = format!("the start of {} ({})", self.name, self.command);
                return Err(LabError::Deadline { what, after: START });
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.stop(STOP);
        for path in &self.litter {
            // The server may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        })
    }
}

/// Returns a port that was free a moment ago. A server that finds it taken fails to start, and says
/// so.
fn free_port() -> Result<SocketAddr, LabError> {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bound = TcpListener::bind(local).and_then(|listener| listener.local_addr());
    bound.map_err(LabError::io("cannot bind", Path::new("127.0.0.1:0")))
}
