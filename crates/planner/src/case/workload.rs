//! A recorded or declared workload, and what is known of its volume.

use crate::advice;
use crate::answer;
use crate::demand::{Assume, Demand};
use crate::described::Described;
use crate::format::{asked_words, plain};
use crate::layout::Layout;
use crate::read;
use crate::refusal::{Cause, Refusal};
use crate::regions::{self, DEFAULT_REGION};
use crate::trace::{Interval, Note, Trace};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeSpec;
use std::collections::BTreeSet;

/// Names that an error lists.
const NAMES_SHOWN: usize = 8;

/// The workload of one volume, and what else is known of the volume.
pub struct Workload {
    /// The workload.
    pub trace: Trace,
    /// Whether an Evenkeel server recorded it.
    pub is_served: bool,
    /// The properties of a volume of an Evenkeel server.
    pub spec: Option<VolumeSpec>,
    /// The volume, as a list describes it.
    pub described: Option<Described>,
    /// The volume that was recorded, as a layout in words.
    pub source: Option<String>,
    /// How requests lie within an interval; `None` for what suits the trace.
    pub assume: Option<Assume>,
    /// Whether all of the trace is from CloudWatch.
    pub is_from_cloudwatch: bool,
}

impl Workload {
    /// Adds the notes about the volume's description to the trace.
    #[must_use]
    pub fn with_described(mut self, described: Option<Described>, broken: Vec<String>) -> Self {
        self.trace.notes.extend(broken.into_iter().map(Note::Remark));
        if let Some(described) = &described {
            let layout = Layout::one(described.spec);
            let remark = format!("the volume is {layout}, by {}", described.file);
            self.trace.notes.insert(0, Note::Remark(remark));
        }
        Self { described, ..self }
    }

    /// Returns the region whose prices apply: that of the volume's zone, or the one that is named.
    ///
    /// # Errors
    /// If they differ.
    pub fn region(&self, named: Option<&str>) -> Result<String, Refusal> {
        let described = self.described.as_ref();
        let Some((of_zone, described)) =
            described.and_then(|described| Some((described.region.as_deref()?, described)))
        else {
            return Ok(named.unwrap_or(DEFAULT_REGION).to_owned());
        };
        let is_other = |named: &&str| *named != of_zone && *named != regions::endpoint(of_zone);
        match named.filter(is_other) {
            None => Ok(of_zone.to_owned()),
            Some(named) => {
                let message = format!(
                    "{} is in {of_zone} by {}, and --region says {}",
                    plain(&self.trace.name),
                    described.file,
                    plain(named)
                );
                Err(Refusal::new(message).cause(Cause::Question).hint("leave --region out"))
            }
        }
    }

    /// Returns whether the volume is one of AWS, as far as the files say.
    pub(super) fn is_at_aws(&self) -> bool {
        let has_id = self.trace.name.parse::<VolumeId>().is_ok();
        let is_ours = self.spec.is_some();
        has_id
            && !is_ours
            && match &self.described {
                Some(described) => described.region.is_some(),
                None => self.is_from_cloudwatch,
            }
    }
}

/// Returns whether a workload was declared, and not recorded.
pub(super) fn is_declared(trace: &Trace) -> bool {
    has_remark(trace, read::DECLARED)
}

fn has_remark(trace: &Trace, remark: &str) -> bool {
    trace.notes.iter().any(|note| matches!(note, Note::Remark(it) if it == remark))
}

/// Checks that a trace is not of the storage of a database instance of RDS, which list prices of
/// EBS, its limits and its commands do not apply to. `demand` is what was recorded, and layouts
/// carry `headroom_percent` more.
///
/// # Errors
/// If it is; the error has the load.
pub(super) fn check_of_volumes(
    trace: &Trace,
    demand: &Demand,
    headroom_percent: u32,
) -> Result<(), Refusal> {
    if !has_remark(trace, read::OF_RDS) {
        return Ok(());
    }
    let wanted = answer::asked(&advice::with_headroom(demand, headroom_percent));
    let name = plain(&trace.name);
    let message = format!(
        "{name}: {}, and with {headroom_percent} % more {} requests and {} MiB a second at most. \
         No price and no command is named: it is the storage of a database instance of RDS, which \
         RDS stripes over volumes of its own, with other prices, minimums and commands than \
         volumes of EBS",
        asked_words(&answer::asked(demand)),
        wanted.peak_iops,
        wanted.peak_bytes_per_second.div_ceil(MIB),
    );
    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let id = if trace.name.chars().all(is_id) { trace.name.as_str() } else { "NAME" };
    Err(Refusal::new(message).cause(Cause::Undecided).hint(format!(
        "`aws rds describe-valid-db-instance-modifications --db-instance-identifier {id}` lists \
         what it may have, and `aws rds modify-db-instance` with --allocated-storage, --iops and \
         --storage-throughput changes it; a price book in --prices plans it for volumes of your \
         own, and a declared workload with this load for volumes of EBS"
    )))
}

/// Merges the traces of one volume. `named` is the name of the volume, if the question has one.
///
/// # Errors
/// If there is none, if there are several volumes, or if the trace lacks requests, bytes or time.
pub fn one_trace(all: Vec<Trace>, named: Option<&str>) -> Result<Trace, Refusal> {
    let names: BTreeSet<&str> = all.iter().map(|trace| trace.name.as_str()).collect();
    if names.len() > 1 {
        let shown: Vec<String> = names.iter().copied().take(NAMES_SHOWN).map(plain).collect();
        let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
        let message = format!("there are {} traces: {}{more}", names.len(), shown.join(", "));
        return Err(Refusal::new(message).hint(name_one(&all)));
    }
    if all.is_empty() {
        let volume = named.map_or_else(String::new, |name| format!(" of {}", plain(name)));
        let message = format!("there is no trace{volume} in these files");
        return Err(Refusal::new(message).cause(Cause::NotFound));
    }
    let trace = read::merge(all).map_err(|broken| Refusal::new(broken.to_string()))?;
    let columns = [(trace.columns.requests, "requests"), (trace.columns.bytes, "bytes")];
    if let Some((_, what)) = columns.into_iter().find(|(kind, _)| kind.is_none()) {
        return Err(Refusal::new(format!("{}: the trace has no {what}", plain(&trace.name)))
            .hint("both are needed: record them too, or give the other file beside this one"));
    }
    if trace.intervals.is_empty() {
        return Err(Refusal::new(format!("{} has no interval with values", plain(&trace.name))));
    }
    Ok(trace)
}

/// Returns how to name one of several traces: as an example that with the most requests.
fn name_one(all: &[Trace]) -> String {
    let requests = |trace: &&Trace| -> u64 {
        let of_one = |interval: &Interval| interval.reads.saturating_add(interval.writes);
        trace.intervals.iter().map(of_one).fold(0, u64::saturating_add)
    };
    match all.iter().max_by_key(requests).filter(|busiest| requests(busiest) > 0) {
        Some(busiest) => {
            let name = plain(&busiest.name);
            format!("name one with --volume, as --volume {name}, which has the most requests")
        }
        None => "name one with --volume".to_owned(),
    }
}
