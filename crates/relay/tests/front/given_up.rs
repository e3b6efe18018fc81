//! Clients that drop a connection, and send the same requests again elsewhere: none of the first
//! ones is passed on afterwards, wherever it was.

use crate::cluster::{Cluster, ID, Map, Place, SECRET, config, connect, pause, until};
use crate::late::Late;
use crate::nodes::{Fake, NODE, lease, preamble, relayed, verdict};
use crate::strangers::{challenge, opening_of, shake_hands, welcome};
use crate::support::{ANSWER_MAX, Answer, Nbd};
use evenkeel_core::fencing::{GAP_MAX, NodeId};
use evenkeel_core::request::Operation;
use evenkeel_relay::hello::Verdict;
use evenkeel_relay::{Front, FrontConfig, Inside, Local, Peer, Timing};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const WRITE: Operation = Operation::Write { fua: false };
const BYTES: u32 = 4_096;
const LENGTH: usize = BYTES as usize;
/// Environment variable with the address of the home's front; a process of this test's binary that
/// has it is a front.
const HOME: &str = "EVENKEEL_TEST_HOME";
/// Value of `HOME` for a front whose node serves the volume itself.
const ITSELF: &str = "itself";
const SAID: &str = "clients connect to ";

fn write(client: &mut Nbd, fill: u8) {
    assert_eq!(client.ask(WRITE, 0, BYTES, &[fill; LENGTH]), Answer::Done(Vec::new()));
}

/// Acts as the client elsewhere: repeats the write, writes something else, and flushes.
fn go_on_at(cluster: &Cluster, node: usize) -> Nbd {
    let mut client = cluster.connect(node, true);
    write(&mut client, 1);
    write(&mut client, 2);
    assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), Answer::Done(Vec::new()));
    client
}

fn holds_the_last(client: &mut Nbd) {
    let read = client.ask(Operation::Read, 0, BYTES, &[]);
    assert!(read == Answer::Done(vec![2; LENGTH]), "what was flushed is overwritten");
}

/// Checks that the connection ends after replies to completed requests.
fn ends(client: &mut Nbd) {
    while client.receive().is_some() {}
    let end = client.stream.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
}

/// Returns when a process that was stopped before has a gap.
fn outlast_a_gap() {
    let begin = clock_gettime(ClockId::Boottime).tv_sec;
    let long = i64::try_from(GAP_MAX.ns / 1_000_000_000).unwrap() + 2;
    until("it has been stopped for long", || {
        clock_gettime(ClockId::Boottime).tv_sec >= begin + long
    });
}

/// A data plane that serves nothing.
struct Nothing;

impl Local for Nothing {
    fn connect(&self, _: Peer) -> io::Result<Inside> {
        Err(io::ErrorKind::NotConnected.into())
    }
}

