//! Tests of pending requests against an oracle that identifies requests by their place in the order
//! of arrival: the bytes that the data plane must be sent, and the reply that the client must get
//! to each.

use super::*;
use evenkeel_wire::nbd::constants::chunk;
use proptest::collection::vec;
use proptest::prelude::*;

/// A request of the client, by which everything about it is determined.
#[derive(Clone, Copy, Debug)]
struct Asked {
    command: u16,
    length: u32,
    /// Of several ways to answer it.
    way: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Asked),
    /// The next bytes of the requests, at most this number, are sent to the data plane.
    Send(usize),
    /// The data plane produces the next chunk of one of the replies that it owes.
    Say(usize),
    /// At most this number of the produced bytes arrive.
    Arrive(usize),
    Lose,
    /// The client receives at most this number of bytes.
    Fetch(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let commands =
        [command::READ, command::WRITE, command::FLUSH, command::TRIM, command::BLOCK_STATUS, 0x77];
    let asked = (0..commands.len(), 1..3_000_u32, any::<u8>())
        .prop_map(move |(at, length, way)| Step::Ask(Asked { command: commands[at], length, way }));
    prop_oneof![
        3 => asked,
        3 => (1..4_000_usize).prop_map(Step::Send),
        4 => any::<usize>().prop_map(Step::Say),
        4 => (1..4_000_usize).prop_map(Step::Arrive),
        1 => Just(Step::Lose),
        2 => (1..9_000_usize).prop_map(Step::Fetch),
    ]
}

