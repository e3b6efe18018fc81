//! The record of a live data plane, judged event by event.
//!
//! A data plane can record each request that its scheduler accepts and each dispatch, to the
//! nanosecond ([`Trace`]). These times are exact: they do not include the delays between the
//! scheduler and a client's clock. [`judge`] converts the record of one volume to [`Event`]s for
//! the [`Checkers`]. The promise comes from the caller, and the charge of a request from the
//! counting rule, never from the record.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Dispatch, Io, VolumeIndex};
use evenkeel_core::qos::trace::{Call, Trace};
use evenkeel_core::request::Operation;

use super::{
    Cause, Checkers, Completed, Counter, Direction, Dispatched, Event, Margins, Piece, Report,
    Rule, Submitted, System, VolumePromise,
};

/// The rules that apply to one volume with its own limits.
const RULES: [Rule; 6] = [
    Rule::Ceiling,
    Rule::FirstSecond,
    Rule::SteadySecond,
    Rule::Floor,
    Rule::Credits,
    Rule::Modify,
];

/// Margin of the floor of a second on a live server: half a percent, and one I/O.
const FLOOR_PPM: u32 = 5_000;

/// Maximum time until a modification acts on a live server, whose timers are late at times. Longer
/// delays that the machine explains are in the stalls.
const MODIFY_NS: u64 = 100_000_000;

/// Minimum length of an idle span that is kept.
const IDLE_NS_MIN: u64 = 100_000;

/// A volume and its provisioned limits.
#[derive(Clone, Debug)]
pub struct Provisioned {
    /// The volume.
    pub id: VolumeId,
    /// Its limits at first, and after each modification.
    pub pacings: Vec<Pacing>,
    /// Its credits at the start of the record. The record has later changes of them.
    pub balances: Balances,
}

/// A span of the record's clock, in nanoseconds: its start and its end.
pub type Span = (u64, u64);

/// The verdict on the record of one volume.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Findings of the rules.
    pub report: Report,
    /// Number of counted I/Os that were dispatched.
    pub operations: u64,
    /// Times of the volume's first request and its last event, in nanoseconds of the record's
    /// clock.
    pub span: Span,
    /// Spans of at least a tenth of a millisecond in which no request waited, so that no limit
    /// delayed one: all requests were at the store or with the client.
    pub idle: Vec<Span>,
}

/// The reason why the record of a volume cannot be judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotJudged {
    /// The volume is in no trace, or has no request in one.
    Absent,
    /// This number of entries had no room in a trace.
    LeftOut(u64),
    /// The record has a call that changes a volume in a way that is not judged; has the call's
    /// name.
    Call(&'static str),
    /// The record has more modifications than the caller knows of.
    Modified,
}

impl fmt::Display for NotJudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => write!(f, "the record holds no request of the volume"),
            Self::LeftOut(entries) => write!(f, "the record had no room for {entries} entries"),
            Self::Call(name) => write!(f, "the record holds a call that is not judged: {name}"),
            Self::Modified => write!(f, "the volume was modified by another client"),
        }
    }
}

impl std::error::Error for NotJudged {}

/// Judges the dispatches of one volume. `stalls` are spans in which the server did not run, in the
/// order of time. They excuse a missed floor, and no exceeded ceiling.
///
/// # Errors
/// Returns an error if the record does not allow a verdict.
pub fn judge(traces: &[Trace], volume: &Provisioned, stalls: &[Span]) -> Result<Judged, NotJudged> {
    let left_out: u64 = traces.iter().map(Trace::left_out).sum();
    if left_out > 0 {
        return Err(NotJudged::LeftOut(left_out));
    }
    let first = volume.pacings.first().ok_or(NotJudged::Absent)?;
    let margins = Margins { floor_ppm: FLOOR_PPM, modify_ns: MODIFY_NS, ..Margins::default() };
    let system = System { margins, ..System::default() };
    let mut reader = Reader {
        checkers: Checkers::only(system, &RULES),
        pacings: volume.pacings[1..].iter(),
        first: VolumePromise::from_pacing(first, volume.balances),
        counter: Counter::new(first.counting),
        open: BTreeMap::new(),
        stalls,
        operations: 0,
        span: None,
        idle_since: None,
        idle: Vec::new(),
    };
    for trace in traces {
        reader.read(trace, volume.id)?;
    }
    let span = reader.span.ok_or(NotJudged::Absent)?;
    let Reader { checkers, operations, idle, .. } = reader;
    Ok(Judged { report: checkers.finish(), operations, span, idle })
}

/// A request that was submitted and is not completely dispatched.
#[derive(Clone, Copy, Debug)]
struct Open {
    direction: Direction,
    length: u32,
    started: bool,
}

