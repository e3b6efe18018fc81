//! The calibration record: results, device, method and time of a measurement, as a file in the data
//! folder. docs/operating/capacity.md explains every field. Reading fails if the file is
//! malformed or was edited.

use super::identity::Identity;
use evenkeel_cli::calibrate::As;
use evenkeel_cli::store::StoreKind;
use evenkeel_client::output::{self, Failure, Item};
use evenkeel_core::convert::saturating;
use evenkeel_core::qos::admission::calibration::{
    CHANNELS_MAX, Calibration, Measurements, Unusable,
};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, LinearCost, PPM, SOLD_SHARE_PPM, Strain};
use evenkeel_core::time::Duration;
use evenkeel_engine::calibrate::Plan;
use evenkeel_os::files;
use evenkeel_sim::text::thousands;
use evenkeel_wire::agent::{Capacity, Measured};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The record's name in the data folder.
pub const FILE: &str = "calibration.json";

/// Name and version of the record's form.
const SCHEMA: &str = "evenkeel.calibration/1";

/// Maximum number of bytes that are read: a record has a few kilobytes.
const BYTES_MAX: u64 = 1 << 20;

/// The record. Times are nanoseconds, shares millionths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Name and version of the record's form.
    pub schema: String,
    /// `cal-` and 16 hexadecimal digits, computed from all other fields.
    pub id: String,
    /// When the measurement ended, in UTC.
    pub date: String,
    /// Version of the program.
    pub version: String,
    /// The value of `--store`.
    pub store: String,
    /// The device below the store.
    pub device: Identity,
    /// The method of the measurement in the healthy state.
    pub method: Method,
    /// The measurement in the healthy state.
    #[serde(flatten)]
    pub found: Found,
    /// The measurements in other states, each state at most once. Only a pool on several machines
    /// has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<InState>,
}

/// Results of a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Requests that must be in flight to keep the device busy.
    pub channels: u32,
    /// Channel time of reads.
    pub read: Cost,
    /// Channel time of writes.
    pub write: Cost,
    /// The largest deviation of the costs from the measurements, in millionths.
    pub cost_off_ppm: u32,
    /// Core time of reads.
    pub cpu_read: Cost,
    /// Core time of writes.
    pub cpu_write: Cost,
    /// Channel time that a lasting mixed load got in its worst second, in nanoseconds.
    pub floor_ns_per_second: u64,
    /// Latency that 99 of 100 mixed requests did not exceed; `None` if that is above a second.
    pub p99_target_ns: Option<u64>,
    /// Mixed requests of 16 KiB per second.
    pub mixed_iops: u64,
    /// Whether writes had found their lasting rate.
    pub writes_settled: bool,
    /// Latency of mixed requests by their depth.
    pub curve: Vec<Point>,
    /// Rate of reads by their depth.
    pub read_depths: Vec<Depth>,
}

/// A measurement of a pool in a state in which it delivers less.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InState {
    /// `degraded` or `recovering`.
    pub state: StateName,
    /// Description of the loss; unknown while the pool recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// When the measurement ended, in UTC.
    pub date: String,
    /// The method of the measurement.
    pub method: Method,
    /// Its results.
    #[serde(flatten)]
    pub found: Found,
}

/// The states of [`InState`], in the order of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateName {
    /// The largest failure domain is lost.
    Degraded,
    /// Lost copies are made again.
    Recovering,
}

/// The method of the measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Method {
    /// `full` or `quick`.
    pub plan: String,
    /// The value of `--io`.
    pub io: String,
    /// Measured time.
    pub time_ns: u64,
    /// Size of the volume that is measured.
    pub span_bytes: u64,
}

/// A time that is linear in the length of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Time of a request without bytes, in nanoseconds.
    pub base_ns: u64,
    /// Time of each byte, in picoseconds.
    pub byte_ps: u32,
}

/// A point of the curve: mixed requests of 16 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Number of requests at once.
    pub depth: u32,
    /// Requests per second.
    pub iops: u64,
    /// Median of the latency.
    pub p50_ns: u64,
    /// 99th percentile of the latency.
    pub p99_ns: u64,
}

