//! Admission: the capacity that may be sold, the capacity that is sold, and whether one more volume
//! fits.
//!
//! A volume has its reservation from its creation to its deletion, attached or not, as on EBS. So
//! CreateVolume and ModifyVolume sell. AttachVolume sells nothing new, and an instance's limits are
//! ceilings that several volumes share, never a reason to refuse one. Every change of a volume
//! passes through this module. A change that reserves no more than before is never refused.
//!
//! The sold amounts are updated with every event ([`Model::keep_books`]), so the cost of a decision
//! does not depend on the number of volumes. Books for other terms than the kept ones are computed
//! from all volumes; both give the same result. Sold amounts are never reduced: if less may be sold
//! than is sold, that is only reported.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::admission::{
    DeviceFloor, DomainFloor, Figure, Ledger, Oversell, PPM, Refused, Reserved, Resource,
    SOLD_SHARE_PPM, STRAINED_SHARE_PPM, Shortage, Strain,
};
use evenkeel_core::volume::{IopsRule, ThroughputRule, VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_wire::agent::{Capacity, Measured};

use super::{Event, Model, Phase, Refusal, Settings, Volume};

/// The source of the amount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// A calibration measured it.
    Calibration,
    /// The operator has set it.
    Operator,
}

/// The part of the system that must carry the sold volumes. One server has only the first row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Row {
    /// The capacity that is present.
    Present,
    /// The other nodes of the cluster, should the largest one be lost.
    WithoutNode,
    /// Any one node, which serves all of a volume's requests. No amounts are summed in this row.
    OneNode,
    /// The device in a state in which it delivers less. Machines are not counted in this row.
    Strained(Strain),
}

impl Row {
    /// Returns the row's name in words that follow a resource; `None` for [`Row::Present`].
    #[must_use]
    pub const fn words(self) -> Option<&'static str> {
        match self {
            Self::Present => None,
            Self::WithoutNode => Some("without its largest node"),
            Self::OneNode => Some("of its largest node alone"),
            Self::Strained(Strain::Degraded) => Some("without its largest failure domain"),
            Self::Strained(Strain::Recovering) => Some("while the pool recovers"),
        }
    }

    /// Returns the part of the measured capacity that may be sold, in millionths.
    const fn sold_share_ppm(self) -> u32 {
        match self {
            Self::Present | Self::WithoutNode | Self::OneNode => SOLD_SHARE_PPM,
            Self::Strained(_) => STRAINED_SHARE_PPM,
        }
    }
}

/// Amounts of one resource. Device time is expressed in I/Os of 16 KiB per second, half of them
/// writes; networks in bytes per second; CPU time in nanoseconds per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The source of the amount.
    pub source: Source,
    /// The part of the system that must carry it.
    pub row: Row,
    /// The resource.
    pub resource: Resource,
    /// The reserved amount, rounded up.
    pub sold: u64,
    /// The amount that may be sold, rounded down.
    pub for_sale: u64,
}

impl Line {
    /// Returns the amount by which more is sold than may be.
    #[must_use]
    pub const fn short_by(&self) -> u64 {
        self.sold.saturating_sub(self.for_sale)
    }
}

/// A shortage of capacity for a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortfall {
    /// The volume as requested.
    pub asked: VolumeSpec,
    /// Its reservation.
    pub reserves: Reserved,
    /// How many times over its type is sold.
    pub oversell: Oversell,
    /// The source of the amount.
    pub source: Source,
    /// The part of the system that cannot carry it.
    pub row: Row,
    /// The short resource; amounts as in [`Line`].
    pub resource: Resource,
    /// The amount that the volume needs of it, rounded up.
    pub needed: u64,
    /// The amount left for it (including the amount that it has already), rounded down.
    pub left: u64,
    /// The largest volume of the type that would fit: fewer IOPS, less throughput, or smaller;
    /// `None` if none does.
    pub fits: Option<VolumeSpec>,
}

/// The reservations of all volumes, or of those of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TypeSold {
    /// The number of volumes.
    pub volumes: u64,
    /// I/Os per second.
    pub operations_per_second: u64,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

/// One ledger and its source.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Book {
    source: Source,
    row: Row,
    ledger: Ledger,
}