/// Returns the client's cookie of its request number `index`; some requests share one.
fn cookie_of(index: usize) -> u64 {
    ((index - usize::from(index % 5 == 4)) as u64 * 2 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn bytes(index: usize, length: u32) -> Vec<u8> {
    (0..length).map(|number| (index as u32 * 7 + number * 3) as u8).collect()
}

impl Asked {
    fn header(&self, index: usize) -> RequestHeader {
        let offset = index as u64 * 4_096;
        let length = if self.command == command::FLUSH { 0 } else { self.length };
        let flags = u16::from(self.way) & 1;
        RequestHeader { flags, command: self.command, cookie: cookie_of(index), offset, length }
    }

    fn payload(&self, index: usize) -> Vec<u8> {
        if self.command == command::WRITE { bytes(index, self.length) } else { Vec::new() }
    }

    /// Returns the chunks of the reply under this cookie.
    fn reply(&self, index: usize, cookie: u64, structured: bool) -> Vec<Vec<u8>> {
        let RequestHeader { offset, length, .. } = self.header(index);
        let simple = |error| reply::simple(cookie, error).to_vec();
        if !structured {
            let error = (self.way % 4 == 3).then_some(ErrorCode::Io);
            let mut all = simple(error);
            if self.command == command::READ && error.is_none() {
                all.extend(bytes(index, length));
            }
            return vec![all];
        }
        if self.way % 5 == 4 {
            let mut all = reply::chunk(cookie, true, chunk::ERROR, 6 + 9).to_vec();
            all.extend(5_u32.to_be_bytes());
            all.extend(9_u16.to_be_bytes());
            all.extend(b"it failed");
            return vec![all];
        }
        let data = |last, from: u32, to: u32| {
            let at = offset + u64::from(from);
            let mut all = reply::offset_data(cookie, last, at, to - from).to_vec();
            all.extend_from_slice(&bytes(index, length)[from as usize..to as usize]);
            all
        };
        let hole = |last, from: u32, to: u32| {
            reply::offset_hole(cookie, last, offset + u64::from(from), to - from).to_vec()
        };
        let half = length / 2;
        match (self.command, self.way % 4) {
            (command::READ, 1) if half > 0 => {
                vec![data(false, half, length), hole(false, 0, half), reply::none(cookie).to_vec()]
            }
            (command::READ, 2) if half > 0 => {
                vec![hole(false, 0, half), data(true, half, length)]
            }
            (command::READ, _) => vec![data(true, 0, length)],
            (command::BLOCK_STATUS, _) => {
                let extents = u32::from(self.way % 3) + 1;
                let mut all = reply::block_status(cookie, true, 1, extents).to_vec();
                (0..extents).for_each(|flags| all.extend(reply::extent(length, flags)));
                vec![all]
            }
            (_, 1) => vec![reply::none(cookie).to_vec()],
            _ => vec![simple(None)],
        }
    }
}

/// The state of the oracle.
struct World {
    structured: bool,
    pending: PendingRequests,
    asked: Vec<Asked>,
    /// Of each request, whether its whole reply has arrived.
    answered: Vec<bool>,
    /// Bytes that must still be sent over this connection.
    expected: Vec<u8>,
    /// Bytes that it has sent since the last whole request.
    sent: Vec<u8>,
    /// Chunks that the data plane has not produced, by request.
    owed: Vec<(usize, Vec<Vec<u8>>)>,
    /// Bytes that the data plane has produced over this connection, and the ends of replies in
    /// them.
    said: Vec<u8>,
    ends: Vec<(usize, usize)>,
    arrived: usize,
    /// Bytes that the client has received.
    got: Vec<u8>,
}

impl World {
    fn new(structured: bool) -> Self {
        Self {
            structured,
            pending: PendingRequests::new(structured),
            asked: Vec::new(),
            answered: Vec::new(),
            expected: Vec::new(),
            sent: Vec::new(),
            owed: Vec::new(),
            said: Vec::new(),
            ends: Vec::new(),
            arrived: 0,
            got: Vec::new(),
        }
    }

    /// Returns a request as the data plane must get it: its cookie is its place.
    fn wire(&self, index: usize) -> Vec<u8> {
        let asked = &self.asked[index];
        let header = RequestHeader { cookie: index as u64, ..asked.header(index) };
        [&header.encode()[..], &asked.payload(index)].concat()
    }

    fn ask(&mut self, asked: Asked) {
        let index = self.asked.len();
        self.asked.push(asked);
        self.answered.push(false);
        self.pending.add(&asked.header(index), asked.payload(index));
        let wire = self.wire(index);
        self.expected.extend(wire);
    }

    fn send(&mut self, most: usize) {
        let mut slices = [IoSlice::new(&[]); 5];
        let count = self.pending.to_send(&mut slices);
        let offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        assert!(self.expected.starts_with(&offered), "in order of arrival, and nothing else");
        assert_eq!(offered.is_empty(), self.expected.is_empty(), "nothing is left unsent");
        let taken = most.min(offered.len());
        self.pending.sent(taken);
        self.expected.drain(..taken);
        self.sent.extend_from_slice(&offered[..taken]);
        // A data plane may refuse a write as soon as it has its head.
        while let Some(head) = self.sent.first_chunk::<REQUEST_BYTES>() {
            let header = RequestHeader::decode(head).unwrap();
            let index = header.cookie as usize;
            let is_known = self.owed.iter().any(|(of, _)| *of == index);
            if !is_known && !self.said_all(index) {
                let reply = self.asked[index].reply(index, header.cookie, self.structured);
                self.owed.push((index, reply));
            }
            let whole = self.wire(index).len();
            if self.sent.len() < whole {
                break;
            }
            self.sent.drain(..whole);
        }
    }

    fn said_all(&self, index: usize) -> bool {
        self.ends.iter().any(|(of, _)| *of == index)
    }

    fn say(&mut self, which: usize) {
        if self.owed.is_empty() {
            return;
        }
        let which = which % self.owed.len();
        let (index, chunks) = &mut self.owed[which];
        self.said.extend(chunks.remove(0));
        if chunks.is_empty() {
            self.ends.push((*index, self.said.len()));
            self.owed.remove(which);
        }
    }

    fn arrive(&mut self, most: usize) {
        let end = self.said.len().min(self.arrived.saturating_add(most));
        let taken = self.pending.receive(&self.said[self.arrived..end]);
        assert_eq!(taken, Ok(()));
        self.arrived = end;
        for (index, _) in self.ends.iter().filter(|(_, at)| *at <= end) {
            self.answered[*index] = true;
        }
        let unanswered = self.answered.iter().filter(|answered| !**answered).count();
        assert_eq!(self.pending.unanswered(), unanswered);
    }

    fn lose(&mut self) {
        self.pending.lost();
        self.sent.clear();
        self.said.clear();
        self.ends.clear();
        self.owed.clear();
        self.arrived = 0;
        let left = (0..self.asked.len()).filter(|index| !self.answered[*index]);
        self.expected = left.flat_map(|index| self.wire(index)).collect();
    }

    fn fetch(&mut self, most: usize) {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = self.pending.outbox.to_send(&mut slices);
        let offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        let taken = most.min(offered.len());
        self.got.extend_from_slice(&offered[..taken]);
        self.pending.outbox.sent(taken);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Ask(asked) => self.ask(asked),
            Step::Send(most) => self.send(most),
            Step::Say(which) => self.say(which),
            Step::Arrive(most) => self.arrive(most),
            Step::Lose => self.lose(),
            Step::Fetch(most) => self.fetch(most),
        }
    }

    /// Completes everything, then checks that the client has one whole reply to each request.
    fn finish(mut self) {
        while !self.expected.is_empty() {
            self.send(usize::MAX);
        }
        while !self.owed.is_empty() {
            self.say(0);
        }
        self.arrive(usize::MAX);
        while self.pending.outbox.bytes() > 0 {
            self.fetch(usize::MAX);
        }
        assert_eq!((self.pending.unanswered(), self.pending.held_bytes), (0, 0));
        assert_eq!(self.pending.outbox.charges(), 0);
        let mut left: Vec<usize> = (0..self.asked.len()).collect();
        let mut got = &self.got[..];
        while !got.is_empty() {
            // If two replies with one cookie fit, takes the longer one: no data begins as a reply
            // does.
            let fitting = left.iter().enumerate().filter_map(|(at, &index)| {
                let reply = self.asked[index].reply(index, cookie_of(index), self.structured);
                let whole = reply.concat();
                got.starts_with(&whole).then_some((whole.len(), at))
            });
            let (length, at) = fitting.max().expect("a reply that was asked for, whole, once");
            left.remove(at);
            got = &got[length..];
        }
        assert!(left.is_empty(), "without an answer: {left:?}");
    }
}

proptest! {
    #[test]
    fn every_request_is_answered_once_after_any_loss(
        structured in any::<bool>(),
        steps in vec(step(), 0..120),
    ) {
        let mut world = World::new(structured);
        steps.iter().for_each(|step| world.run(step));
        world.finish();
    }

    #[test]
    fn noise_from_a_data_plane_ends_and_leaves_every_request(
        structured in any::<bool>(),
        begins in any::<Option<bool>>(),
        noise in vec(any::<u8>(), 0..200),
    ) {
        let mut pending = PendingRequests::new(structured);
        let asked = Asked { command: command::READ, length: 512, way: 0 };
        pending.add(&asked.header(0), Vec::new());
        pending.sent(REQUEST_BYTES);
        let head = begins.map(|simple| if simple {
reply::simple(0, None).to_vec()
} else {
reply::chunk(0, false, chunk::OFFSET_DATA, 100).to_vec()
});
        let input = [head.unwrap_or_default(), noise].concat();
        let _ = pending.receive(&input);
        pending.lost();
        prop_assert!(pending.unanswered() == 1 || !structured && pending.outbox.bytes() > 0);
    }
}

#[test]
#[should_panic(expected = "charges of the requests")]
fn invariants_notice_a_charge_that_is_not_counted() {
    let mut pending = sent_read();
    pending.held_bytes += 1;
    pending.lost();
}

#[test]
#[should_panic(expected = "a reply to request 0, which is not sent")]
fn invariants_notice_a_reply_to_a_request_that_is_not_sent() {
    let mut pending = sent_read();
    pending.requests.get_mut(&0).unwrap().reply.push(0);
    (pending.unsent, pending.sent_bytes) = (0, 0);
    pending.invariants();
}

fn sent_read() -> PendingRequests {
    let mut pending = PendingRequests::new(true);
    let asked = Asked { command: command::READ, length: 1_024, way: 0 };
    pending.add(&asked.header(1), Vec::new());
    pending.sent(REQUEST_BYTES);
    pending
}

/// Offset of the request in [`sent_read`].
const AT: u64 = 4_096;

#[test]
fn replies_that_do_not_fit_are_faults() {
    let cases: [(Vec<u8>, Fault); 9] = [
        (reply::simple(0, None).to_vec(), Fault::Unfit(0)),
        (reply::simple(1, None).to_vec(), Fault::Unknown(1)),
        (reply::none(0).to_vec(), Fault::Unfit(0)),
        (reply::offset_data(0, true, AT, 512).to_vec(), Fault::Unfit(0)),
        (reply::offset_data(0, false, AT - 1, 512).to_vec(), Fault::Unfit(0)),
        (reply::offset_hole(0, false, AT + 1, 1_024).to_vec(), Fault::Unfit(0)),
        (reply::offset_data(7, true, AT, 1_024).to_vec(), Fault::Unknown(7)),
        (reply::block_status(0, true, 1, 1).iter().copied().chain([1; 8]).collect(), {
            Fault::Unfit(0)
        }),
        (reply::error(0, ErrorCode::ShuttingDown).to_vec(), Fault::ShuttingDown),
    ];
    for (bytes, fault) in cases {
        let mut pending = sent_read();
        assert_eq!(pending.receive(&bytes), Err(fault));
        pending.lost();
        assert_eq!((pending.unanswered(), pending.outbox.bytes()), (1, 0));
    }
    let mut pending = sent_read();
    assert!(matches!(pending.receive(&[0; 16]), Err(Fault::Violation(_))));
    // A request that was not sent gets no reply.
    let mut pending = sent_read();
    pending.lost();
    assert_eq!(pending.receive(&reply::error(0, ErrorCode::Io)), Err(Fault::Unknown(0)));
}

#[test]
fn room_is_bounded_in_requests_and_bytes_and_one_always_fits() {
    let mut pending = PendingRequests::new(true);
    let header = |command, length| Asked { command, length, way: 0 }.header(1);
    let largest = header(command::READ, REQUEST_BYTES_MAX);
    assert!(pending.has_room(&largest));
    pending.add(&header(command::FLUSH, 0), Vec::new());
    assert!(!pending.has_room(&largest));
    for _ in 1..CONNECTION_REQUESTS_MAX {
        assert!(pending.has_room(&header(command::FLUSH, 0)));
        pending.add(&header(command::FLUSH, 0), Vec::new());
    }
    assert!(!pending.has_room(&header(command::FLUSH, 0)));
    // Replies that the client does not fetch still count.
    let mut pending = PendingRequests::new(true);
    pending.add(&largest, Vec::new());
    pending.sent(REQUEST_BYTES);
    let data = vec![0; REQUEST_BYTES_MAX as usize];
    let head = reply::offset_data(0, true, AT, REQUEST_BYTES_MAX);
    pending.receive(&[&head[..], &data].concat()).unwrap();
    assert!(pending.unanswered() == 0 && !pending.has_room(&header(command::FLUSH, 0)));
    assert_eq!(pending.outbox.sent(pending.outbox.bytes()), charge(&largest));
    assert!(pending.has_room(&largest));
}