/// Reads of 16 KiB at a depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Depth {
    /// Number of requests at once.
    pub depth: u32,
    /// Requests per second.
    pub iops: u64,
}

impl From<LinearCost> for Cost {
    fn from(cost: LinearCost) -> Self {
        Self { base_ns: cost.base.ns, byte_ps: cost.byte_ps }
    }
}

impl From<Cost> for LinearCost {
    fn from(cost: Cost) -> Self {
        Self { base: Duration::from_ns(cost.base_ns), byte_ps: cost.byte_ps }
    }
}

impl Item for Point {
    const SCHEMA: &'static str = SCHEMA;
    const FIELD: &'static str = "curve";
    const COLUMNS: &'static [&'static str] = &["DEPTH", "IOPS", "P50_US", "P99_US"];

    fn cells(&self) -> Vec<String> {
        let us = |ns: u64| (ns.saturating_add(500) / 1_000).to_string();
        vec![self.depth.to_string(), self.iops.to_string(), us(self.p50_ns), us(self.p99_ns)]
    }
}

impl Record {
    /// Creates the record of a measurement, with its device and method. `unix_s` is the time.
    ///
    /// # Errors
    /// If too little was measured.
    pub fn new(
        measured: &Measurements,
        store: &StoreKind,
        device: Identity,
        method: Method,
        unix_s: u64,
    ) -> Result<Self, Unusable> {
        let mut record = Self {
            schema: SCHEMA.to_owned(),
            id: String::new(),
            date: timestamp(unix_s),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: store.to_string(),
            device,
            method,
            found: Found::of(measured)?,
            states: Vec::new(),
        };
        record.id = record.right_id();
        Ok(record)
    }

    /// Adds a measurement in another state; it replaces an earlier one in the same state.
    pub fn add(&mut self, state: InState) {
        self.states.retain(|it| it.state != state.state);
        self.states.push(state);
        self.states.sort_by_key(|it| it.state);
        self.id = self.right_id();
    }

    /// Keeps the measurements in other states of an earlier record of the same store and device.
    pub fn keep_states(&mut self, earlier: &Self) {
        if earlier.misfit_of(&self.store, &self.device).is_none()
            && self.changes(&earlier.device).is_empty()
        {
            earlier.states.iter().for_each(|state| self.add(state.clone()));
        }
    }

    /// Returns the time of the newest measurement in it, in ISO 8601, so that later ones are
    /// greater.
    pub fn newest(&self) -> &str {
        let states = self.states.iter().map(|state| state.date.as_str());
        states.chain([self.date.as_str()]).max().unwrap_or_default()
    }

    /// Returns the figures for the scheduler and the ledger.
    pub fn calibration(&self) -> Calibration {
        self.found.calibration()
    }

    /// Returns the device's floors in other states, for the ledger.
    pub fn strained(&self) -> Vec<(Strain, DeviceFloor)> {
        let floor = |state: &InState| {
            let strain = match state.state {
                StateName::Degraded => Strain::Degraded,
                StateName::Recovering => Strain::Recovering,
            };
            (strain, state.found.calibration().device_floor())
        };
        self.states.iter().map(floor).collect()
    }

    /// Returns the device for a ledger with one row, which sells [`SOLD_SHARE_PPM`] of it: the
    /// healthy device, or less, so that no more is sold than another state leaves.
    pub fn sold_floor(&self) -> DeviceFloor {
        let whole = self.calibration().device_floor();
        let time_ns = |operations: u64| {
            let ns = u128::from(operations).saturating_mul(self.calibration().mixed_ns());
            let whole = ns.saturating_mul(PPM.into()) / u128::from(SOLD_SHARE_PPM);
            saturating::<_, u64>(whole)
        };
        let least = Strain::for_sale(&self.strained()).map_or(u64::MAX, time_ns);
        DeviceFloor { time_ns_per_second: whole.time_ns_per_second.min(least), ..whole }
    }