/// All sold amounts under one set of terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Books {
    /// The limiting ledgers; empty while nothing was measured or configured.
    books: Vec<Book>,
    types: BTreeMap<VolumeType, SumOfType>,
}

/// The reservations of all volumes of a type, as a sum that does not overflow. Types without
/// volumes are omitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SumOfType {
    volumes: u64,
    operations_per_second: u64,
    bytes_per_second: u128,
}

/// Books that are updated with every event, and their terms.
#[derive(Clone, Debug)]
pub(super) struct KeptBooks {
    settings: Settings,
    capacity: Capacity,
    books: Books,
}

impl Settings {
    /// Returns how many times over a type is sold.
    #[must_use]
    pub fn oversell(&self, volume_type: VolumeType) -> Oversell {
        self.oversell.get(&volume_type).copied().unwrap_or(Oversell::NONE)
    }

    /// Returns the reservation of `volume`, and how many times over it is sold. During a
    /// modification it covers the volume before and after.
    pub(super) fn reserved(&self, volume: &Volume) -> (Reserved, Oversell) {
        let reserved = |spec: &VolumeSpec| self.rules.reserved(spec);
        let now = reserved(&volume.spec);
        let oversell = self.oversell(volume.spec.volume_type);
        let before = volume.modification.as_ref().filter(|_| volume.is_being_modified());
        let Some(before) = before.map(|modification| &modification.original) else {
            return (now, oversell);
        };
        (now.either(reserved(before)), oversell.min(self.oversell(before.volume_type)))
    }
}

impl Model {
    /// Returns the sold amounts of the existing volumes. If the terms are those of the last
    /// [`Self::keep_books`], the cost does not depend on the number of volumes; otherwise all of
    /// them are added up.
    #[must_use]
    pub fn books(&self, settings: &Settings, capacity: &Capacity) -> Cow<'_, Books> {
        match &self.books {
            Some(kept) if kept.is_for(settings, capacity) => Cow::Borrowed(&kept.books),
            _ => Cow::Owned(self.added_up(settings, capacity)),
        }
    }

    /// Returns the sum of the reservations of all volumes, which no capacity changes. If the books
    /// are kept under these settings, the cost does not depend on the number of volumes.
    pub(super) fn reserved_by_all(&self, settings: &Settings) -> TypeSold {
        match &self.books {
            Some(kept) if kept.is_under(settings) => kept.books.total(),
            _ => self.added_up(settings, &Capacity::Unknown).total(),
        }
    }

    /// Returns whether the kept books have these terms.
    #[must_use]
    pub fn keeps_books(&self, settings: &Settings, capacity: &Capacity) -> bool {
        self.books.as_ref().is_some_and(|kept| kept.is_for(settings, capacity))
    }

    /// Keeps the books for these terms from now on. Adds up all volumes unless their rules and
    /// costs are those of the kept books; a change of capacity alone costs nothing.
    pub fn keep_books(&mut self, settings: &Settings, capacity: &Capacity) {
        let kept = self.books.take().filter(|kept| kept.is_under(settings));
        let followed = kept.and_then(|kept| kept.books.following(capacity));
        let books = followed.unwrap_or_else(|| self.added_up(settings, capacity));
        let settings = settings.clone();
        let capacity = capacity.clone();
        self.books = Some(KeptBooks { settings, capacity, books });
    }

    /// Computes the books from all volumes.
    pub(super) fn added_up(&self, settings: &Settings, capacity: &Capacity) -> Books {
        let mut books = Books::empty(settings.figure, capacity);
        for volume in self.volumes.values() {
            books.replace(settings, None, Some(volume));
        }
        books
    }

    /// Checks whether the volume in `events` may be sold.
    ///
    /// # Errors
    /// [`Refusal::Capacity`].
    pub(super) fn admit(
        &self,
        settings: &Settings,
        capacity: &Capacity,
        events: &[Event],
    ) -> Result<(), Refusal> {
        for event in events {
            let Event::Volume(after) = event else { continue };
            let before = self.volumes.get(&after.id);
            // Most changes concern something else, and the books have many lines.
            let reserves_more = before.is_none_or(|before| {
                before.spec != after.spec || (!before.is_shown() && after.phase == Phase::Ready)
            });
            if !reserves_more {
                continue;
            }
            let books = self.books(settings, capacity);
            books
                .admit(settings, before, after)
                .map_err(|short| Refusal::Capacity(short.into()))?;
        }
        Ok(())
    }
}

