//! A client with several requests under way that checks its reads.

use crate::cluster::SIZE;
use crate::support::{Answer, Nbd};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const BLOCK: u32 = 4_096;
/// Requests that a client has under way.
const DEPTH: usize = 8;
const BLOCKS: u64 = SIZE / BLOCK as u64;

/// Returns the content of a block after `writes` writes to it.
fn content(block: u64, writes: u64) -> Vec<u8> {
    if writes == 0 {
        return vec![0; BLOCK as usize];
    }
    let stamp = (block << 32 | writes).to_be_bytes();
    stamp.repeat(BLOCK as usize / stamp.len())
}

/// A client of a part of the blocks: those whose number has this remainder.
pub struct Load {
    pub client: Nbd,
    blocks: Vec<u64>,
    writes: BTreeMap<u64, u64>,
    /// By cookie: the block, and the number of the write if it is one.
    under_way: BTreeMap<u64, (u64, Option<u64>)>,
    random: Random,
    has_extents: bool,
    depth: usize,
}

impl Load {
    pub fn new(client: Nbd, (part, parts): (u64, u64), has_extents: bool) -> Self {
        let blocks = (0..BLOCKS).filter(|block| block % parts == part).collect();
        let writes = BTreeMap::new();
        let under_way = BTreeMap::new();
        let random = Random::from_state(part);
        Self { client, blocks, writes, under_way, random, has_extents, depth: DEPTH }
    }

    /// Sets the number of requests under way.
    pub fn deep(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// Sends requests until `stop` is set. Counts each answer.
    pub fn run(&mut self, stop: &AtomicBool, answers: &AtomicU64) {
        while !stop.load(Ordering::SeqCst) {
            while self.under_way.len() < self.depth {
                self.ask();
            }
            self.hear();
            answers.fetch_add(1, Ordering::SeqCst);
        }
        while !self.under_way.is_empty() {
            self.hear();
        }
    }

    fn ask(&mut self) {
        let free = |block: &&u64| !self.under_way.values().any(|(busy, _)| busy == *block);
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let block = *self.blocks.iter().cycle().skip(at).find(free).unwrap();
        let offset = block * u64::from(BLOCK);
        let written = self.writes.get(&block).copied().unwrap_or(0);
        let choice = self.random.below(16);
        let (operation, length, payload, number) = match choice {
            0 => (Operation::Flush, 0, Vec::new(), None),
            1 if self.has_extents => (Operation::BlockStatus, BLOCK, Vec::new(), None),
            2..6 => (Operation::Read, BLOCK, Vec::new(), None),
            _ => {
                let fua = choice == 6;
                let payload = content(block, written + 1);
                (Operation::Write { fua }, BLOCK, payload, Some(written + 1))
            }
        };
        let offset = if length == 0 { 0 } else { offset };
        let cookie = self.client.send(operation, offset, length, &payload);
        self.under_way.insert(cookie, (block, number));
    }

    fn hear(&mut self) {
        let (cookie, answer) = self.client.receive().expect("the connection lives");
        let (block, number) = self.under_way.remove(&cookie).expect("asked for, and once");
        let written = self.writes.get(&block).copied().unwrap_or(0);
        match (answer, number) {
            (Answer::Done(_), Some(number)) => drop(self.writes.insert(block, number)),
            (Answer::Done(data), None) if data.is_empty() => {}
            (Answer::Done(data), None) => {
                assert!(data == content(block, written), "block {block} after {written} writes");
            }
            (Answer::Extents(extents), None) => assert_eq!(extents[0].0, BLOCK),
            (answer, _) => panic!("block {block}: {answer:?}"),
        }
    }

    /// Reads all blocks and checks their content.
    pub fn check(&mut self) {
        for block in self.blocks.clone() {
            let written = self.writes.get(&block).copied().unwrap_or(0);
            let read = self.client.ask(Operation::Read, block * u64::from(BLOCK), BLOCK, &[]);
            assert!(read == Answer::Done(content(block, written)), "block {block}, {written}");
        }
    }
}

/// Runs these clients during `happens`, which gets the number of answers of each, and checks the
/// data that they have written.
pub fn under_load(loads: Vec<Load>, happens: impl FnOnce(&[AtomicU64])) {
    let stop = AtomicBool::new(false);
    let answers: Vec<AtomicU64> = loads.iter().map(|_| AtomicU64::new(0)).collect();
    /// Stops the clients if `happens` panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        for (mut load, answers) in loads.into_iter().zip(&answers) {
            let stop = &stop;
            scope.spawn(move || {
                load.run(stop, answers);
                load.check();
            });
        }
        let _stop = Stop(&stop);
        happens(&answers);
    });
}

/// Waits until each client has `count` more answers. Up to `DEPTH` of them may have been sent to it
/// before this call, so at least one was sent after it.
pub fn more(answers: &[AtomicU64], count: u64) {
    assert!(count > DEPTH as u64);
    let now = |answers: &AtomicU64| answers.load(Ordering::SeqCst);
    let before: Vec<u64> = answers.iter().map(now).collect();
    let has_more = || answers.iter().zip(&before).all(|(it, before)| now(it) >= before + count);
    crate::cluster::until("answers", has_more);
}