    /// Returns the part of the device that may be sold, with this many cores.
    pub fn capacity(&self, cores: u16) -> Capacity {
        let calibration = self.calibration();
        Capacity::Measured(Box::new(Measured {
            calibration: self.id.clone(),
            date: self.date.clone(),
            device: calibration.device_floor(),
            domain: calibration.domain_floor(cores),
            nodes: Vec::new(),
            strained: self.strained(),
            left_ppm: PPM,
        }))
    }

    /// Returns a description of the capacity that may be sold, with this many cores.
    pub fn words(&self, cores: u16) -> String {
        let calibration = Calibration {
            floor_ns_per_second: self.sold_floor().time_ns_per_second,
            ..self.calibration()
        };
        let sold = calibration.sells_up_to(cores, SOLD_SHARE_PPM);
        format!("{}; sells up to {}", self.found.words(), thousands(sold.into()))
    }

    /// Returns remarks on the result.
    pub fn reservations(&self) -> Vec<String> {
        let mut texts = self.found.reservations(&self.method);
        for state in &self.states {
            let of_state = state.found.reservations(&state.method);
            texts.extend(of_state.into_iter().map(|text| format!("{}: {text}", state.state)));
        }
        if self.device.layout.is_some() {
            let missing = [StateName::Degraded, StateName::Recovering]
                .into_iter()
                .filter(|name| self.states.iter().all(|state| state.state != *name));
            texts.extend(missing.map(|name| {
                format!(
                    "not measured {}: volumes may get less than was sold then; see \
                     `evenkeel calibrate --as {name}`",
                    name.when()
                )
            }));
        }
        texts
    }

    /// Returns the changes below a pool since it was measured; empty for a device.
    pub fn changes(&self, now: &Identity) -> Vec<String> {
        match (&self.device.layout, &now.layout) {
            (Some(before), Some(now)) => before.changes(now),
            _ => Vec::new(),
        }
    }

    /// Returns the reason for which the record is not of this store on this device; `None` if it
    /// is.
    pub fn misfit(&self, store: &StoreKind, device: &Identity) -> Option<String> {
        self.misfit_of(&store.to_string(), device)
    }

    fn misfit_of(&self, store: &str, device: &Identity) -> Option<String> {
        if self.store != store {
            return Some(format!("it is of the store \"{}\", this is \"{store}\"", self.store));
        }
        (!self.device.is_same(device)).then(|| {
            format!("it was made on {}, this is {}", self.device.describe(), device.describe())
        })
    }

    /// Reads the record of a data folder; `None` if there is none.
    ///
    /// # Errors
    /// If the record cannot be read, or was changed.
    pub fn load(path: &Path) -> Result<Option<Self>, Failure> {
        let failed = |why: String| {
            Failure::new(format!("{}: {why}", path.display()))
                .hint("remove it, and the next start calibrates anew; or run `evenkeel calibrate`")
        };
        let mut text = String::new();
        match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text)),
        }
        .map_err(|error| failed(error.to_string()))?;
        Self::parse(&text).map(Some).map_err(failed)
    }

    /// Parses a record.
    ///
    /// # Errors
    /// With a description of the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let unreadable = |error| format!("not a calibration record: {error}");
        let value: serde_json::Value = serde_json::from_str(text).map_err(unreadable)?;
        match value.get("schema").and_then(serde_json::Value::as_str) {
            Some(SCHEMA) => {}
            Some(other) => return Err(format!("a record of the form {other}; {SCHEMA} is read")),
            None => return Err("not a calibration record: it has no schema".to_owned()),
        }
        let record: Self = serde_json::from_value(value).map_err(unreadable)?;
        if record.id != record.right_id() {
            return Err(format!("changed since it was written: {} is not its id", record.id));
        }
        let all = record.states.iter().map(|state| &state.found).chain([&record.found]);
        if let Some(odd) = all.map(|it| it.channels).find(|it| !(1..=CHANNELS_MAX).contains(it)) {
            return Err(format!("{odd} channels; 1 to {CHANNELS_MAX} can be"));
        }
        Ok(record)
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = output::json(&serde_json::to_value(self).unwrap_or_default());
        files::write_whole(path, text.as_bytes())
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }

    /// Returns the FNV-1a hash of all fields but the id: records with equal content have equal ids,
    /// and an edited record is detected.
    fn right_id(&self) -> String {
        let bare = Self { id: String::new(), ..self.clone() };
        let text = serde_json::to_string(&bare).unwrap_or_default();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("cal-{hash:016x}")
    }
}