impl KeptBooks {
    /// Returns whether the books have these terms.
    fn is_for(&self, settings: &Settings, capacity: &Capacity) -> bool {
        self.is_under(settings) && self.capacity == *capacity
    }

    fn is_under(&self, settings: &Settings) -> bool {
        let Settings { rules, figure, oversell, .. } = &self.settings;
        std::ptr::eq(*rules, settings.rules)
            && (figure, oversell) == (&settings.figure, &settings.oversell)
    }

    /// Updates the books for a volume that was `before` and is `after`; `None` means no volume.
    pub fn replace(&mut self, before: Option<&Volume>, after: Option<&Volume>) {
        self.books.replace(&self.settings, before, after);
    }

    /// Asserts that the books equal a full recomputation.
    ///
    /// # Panics
    /// If they differ.
    pub fn invariants(&self, model: &Model) {
        let added_up = model.added_up(&self.settings, &self.capacity);
        assert!(self.books == added_up, "kept: {:?}, added up: {added_up:?}", self.books);
    }
}

impl Books {
    /// Creates books with nothing sold. The operator's figure is a ledger beside the measured one:
    /// a volume must fit into both.
    fn empty(figure: Option<Figure>, capacity: &Capacity) -> Self {
        let measured = match capacity {
            Capacity::Unknown => Vec::new(),
            Capacity::Measured(measured) => rows(measured),
        };
        let measured = measured.into_iter().map(|(row, device, domain)| {
            let ledger = Ledger::new(device, domain, row.sold_share_ppm());
            Book { source: Source::Calibration, row, ledger }
        });
        Self { books: measured.chain(figure.map(Book::figure)).collect(), types: BTreeMap::new() }
    }

    /// Adapts the books to another capacity. Returns `None` if the rows of the measured capacity
    /// differ.
    fn following(mut self, capacity: &Capacity) -> Option<Self> {
        let rows = match capacity {
            Capacity::Unknown => Vec::new(),
            Capacity::Measured(measured) => rows(measured),
        };
        let kept = self.books.iter_mut().filter(|book| book.source == Source::Calibration);
        let mut kept: Vec<&mut Book> = kept.collect();
        if !kept.iter().map(|book| book.row).eq(rows.iter().map(|(row, ..)| *row)) {
            return None;
        }
        for (book, (_, device, domain)) in kept.iter_mut().zip(rows) {
            book.ledger.set_floors(device, domain);
        }
        Some(self)
    }

    /// Returns the sum of the reservations of a type's volumes.
    #[must_use]
    pub fn of_type(&self, volume_type: VolumeType) -> TypeSold {
        let sum = self.types.get(&volume_type).copied().unwrap_or_default();
        TypeSold {
            volumes: sum.volumes,
            operations_per_second: sum.operations_per_second,
            bytes_per_second: saturating(sum.bytes_per_second),
        }
    }

    /// Returns the sum of the reservations of all volumes.
    fn total(&self) -> TypeSold {
        let volumes = self.types.values().map(|sum| sum.volumes).sum();
        let operations_per_second = self.types.values().map(|sum| sum.operations_per_second).sum();
        let bytes: u128 = self.types.values().map(|sum| sum.bytes_per_second).sum();
        TypeSold { volumes, operations_per_second, bytes_per_second: saturating(bytes) }
    }