struct Reader<'a> {
    checkers: Checkers,
    /// The promise at the start of the record.
    first: VolumePromise,
    pacings: std::slice::Iter<'a, Pacing>,
    counter: Counter,
    open: BTreeMap<u32, Open>,
    /// The stalls that are not reported yet.
    stalls: &'a [Span],
    operations: u64,
    span: Option<Span>,
    /// Time since which no request waits; `None` while one does.
    idle_since: Option<u64>,
    idle: Vec<Span>,
}

impl Reader<'_> {
    fn read(&mut self, trace: &Trace, id: VolumeId) -> Result<(), NotJudged> {
        let mut name: Option<VolumeIndex> = None;
        for entry in trace.entries() {
            let at = entry.at.ns;
            match &entry.call {
                Call::Name(index, of) if *of == id => {
                    name = Some(*index);
                    let promise = Box::new(self.first);
                    self.observe(&Event::Added { at, volume: 0, promise });
                }
                Call::Submit(index, io) if Some(*index) == name => self.submitted(at, io),
                Call::Dispatch(dispatch) if Some(dispatch.volume) == name => {
                    self.dispatched(at, dispatch);
                }
                Call::SetLimits(index, _) if Some(*index) == name => self.modified(at)?,
                Call::SetBalances(index, balances) if Some(*index) == name => {
                    let units = [balances.operations, balances.bytes];
                    self.observe(&Event::Credited { at, volume: 0, units });
                }
                // The requests of a client that disconnects no longer wait, from its end on.
                Call::Other("cancel_queued" | "lease" | "remove") => {}
                // The limits of a host and of a shared device delay volumes, too.
                Call::Other(call) if name.is_some() => return Err(NotJudged::Call(call)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reports an event, and before it the stalls that began before it.
    fn observe(&mut self, event: &Event) {
        while let [(from, to), rest @ ..] = self.stalls {
            if *from > event.at() {
                break;
            }
            let from = *from;
            let to = *to;
            let cause = Cause::Ours;
            self.checkers.observe(&Event::Stalled { from, to, cause });
            self.stalls = rest;
        }
        self.checkers.observe(event);
        if let Some((_, end)) = &mut self.span {
            *end = event.at();
        }
    }

    fn submitted(&mut self, at: u64, io: &Io) {
        self.span.get_or_insert((at, at));
        if let Some(since) = self.idle_since.take()
            && at.saturating_sub(since) >= IDLE_NS_MIN
        {
            self.idle.push((since, at));
        }
        let direction = direction(io.operation);
        self.open.insert(io.handle, Open { direction, length: io.length, started: false });
        self.observe(&Event::Submitted(Submitted {
            at,
            volume: 0,
            instance: 0,
            handle: io.handle.into(),
            direction,
            offset: io.offset,
            length: io.length,
        }));
    }

    fn dispatched(&mut self, at: u64, dispatch: &Dispatch) {
        // A request from before the record has only a dispatch.
        let Some(open) = self.open.get_mut(&dispatch.handle) else { return };
        let Open { direction, length: whole_length, started } = *open;
        open.started = true;
        let Dispatch { handle, offset, length, last, .. } = *dispatch;
        if last {
            self.open.remove(&handle);
            self.idle_since = self.open.is_empty().then_some(at);
        }
        let (operations, bytes, guard) = match direction {
            Direction::None => {
                self.counter.interrupt();
                (0, 0, 1)
            }
            Direction::Read | Direction::Write => {
                let first = !started;
                let piece = Piece { direction, offset, length, whole_length, first, last };
                let (operations, bytes) = self.counter.count(&piece);
                (operations, bytes, 0)
            }
        };
        self.operations += u64::from(operations);
        self.observe(&Event::Dispatched(Dispatched {
            at,
            volume: 0,
            instance: 0,
            handle: handle.into(),
            direction,
            length,
            operations,
            bytes,
            guard,
            device_cost_ns: 0,
            tier: None,
            urgent: dispatch.urgent,
            last,
        }));
        // The record has dispatches. The time of the store's completion does not matter for these
        // rules.
        let completed =
            Completed { at, volume: 0, handle: handle.into(), length, device_cost_ns: 0, last };
        self.observe(&Event::Completed(completed));
    }

    fn modified(&mut self, at: u64) -> Result<(), NotJudged> {
        let pacing = self.pacings.next().ok_or(NotJudged::Modified)?;
        self.counter.set_rule(pacing.counting);
        let promise = Box::new(VolumePromise::from_pacing(pacing, Balances::default()));
        self.observe(&Event::Modified { at, volume: 0, promise });
        Ok(())
    }
}

const fn direction(operation: Operation) -> Direction {
    match operation {
        Operation::Read => Direction::Read,
        Operation::Write { .. } => Direction::Write,
        _ => Direction::None,
    }
}