impl Found {
    /// Calculates the results of the measurements.
    ///
    /// # Errors
    /// If too little was measured.
    pub fn of(measured: &Measurements) -> Result<Self, Unusable> {
        let found = Calibration::of(measured)?;
        Ok(Self {
            channels: found.channels,
            read: found.costs.read.into(),
            write: found.costs.write.into(),
            cost_off_ppm: found.off_ppm,
            cpu_read: found.cpu_costs.read.into(),
            cpu_write: found.cpu_costs.write.into(),
            floor_ns_per_second: found.floor_ns_per_second,
            p99_target_ns: found.p99_target.map(|target| target.ns),
            mixed_iops: found.mixed_per_second(),
            writes_settled: measured.has_settled(),
            curve: measured
                .curve
                .iter()
                .map(|point| Point {
                    depth: point.depth,
                    iops: point.per_second,
                    p50_ns: point.p50.ns,
                    p99_ns: point.p99.ns,
                })
                .collect(),
            read_depths: measured
                .depths
                .iter()
                .map(|rate| Depth { depth: rate.depth, iops: rate.per_second() })
                .collect(),
        })
    }

    fn calibration(&self) -> Calibration {
        Calibration {
            channels: self.channels,
            costs: Costs { read: self.read.into(), write: self.write.into() },
            off_ppm: self.cost_off_ppm,
            floor_ns_per_second: self.floor_ns_per_second,
            cpu_costs: Costs { read: self.cpu_read.into(), write: self.cpu_write.into() },
            p99_target: self.p99_target_ns.map(Duration::from_ns),
        }
    }

    /// Returns a description of the result.
    pub fn words(&self) -> String {
        let target = match self.p99_target_ns {
            Some(ns) => format!("at p99 <= {} ms", ns / 1_000_000),
            None => "at a p99 above 1 s".to_owned(),
        };
        format!("{} mixed 16 KiB IOPS {target}", thousands(self.mixed_iops))
    }

    /// Remarks on a measurement by this method.
    fn reservations(&self, method: &Method) -> Vec<String> {
        let mut texts = Vec::new();
        if method.plan == QUICK {
            texts.push(
                "measured in seconds: a write cache that takes longer to fill is not seen; \
                 `evenkeel calibrate` without --quick takes a minute"
                    .to_owned(),
            );
        }
        if !self.writes_settled {
            texts.push("writes had not found their lasting rate when the time was over".to_owned());
        }
        if self.cost_off_ppm > 250_000 {
            texts.push(
                "no straight line fits the costs: some lengths are off by more than 25 %"
                    .to_owned(),
            );
        }
        texts
    }
}

impl StateName {
    /// Returns the name of a state in which a pool was measured; `None` for the base.
    pub const fn of(state: As) -> Option<Self> {
        match state {
            As::Healthy => None,
            As::Degraded => Some(Self::Degraded),
            As::Recovering => Some(Self::Recovering),
        }
    }

    /// When a pool is in it, in words.
    pub const fn when(self) -> &'static str {
        match self {
            Self::Degraded => "without its largest failure domain",
            Self::Recovering => "while it recovers",
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Degraded => "degraded",
            Self::Recovering => "recovering",
        })
    }
}

/// A time of a record.
pub fn timestamp(unix_s: u64) -> String {
    evenkeel_wire::aws::timestamp::extended(unix_s.saturating_mul(1_000))
}

/// The values of [`Method::plan`].
const QUICK: &str = "quick";
const FULL: &str = "full";

impl Method {
    /// The method of a plan.
    pub fn of(plan: &Plan, io: &str) -> Self {
        Self {
            plan: if *plan == Plan::QUICK { QUICK } else { FULL }.to_owned(),
            io: io.to_owned(),
            time_ns: plan.time.ns,
            span_bytes: plan.span.0,
        }
    }
}