    /// Returns whether anything limits what is sold.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !self.books.is_empty()
    }

    /// Updates the books for a volume that was `before` and is `after`; `None` means no volume.
    fn replace(&mut self, settings: &Settings, before: Option<&Volume>, after: Option<&Volume>) {
        // A volume in the recycle bin is not served, so it reserves nothing.
        let before = before.filter(|volume| volume.is_shown());
        let after = after.filter(|volume| volume.is_shown());
        if let Some(before) = before {
            let (reserved, _) = settings.reserved(before);
            let volume_type = before.spec.volume_type;
            let sum = self.types.entry(volume_type).or_default();
            sum.volumes -= 1;
            sum.operations_per_second -= u64::from(reserved.operations_per_second);
            sum.bytes_per_second -= u128::from(reserved.bytes_per_second);
            if sum.volumes == 0 {
                self.types.remove(&volume_type);
            }
        }
        if let Some(after) = after {
            let (reserved, oversell) = settings.reserved(after);
            let sum = self.types.entry(after.spec.volume_type).or_default();
            sum.volumes += 1;
            sum.operations_per_second += u64::from(reserved.operations_per_second);
            sum.bytes_per_second += u128::from(reserved.bytes_per_second);
            for book in self.books.iter_mut().filter(|book| book.row != Row::OneNode) {
                // Only a ledger's own bounds can refuse it: the model holds no more volumes.
                let _ = book.ledger.enter(after.id, reserved.reservation(oversell));
            }
        } else if let Some(before) = before {
            for book in &mut self.books {
                book.ledger.remove(before.id);
            }
        }
    }

    /// Returns all limited resources: first the measured ones, then the operator's figure.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let lines = self
            .books
            .iter()
            .flat_map(|book| Resource::ALL.into_iter().filter_map(|resource| book.line(resource)));
        lines.collect()
    }

    fn admit(
        &self,
        settings: &Settings,
        before: Option<&Volume>,
        after: &Volume,
    ) -> Result<(), Shortfall> {
        let reserves = settings.rules.reserved(&after.spec);
        let oversell = settings.oversell(after.spec.volume_type);
        let Some((book, shortage)) = self.shortage(after, reserves, oversell) else {
            return Ok(());
        };
        let resource = shortage.resource;
        Err(Shortfall {
            asked: after.spec,
            reserves,
            oversell,
            source: book.source,
            row: book.row,
            resource,
            needed: book.shown_up(resource, shortage.needed),
            left: book.shown(resource, shortage.available.into()),
            fits: self.largest(settings, before, after),
        })
    }

    /// Returns the first resource that is short if `volume` has this reservation.
    fn shortage(
        &self,
        volume: &Volume,
        reserved: Reserved,
        oversell: Oversell,
    ) -> Option<(&Book, Shortage)> {
        self.books.iter().find_map(|book| {
            match book.ledger.consult(volume.id, &reserved.reservation(oversell)) {
                Err(Refused::Short(shortage)) => Some((book, shortage)),
                _ => None,
            }
        })
    }

    /// Returns the largest volume like `asked` that fits, as a proposal for the client. An existing
    /// volume does not become smaller.
    fn largest(
        &self,
        settings: &Settings,
        before: Option<&Volume>,
        asked: &Volume,
    ) -> Option<VolumeSpec> {
        let rules = settings.rules.of(asked.spec.volume_type)?;
        let request = asked.spec.request();
        let oversell = settings.oversell(asked.spec.volume_type);
        let fitting = |request: VolumeRequest| {
            let spec = settings.rules.resolve(&request).ok()?;
            let short = self.shortage(asked, settings.rules.reserved(&spec), oversell);
            short.is_none().then_some(spec)
        };
        let IopsRule::Provisioned { min, .. } = rules.iops else {
            let least = before.map_or(rules.size_gib_min, |volume| volume.spec.size_gib);
            return largest(least, request.size_gib, |size_gib| {
                fitting(VolumeRequest { size_gib, ..request })
            });
        };
        // This throughput needs at least this many IOPS.
        let needed = match (rules.throughput, request.throughput_mibps) {
            (ThroughputRule::Provisioned { mibps_per_iops: ratio, .. }, Some(mibps)) => {
                let iops = (u64::from(mibps) * ratio.denominator).div_ceil(ratio.numerator);
                saturating(iops)
            }
            _ => 0,
        };
        let fewer = largest(min.max(needed), request.iops.unwrap_or(min), |iops| {
            fitting(VolumeRequest { iops: Some(iops), ..request })
        });
        let (ThroughputRule::Provisioned { min_mibps, .. }, Some(mibps)) =
            (rules.throughput, request.throughput_mibps)
        else {
            return fewer;
        };
        fewer.or_else(|| {
            largest(min_mibps, mibps, |mibps| {
                let iops = Some(min);
                let throughput_mibps = Some(mibps);
                fitting(VolumeRequest { iops, throughput_mibps, ..request })
            })
        })
    }
}