/// The life of [`Other`]; does nothing in the test's own process.
#[test]
fn front_of_another_process() {
    let Ok(home) = std::env::var(HOME) else { return };
    if home == ITSELF {
        let cluster = patient(Duration::from_nanos(GAP_MAX.ns));
        println!("{SAID}{}", cluster.nodes[0].address());
        let _ = io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let map = Arc::new(Map::default());
    map.divert(NODE, home.parse().unwrap());
    map.set(ID, Place::Node(NODE));
    let silence = Duration::from_nanos(GAP_MAX.ns);
    let config = config(NodeId(2), &map, Arc::new(Nothing));
    let timing = Timing { silence, ..config.timing };
    let front = Front::start(FrontConfig { timing, ..config }).unwrap();
    println!("{SAID}{}", front.client_addresses()[0]);
    // Serves until the test ends.
    let _ = io::stdin().read_to_end(&mut Vec::new());
}

/// A front in a process of its own, which can be stopped.
struct Other {
    process: Child,
    address: SocketAddr,
    // Kept open: the test harness in the process writes to it after a minute.
    _stdout: BufReader<ChildStdout>,
}

impl Other {
    fn before(cluster: &Cluster) -> Self {
        Self::start(&cluster.nodes[0].front.as_ref().unwrap().node_address().to_string())
    }

    fn start(home: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "given_up::front_of_another_process", "--nocapture"])
            .env(HOME, home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = stdout.by_ref().lines().find_map(|line| {
            let line = line.unwrap();
            line.split_once(SAID).map(|(_, address)| address.parse().unwrap())
        });
        Self { process, address: address.expect("an address"), _stdout: stdout }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        until("it is stopped", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
        });
    }

    /// Lets the process continue, and returns when it serves.
    fn go_on(&self) {
        self.signal(Signal::CONT);
        until("it serves", || connect(self.address, true).is_some());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_front_that_was_stopped_passes_nothing_on_whose_client_has_gone() {
    let cluster = patient(Duration::from_nanos(GAP_MAX.ns));
    let other = Other::before(&cluster);
    for _ in 0..3 {
        let mut client = connect(other.address, true).expect("the export is there");
        write(&mut client, 0);
        other.stop();
        client.send(WRITE, 0, BYTES, &[1; LENGTH]);
        drop(client);
        let mut client = go_on_at(&cluster, 0);
        other.go_on();
        holds_the_last(&mut client);
    }
}

#[test]
fn a_front_that_was_stopped_for_long_passes_nothing_on_and_drops_its_clients() {
    let cluster = Cluster::new(1);
    let other = Other::before(&cluster);
    let mut left = connect(other.address, true).expect("the export is there");
    write(&mut left, 0);
    other.stop();
    left.send(WRITE, 0, BYTES, &[1; LENGTH]);
    let mut client = go_on_at(&cluster, 0);
    outlast_a_gap();
    other.go_on();
    ends(&mut left);
    holds_the_last(&mut client);
}

#[test]
fn a_front_sends_nothing_of_a_client_that_has_gone() {
    let (home, requests) = silent_home();
    let other = Other::start(&home.to_string());
    let mut client = connect(other.address, true).expect("the export is there");
    other.stop();
    client.send(WRITE, 0, BYTES, &[1; LENGTH]);
    drop(client);
    other.go_on();
    // From this client, and from the one that only connects and disconnects.
    let told = (0..2).map(|_| requests.recv_timeout(ANSWER_MAX).unwrap()).sum::<usize>();
    assert_eq!(told, 0, "bytes of requests");
}

/// A home that answers no request. It reports, for each connection with a complete handshake, the
/// number of bytes of requests that came before its end.
fn silent_home() -> (SocketAddr, Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let tell = tell.clone();
            std::thread::spawn(move || -> io::Result<()> {
                let opening = opening_of(&mut stream)?;
                challenge(&mut stream, &SECRET, (NODE, opening))?;
                if welcome(&mut stream)?.session.is_none() {
                    return stream.read_to_end(&mut Vec::new()).map(drop);
                }
                if !shake_hands(&mut stream)? {
                    return Ok(());
                }
                let mut requests = Vec::new();
                // It may be reset.
                let _ = stream.read_to_end(&mut requests);
                tell.send(requests.len()).map_err(io::Error::other)
            });
        }
    });
    (address, told)
}

/// Its data plane may have requests that it has not begun, and give them back to the front.
#[test]
fn a_home_that_was_stopped_for_long_drops_clients_that_are_lent() {
    let other = Other::start(ITSELF);
    let mut client = connect(other.address, true).expect("the export is there");
    // The first request is served by the front; then the client is lent.
    (0..100).for_each(|_| write(&mut client, 0));
    other.stop();
    client.send(WRITE, 0, BYTES, &[1; LENGTH]);
    outlast_a_gap();
    other.go_on();
    ends(&mut client);
}

/// The front reports its client's end to the home at once, so late requests are not taken.
#[test]
fn a_home_takes_nothing_late_of_a_client_that_has_gone() {
    let cluster = patient(Duration::from_secs(3_600));
    let late = Late::to(cluster.nodes[0].front.as_ref().unwrap().node_address());
    comes_late(&cluster, &late, 1);
}

/// Front and home are cut off from each other.
#[test]
fn a_home_takes_nothing_late_of_a_front_that_was_silent() {
    let cluster = patient(Duration::from_nanos(GAP_MAX.ns));
    let late = Late::to(cluster.nodes[0].front.as_ref().unwrap().node_address());
    comes_late(&cluster, &late, 0);
}

