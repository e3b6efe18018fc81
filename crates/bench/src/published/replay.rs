//! `evenkeel-bench replay`: fio drives a live data plane while the calls and answers of its
//! scheduler are recorded. Their repetition in virtual time must give the same answers.

use evenkeel_core::convert::saturating;
use std::fmt::Write as _;

use super::{Bench, Outcome};
use crate::data_plane;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{CreditLimit, Limit, Pacing};
use evenkeel_core::qos::trace::Detail;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_engine::{EngineConfig, IoMode};
use evenkeel_lab::LabError;
use evenkeel_lab::fio::Job;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_lab::stalls::Server;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;
use evenkeel_sim::world::live::{self, Replay};

/// Room in the record for entries per second: four for each request, and some polls.
const ENTRIES_PER_SECOND: u64 = 200_000;

/// Longest load, in seconds. A longer one would only take more memory: about 16 MB for each second.
pub const SECONDS_MAX: u32 = 60;

/// Live, timers are late and machines pause, but no dispatch may come earlier than in the
/// simulator. A tick of the timer wheel is allowed, because the two clocks began at different
/// times.
const EARLIER_NS_MAX: u64 = 100_000;

/// Returns the volumes: one with a steady limit, one with a higher one, and one whose credits end.
fn volumes() -> [(&'static str, Pacing, u8); 3] {
    let limit = |per_second, credit| Some(Limit { per_second, credit });
    let credit = CreditLimit { refill_per_second: 300, capacity: 5_400 };
    let paced = |operations| Pacing { operations, ..Pacing::UNLIMITED };
    [
        ("1000-mixed", paced(limit(1_000, None)), 70),
        ("3000-reads", paced(limit(3_000, None)), 100),
        ("burst-writes", paced(limit(3_000, Some(credit))), 0),
    ]
}

/// Drives a data plane that uses this interface of the kernel, and plays its record back. The
/// caller refuses a load longer than [`SECONDS_MAX`].
///
/// # Errors
/// If the data plane does not start, fio cannot be run, or the trace makes no sense.
pub fn measure(mut bench: Bench<'_>, io: IoMode) -> Result<Outcome, LabError> {
    let socket = bench.folder.join("nbd.sock");
    let engine = data_plane::start(EngineConfig {
        // One scheduler, as the order between volumes is compared, too.
        cores: 1,
        unix: Some(socket.clone()),
        ..data_plane::in_memory(io)
    })?;
    // Two seconds more than the load: fio sets up before it begins, and takes time to end.
    let entries = ENTRIES_PER_SECOND.saturating_mul(u64::from(bench.seconds) + 2);
    let recorder = engine.recorder();
    recorder.begin(saturating::<_, usize>(entries), Detail::Calls);
    let mut jobs = Vec::new();
    for (number, (name, pacing, read_percent)) in (1_u32..).zip(volumes()) {
        let id = VolumeId::from_bits(number.into());
        data_plane::apply(&engine, id, ByteCount(GIB), pacing)?;
        let workload = Workload {
            read_percent,
            seed: number.into(),
            ..Workload::random_read(16 << 10, 32, bench.seconds)
        };
        let target = NbdUri::unix(&socket, &id.to_string()).into();
        jobs.push(Job { name: name.to_owned(), target, workload });
    }
    bench.totals(&jobs, Server::Here)?;
    let noted = recorder.end().pop();
    let trace = noted.ok_or_else(|| LabError::failed("the core recorded nothing"))?;
    engine.shutdown();
    bench.report(&format!("playing back {} entries", trace.entries().len()));
    let replay = live::replay(&trace).map_err(LabError::failed)?;
    let is_same = |volume: &live::VolumeReplay| {
        volume.same_order && volume.live_earlier_max_ns <= EARLIER_NS_MAX
    };
    let pass = replay.volumes.iter().all(is_same);
    let why = "the simulator did something else than the live data plane";
    Outcome::new(&replay, shown(&replay), pass, why)
}

fn shown(replay: &Replay) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "the same calls again: {} dispatches, each at the same nanosecond in the same order\n\
         the requests alone, in the simulator:",
        text::thousands(replay.same)
    );
    let _ = writeln!(
        out,
        "  {:<13} {:>10} {:>10} {:>19} {:>16} {:>18}",
        "volume",
        "dispatches",
        "same order",
        "seconds off by I/Os",
        "live later, max",
        "live earlier, max"
    );
    for ((name, ..), volume) in volumes().iter().zip(&replay.volumes) {
        let _ = writeln!(
            out,
            "  {name:<13} {:>10} {:>10} {:>19} {:>16} {:>18}",
            text::thousands(volume.dispatches),
            if volume.same_order { "yes" } else { "NO" },
            volume.off_max(),
            text::latency(volume.live_later_max_ns),
            text::latency(volume.live_earlier_max_ns)
        );
    }
    out
}
