//! A log writer of a scenario, live: durable writes one at a time with pauses between them, on
//! a thread of its own beside fio.

use std::thread::JoinHandle;

use evenkeel_core::random::Random;

use super::Export;
use crate::durable;
use evenkeel_lab::LabError;
use evenkeel_lab::fio::Completion;
use evenkeel_os::clock;
use evenkeel_sim::scenario::setup::{Load, Setup, Target, Think};

/// A client that is a log writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// The client's number.
    pub client: usize,
    /// The number of its volume.
    pub volume: usize,
    block_bytes: u32,
    think: Think,
    length_ns: u64,
}

/// A log writer that runs.
pub(super) struct Writing(JoinHandle<Result<Written, LabError>>);

/// The results of a log writer.
pub(super) struct Written {
    /// Every write, by its own clock.
    pub ios: Vec<Completion>,
    /// Time at which it began, in milliseconds since 1970.
    began_ms: u64,
}

impl Writer {
    /// Returns the client of this number as a log writer; `None` if it is another load.
    pub fn of(number: usize, setup: &Setup) -> Option<Self> {
        let client = &setup.clients[number];
        let (Target::Volume(volume), Load::Closed { threads: 1, depth: 1, think }) =
            (client.target, &client.load)
        else {
            return None;
        };
        let is_log = client.shape.fua && client.shape.read_percent == 0 && client.start_ns == 0;
        is_log.then_some(Self {
            client: number,
            volume: volume as usize,
            block_bytes: client.shape.block_bytes,
            think: *think,
            length_ns: client.stop_ns.min(setup.duration_ns),
        })
    }

    /// Returns how long it writes.
    pub fn length_ns(&self) -> u64 {
        self.length_ns
    }

    /// Starts writing.
    pub fn start(&self, export: &Export, seed: u64) -> Writing {
        let writer = *self;
        let export = export.clone();
        Writing(std::thread::spawn(move || writer.run(&export, seed)))
    }

    fn run(self, export: &Export, seed: u64) -> Result<Written, LabError> {
        let mut random = Random::new(seed, 7);
        let mut written = Written { ios: Vec::new(), began_ms: clock::unix_us() / 1_000 };
        let began = clock::monotonic().ns;
        let bytes = self.block_bytes;
        durable::write_while(&export.socket, &export.name, bytes, &mut |latency_ns| {
            let time_ms = (clock::monotonic().ns - began) / 1_000_000;
            written.ios.push(Completion { time_ms, latency_ns, bytes: bytes.into() });
            let pause_ns = match self.think {
                Think::No => 0,
                Think::Constant(ns) => ns,
                Think::Exponential(mean_ns) => random.exponential(mean_ns),
            };
            if pause_ns > 0 {
                clock::sleep_until_ns(clock::monotonic().ns.saturating_add(pause_ns));
            }
            clock::monotonic().ns - began < self.length_ns()
        })?;
        Ok(written)
    }
}

impl Writing {
    /// Waits until it ends by itself.
    pub fn finish(self) -> Result<Written, LabError> {
        let panicked = || LabError::Unjudgeable("the log writer ended badly".to_owned());
        self.0.join().unwrap_or_else(|_| Err(panicked()))
    }
}

impl Written {
    /// Returns the writes with times since `started_ms`; earlier writes are left out.
    pub fn since(&self, started_ms: Option<u64>) -> impl Iterator<Item = Completion> + '_ {
        let early_ms = started_ms.map_or(0, |started_ms| started_ms.saturating_sub(self.began_ms));
        self.ios.iter().filter_map(move |io| {
            Some(Completion { time_ms: io.time_ms.checked_sub(early_ms)?, ..*io })
        })
    }
}