/// Returns the result for the largest number from `least` to `most` that has one. If a number has a
/// result, all lower ones have one.
fn largest<T>(least: u32, most: u32, gives: impl Fn(u32) -> Option<T>) -> Option<T> {
    let mut found = gives(least)?;
    let mut low = least;
    let mut high = most;
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match gives(middle) {
            Some(better) => (found, low) = (better, middle),
            None => high = middle - 1,
        }
    }
    Some(found)
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod kept_tests;

/// Returns the measured capacity, row by row. Every row has the device's capacity; those of nodes
/// also have the capacity of the machines.
fn rows(measured: &Measured) -> Vec<(Row, DeviceFloor, DomainFloor)> {
    let device = measured.device_now();
    let mut rows = vec![(Row::Present, device, measured.domain)];
    if let Some(others) = without_largest(&measured.domain, &measured.nodes) {
        rows.push((Row::WithoutNode, device, others));
        rows.push((Row::OneNode, device, largest_of(&measured.domain, &measured.nodes)));
    }
    // The present loss of the device is not subtracted: the strained state may be its cause.
    rows.extend(
        measured
            .strained
            .iter()
            .map(|(strain, device)| (Row::Strained(*strain), *device, DomainFloor::UNLIMITED)),
    );
    rows
}

/// Returns the sum of all nodes but the largest, for each resource by itself; `None` for one node.
fn without_largest(all: &DomainFloor, nodes: &[DomainFloor]) -> Option<DomainFloor> {
    (nodes.len() > 1).then(|| {
        let largest = largest_of(all, nodes);
        let left = |all: Option<u64>, one: Option<u64>| Some(all?.saturating_sub(one?));
        DomainFloor {
            network_in_bytes_per_second: left(
                all.network_in_bytes_per_second,
                largest.network_in_bytes_per_second,
            ),
            network_out_bytes_per_second: left(
                all.network_out_bytes_per_second,
                largest.network_out_bytes_per_second,
            ),
            cpu_ns_per_second: left(all.cpu_ns_per_second, largest.cpu_ns_per_second),
            cpu_costs: all.cpu_costs,
        }
    })
}

/// Returns the largest amount of each resource on a node. A resource that is not known of all nodes
/// has no limit.
fn largest_of(all: &DomainFloor, nodes: &[DomainFloor]) -> DomainFloor {
    let largest = |of: fn(&DomainFloor) -> Option<u64>| {
        of(all).and_then(|_| nodes.iter().filter_map(of).max())
    };
    DomainFloor {
        network_in_bytes_per_second: largest(|it| it.network_in_bytes_per_second),
        network_out_bytes_per_second: largest(|it| it.network_out_bytes_per_second),
        cpu_ns_per_second: largest(|it| it.cpu_ns_per_second),
        cpu_costs: all.cpu_costs,
    }
}

impl Book {
    fn figure(figure: Figure) -> Self {
        let ledger = Ledger::new(figure.floor(), DomainFloor::UNLIMITED, PPM);
        Self { source: Source::Operator, row: Row::Present, ledger }
    }

    /// Returns a resource in this row; `None` if it has no limit or another row has it.
    fn line(&self, resource: Resource) -> Option<Line> {
        let is_shown = match self.row {
            Row::Present => true,
            Row::WithoutNode => resource != Resource::DeviceTime,
            Row::OneNode => false,
            Row::Strained(_) => resource == Resource::DeviceTime,
        };
        if !is_shown {
            return None;
        }
        let usage = self.ledger.usage(resource);
        Some(Line {
            source: self.source,
            row: self.row,
            resource,
            sold: self.shown_up(resource, usage.sold),
            for_sale: self.shown(resource, usage.sellable?.into()),
        })
    }

    /// Returns an amount in the unit of its [`Line`], rounded down.
    fn shown(&self, resource: Resource, amount: u128) -> u64 {
        match resource {
            Resource::DeviceTime => self.ledger.device().reference_operations(amount),
            _ => saturating(amount),
        }
    }

    /// Returns an amount in the unit of its [`Line`], rounded up.
    fn shown_up(&self, resource: Resource, amount: u128) -> u64 {
        match resource {
            Resource::DeviceTime => self.ledger.device().reference_operations_up(amount),
            _ => saturating(amount),
        }
    }
}
