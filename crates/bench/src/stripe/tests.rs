//! A striped file with a simulated kernel: a socket that keeps messages apart replaces the FUSE
//! device, and small servers in memory the volumes. The tests do not need root.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use evenkeel_wire::nbd::constants::command;
use evenkeel_wire::nbd::transmission::{ErrorCode, REQUEST_BYTES, RequestHeader, reply};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::durable::tests::shake_hands;

const VOLUME_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: u32 = 4 << 10;

/// A volume's bytes, and the requests that it received: command, offset, length.
type Kept = Arc<Mutex<(Vec<u8>, Vec<(u16, u64, u32)>)>>;

/// How a volume serves: it answers pairs of requests in the wrong order if `swaps`, fails reads at
/// `bad_offset`, and closes the connection after `gone_after` requests.
#[derive(Clone, Copy)]
struct Manner {
    swaps: bool,
    bad_offset: Option<u64>,
    gone_after: usize,
}

const WELL: Manner = Manner { swaps: false, bad_offset: None, gone_after: usize::MAX };

fn volume(socket: PathBuf, manner: Manner) -> Kept {
    let kept = Kept::new(Mutex::new((vec![0; VOLUME_BYTES as usize], Vec::new())));
    let listener = UnixListener::bind(socket).unwrap();
    let own = kept.clone();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        shake_hands(&mut stream, VOLUME_BYTES);
        let mut held: Option<Vec<u8>> = None;
        for _ in 0..manner.gone_after {
            let mut head = [0; REQUEST_BYTES];
            if stream.read_exact(&mut head).is_err() {
                return;
            }
            let answer = answer(&own, manner, &mut stream, &RequestHeader::decode(&head).unwrap());
            match (manner.swaps, held.take()) {
                (true, None) => held = Some(answer),
                (_, before) => {
                    stream.write_all(&answer).unwrap();
                    stream.write_all(&before.unwrap_or_default()).unwrap();
                }
            }
        }
    });
    kept
}

fn answer(own: &Kept, manner: Manner, stream: &mut UnixStream, request: &RequestHeader) -> Vec<u8> {
    let mut kept = own.lock().unwrap();
    kept.1.push((request.command, request.offset, request.length));
    let at = request.offset as usize..request.offset as usize + request.length as usize;
    let error = (manner.bad_offset == Some(request.offset)).then_some(ErrorCode::Io);
    let mut answer = reply::simple(request.cookie, error).to_vec();
    match request.command {
        command::WRITE => stream.read_exact(&mut kept.0[at]).unwrap(),
        command::READ if error.is_none() => answer.extend_from_slice(&kept.0[at]),
        _ => {}
    }
    answer
}

/// The kernel's end of a served stripe.
struct Kernel {
    device: File,
    kept: Vec<Kept>,
    unique: u64,
    answers: BTreeMap<u64, Vec<u8>>,
    service: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
    stop: Option<OwnedFd>,
}

impl Kernel {
    fn new(manners: &[Manner]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = |number: usize| folder.path().join(number.to_string());
        let kept = (0..).zip(manners).map(|(nth, manner)| volume(socket(nth), *manner)).collect();
        let open = |number| Volume::open(&socket(number), "v", clock::now()).unwrap().0;
        let volumes: Vec<Volume> = (0..manners.len()).map(open).collect();
        let flags = SocketFlags::CLOEXEC;
        let (device, served) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::io::ioctl_fionbio(&served, true).unwrap();
        let layout = Layout::new(manners.len(), CHUNK_BYTES);
        let size_bytes = layout.size_bytes(VOLUME_BYTES);
        let server = Server::new(File::from(served), volumes, layout, size_bytes);
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let service = Some(std::thread::spawn(move || server.run(&stopped)));
        let answers = BTreeMap::new();
        let stop = Some(stop);
        let device = File::from(device);
        Self { device, kept, unique: 0, answers, service, _folder: folder, stop }
    }