fn patient(silence: Duration) -> Cluster {
    Cluster::with(2, "", |config| FrontConfig {
        timing: Timing { silence, ..config.timing },
        ..config
    })
}

/// A client's write is late on the way to its home, on all connections from this number on.
fn comes_late(cluster: &Cluster, late: &Late, from: usize) {
    cluster.map.divert(cluster.nodes[0].id, late.address);
    let mut client = cluster.connect(1, true);
    write(&mut client, 0);
    assert!(late.connections() > 1, "the lease has the first one");
    let home = cluster.nodes[0].front.as_ref().unwrap();
    until("it counts", || home.figures().relayed == 1);
    late.keep(from..usize::MAX);
    client.send(WRITE, 0, BYTES, &[1; LENGTH]);
    until("it is on the way", || late.kept_bytes() >= LENGTH);
    drop(client);
    until("the home has dropped it", || home.figures().relayed == 0);
    let mut client = go_on_at(cluster, 0);
    late.let_go();
    until("all of it has come", || late.ended() >= 1);
    holds_the_last(&mut client);
    until("it was reset", || late.resets() >= 1);
}

/// The client moves elsewhere at once: the home knows neither its end nor the bytes that it sent.
#[test]
fn a_home_lets_a_client_in_after_the_fronts_of_its_former_connections_have_answered() {
    let home = 0;
    let former = 1;
    let other = 2;
    for next in [home, former, other] {
        let cluster = Cluster::with(3, "", |config| FrontConfig {
            timing: Timing { silence: Duration::from_secs(3_600), ..config.timing },
            ..config
        });
        let late = Late::to(cluster.nodes[home].front.as_ref().unwrap().node_address());
        cluster.map.divert(cluster.nodes[home].id, late.address);
        let mut client = cluster.connect(former, true);
        write(&mut client, 0);
        late.keep_ends();
        late.keep(0..late.connections());
        client.send(WRITE, 0, BYTES, &[1; LENGTH]);
        until("it is on the way", || late.kept_bytes() >= LENGTH);
        drop(client);
        let mut client = std::thread::scope(|scope| {
            let going_on = scope.spawn(|| go_on_at(&cluster, next));
            // A home that does not wait lets it in meanwhile.
            (0..500).filter(|_| !going_on.is_finished()).for_each(|_| pause());
            // The connection of the lease is late still.
            late.keep(0..1);
            until("the write has come", || late.passed_bytes() >= LENGTH);
            (0..100).for_each(|_| pause());
            late.let_go();
            going_on.join().unwrap()
        });
        holds_the_last(&mut client);
    }
}

/// Bytes that wait at the home for room in its data plane are not passed on once the client's front
/// has reset the connection.
#[test]
fn home_drops_waiting_bytes_when_its_front_is_gone() {
    let fake = Arc::new(Fake::default());
    let local = Arc::clone(&fake) as Arc<dyn Local>;
    let front = Front::start(config(NODE, &Arc::default(), local)).unwrap();
    let _lease = lease(front.node_address());
    let mut stream = relayed(front.node_address(), &preamble(1));
    assert_eq!(verdict(&mut stream), Some(Verdict::Welcome));
    stream.set_nonblocking(true).unwrap();
    let (inside, _kept) = fake.held.lock().unwrap().pop().unwrap();
    let unread = || rustix::io::ioctl_fionread(&inside).unwrap();
    // Sends until nothing moves any more, since the data plane takes nothing.
    let mut sent = 0;
    let mut still = 0;
    let mut before = 0;
    while still < 200 {
        sent += stream.write(&[7; LENGTH]).unwrap_or(0);
        still = if unread() == before { still + 1 } else { 0 };
        before = unread();
        pause();
    }
    let passed = unread();
    assert!(passed > 0 && sent as u64 > passed, "{sent} {passed}");
    // Resets the connection as a front does, so that unsent bytes are never sent.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    let mut read = Vec::new();
    (&inside).read_to_end(&mut read).unwrap();
    assert_eq!(read.len() as u64, passed);
}