    /// Sends a request without waiting for the answer; returns its number.
    fn ask(&mut self, opcode: u32, offset: u64, bytes: usize, data: &[u8]) -> u64 {
        self.unique += 1;
        let mut message = vec![0; 80];
        message[..4].copy_from_slice(&u32::try_from(80 + data.len()).unwrap().to_ne_bytes());
        message[4..8].copy_from_slice(&opcode.to_ne_bytes());
        message[8..16].copy_from_slice(&self.unique.to_ne_bytes());
        message[48..56].copy_from_slice(&offset.to_ne_bytes());
        message[56..60].copy_from_slice(&u32::try_from(bytes).unwrap().to_ne_bytes());
        message.extend_from_slice(data);
        self.device.write_all(&message).unwrap();
        self.unique
    }

    /// Returns the error and the bytes of the answer with this number. Skips other answers before
    /// it.
    fn answer(&mut self, unique: u64) -> (i32, Vec<u8>) {
        loop {
            if let Some(answer) = self.answers.remove(&unique) {
                let error = i32::from_ne_bytes(*answer[4..].first_chunk().unwrap());
                return (error, answer[fuse::HEAD_BYTES..].to_vec());
            }
            let mut answer = vec![0; fuse::REQUEST_BYTES_MAX];
            let count = self.device.read(&mut answer).unwrap();
            assert!(count >= fuse::HEAD_BYTES, "the service has ended");
            answer.truncate(count);
            let of = u64::from_ne_bytes(*answer[8..].first_chunk().unwrap());
            assert_eq!(u32::from_ne_bytes(*answer.first_chunk().unwrap()) as usize, count);
            self.answers.insert(of, answer);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> u64 {
        self.ask(16, offset, data.len(), data)
    }

    fn read(&mut self, offset: u64, bytes: usize) -> u64 {
        self.ask(15, offset, bytes, &[])
    }

    fn requests(&self, volume: usize) -> Vec<(u16, u64, u32)> {
        self.kept[volume].lock().unwrap().1.clone()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.service.take().unwrap().join().unwrap();
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|number| (number % 251) as u8).collect()
}

fn errno(error: Errno) -> i32 {
    -error.raw_os_error()
}

#[test]
fn written_data_is_spread_over_the_volumes_and_read_back() {
    let mut kernel = Kernel::new(&[WELL; 3]);
    let data = pattern(40_960);
    let written = kernel.write(2_048, &data);
    assert_eq!(kernel.answer(written), (0, [&40_960_u32.to_ne_bytes()[..], &[0; 4]].concat()));
    let read = kernel.read(2_048, data.len());
    assert_eq!(kernel.answer(read), (0, data.clone()));
    // The first two chunks' worth: the rest of chunk 0, and chunk 1 on the next volume.
    assert_eq!(kernel.kept[0].lock().unwrap().0[2_048..4_096], data[..2_048]);
    assert_eq!(kernel.kept[1].lock().unwrap().0[..4_096], data[2_048..6_144]);
    assert_eq!(kernel.requests(0)[0], (command::WRITE, 2_048, 2_048));
}

#[test]
fn many_requests_are_under_way_and_answered_in_any_order() {
    let mut kernel = Kernel::new(&[Manner { swaps: true, ..WELL }, WELL]);
    let block = |number: u64| vec![u8::try_from(number).unwrap(); 512];
    // Each volume gets an even number of requests, since the first one answers only pairs of them.
    let numbers = || 0..64_u64;
    let asked: Vec<u64> = numbers().map(|n| kernel.write(n * 2_048, &block(n))).collect();
    for unique in asked {
        assert_eq!(kernel.answer(unique).0, 0);
    }
    let asked: Vec<u64> = numbers().map(|n| kernel.read(n * 2_048, 512)).collect();
    let asked: Vec<(u64, u64)> = numbers().zip(asked).collect();
    for (number, unique) in asked.into_iter().rev() {
        assert_eq!(kernel.answer(unique), (0, block(number)));
    }
}

#[test]
fn a_flush_goes_to_every_volume() {
    let mut kernel = Kernel::new(&[WELL; 3]);
    let flushed = kernel.ask(20, 0, 0, &[]);
    assert_eq!(kernel.answer(flushed), (0, Vec::new()));
    for volume in 0..3 {
        assert_eq!(kernel.requests(volume), [(command::FLUSH, 0, 0)]);
    }
}

#[test]
fn the_end_of_the_file_is_where_its_volumes_end() {
    let mut kernel = Kernel::new(&[WELL; 2]);
    let beyond = kernel.read(2 * VOLUME_BYTES - 512, 4_096);
    assert_eq!(kernel.answer(beyond), (0, vec![0; 512]));
    let beyond = kernel.read(2 * VOLUME_BYTES, 512);
    assert_eq!(kernel.answer(beyond), (0, Vec::new()));
    let beyond = kernel.write(2 * VOLUME_BYTES - 512, &[7; 1_024]);
    assert_eq!(kernel.answer(beyond).0, errno(Errno::NOSPC));
    let attributes = kernel.ask(3, 0, 0, &[]);
    let (_, body) = kernel.answer(attributes);
    assert_eq!(u64::from_ne_bytes(*body[24..].first_chunk().unwrap()), 2 * VOLUME_BYTES);
    let list = kernel.ask(28, 0, 0, &[]);
    assert_eq!(kernel.answer(list).0, errno(Errno::NOSYS));
}

#[test]
fn request_fails_with_one_of_its_volumes_and_others_continue() {
    let mut kernel = Kernel::new(&[WELL, Manner { bad_offset: Some(0), ..WELL }]);
    let both = kernel.read(0, 2 * CHUNK_BYTES as usize);
    assert_eq!(kernel.answer(both).0, errno(Errno::IO));
    let good = kernel.read(0, CHUNK_BYTES as usize);
    assert_eq!(kernel.answer(good), (0, vec![0; CHUNK_BYTES as usize]));
}

/// No request waits forever for a server that has ended, neither one under way nor a later one.
#[test]
fn a_volume_that_is_gone_is_an_error_and_no_hang() {
    let gone = Manner { gone_after: 1, ..WELL };
    let mut kernel = Kernel::new(&[WELL, gone]);
    let at = u64::from(CHUNK_BYTES);
    let first = kernel.read(at, 512);
    assert_eq!(kernel.answer(first).0, 0);
    let asked: Vec<u64> = (0..8).map(|_| kernel.read(at, 512)).collect();
    for unique in asked {
        assert_eq!(kernel.answer(unique).0, errno(Errno::IO));
    }
    let flush = kernel.ask(20, 0, 0, &[]);
    let other = kernel.read(0, 512);
    assert_eq!(kernel.answer(flush).0, errno(Errno::IO));
    assert_eq!(kernel.answer(other), (0, vec![0; 512]));
}

/// A receiver that expects no answers.
struct Nobody;

impl volume::Answers for Nobody {
    fn wants(&self, _: u64) -> Option<usize> {
        None
    }

    fn bytes(&mut self, _: u64, _: usize, _: &[u8]) {}

    fn done(&mut self, _: u64, _: bool) {}
}

#[test]
fn a_volume_that_owes_an_answer_for_a_minute_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _kept = volume(socket.clone(), Manner { swaps: true, ..WELL });
    let now = clock::now();
    let (mut volume, size_bytes) = Volume::open(&socket, "v", now).unwrap();
    assert_eq!(size_bytes, VOLUME_BYTES);
    let late = |seconds| now + std::time::Duration::from_secs(seconds);
    assert!(!volume.is_given_up(late(600)), "it owes nothing");
    // The first of a pair is not answered before the second.
    let request =
        |cookie| RequestHeader { flags: 0, command: command::FLUSH, cookie, offset: 0, length: 0 };
    assert!(volume.send(&request(0), &[], late(600)));
    assert!(!volume.is_given_up(late(659)) && volume.is_alive());
    assert!(volume.is_given_up(late(661)) && !volume.is_alive());
    assert!(!volume.is_given_up(late(662)), "that is told once");
    assert!(!volume.send(&request(1), &[], late(662)));
    volume.receive(&mut [0; 64], late(662), &mut Nobody);
}

#[test]
fn invalid_stripe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f");
    let socket = folder.path().join("s");
    let member = Member { socket: &socket, export: "v" };
    for (members, chunk, why) in [
        (&[][..], CHUNK_BYTES, "a stripe of 0 volumes"),
        (&[member; VOLUMES_MAX + 1][..], CHUNK_BYTES, "a stripe of 65 volumes"),
        (&[member][..], 0, "chunks of 0 bytes"),
        (&[member][..], CHUNK_BYTES + 512, "chunks of 4608 bytes"),
        (&[member][..], CHUNK_BYTES, "cannot open a volume over"),
    ] {
        let error = Stripe::mount(&file, members, chunk).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(!file.exists(), "nothing is made for what cannot be served");
}
