//! Price books of an operator's own hardware, in TOML: the monthly cost of devices, their nodes and
//! energy, and the part of it that a volume pays.
//!
//! ```toml
//! currency = "EUR"
//! kwh = 0.32                # a kilowatt hour
//! pue = 1.4                 # what the building takes for each watt of the hardware
//!
//! [node]
//! number = 2
//! price = 6500
//! years = 5
//! watts = 180
//! monthly = 120.50          # rack, network, staff
//!
//! [[device]]
//! name = "nvme"
//! number = 8                # in all nodes together
//! price = 900
//! years = 5
//! watts = 12
//! capacity_gib = 7152
//! sells_iops = 80000        # of 16 KiB, or
//! sells_throughput = 2500   # MiB/s
//! ```
//!
//! Money is in millionths of the currency, in whole numbers throughout. A month has 30 days, as in
//! price lists, and a year 365.

pub(crate) mod table;
#[cfg(test)]
mod tests;

use evenkeel_core::convert::saturating;
use std::fmt;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    DeviceFloor, DomainFloor, Figure, Ledger, Oversell, PPM, Resource, SOLD_SHARE_PPM,
};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};
use evenkeel_sim::text::line_of;
use toml::de::DeTable;

use crate::layout::Layout;
use table::{MICROS, Table};

/// Maximum size of a book, in bytes.
pub const BOOK_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of kinds of devices in a book.
const KINDS_MAX: usize = 100;
const MONEY_MAX: u64 = 1_000_000_000;
const WATTS_MAX: u64 = 100_000;
const NUMBER_MAX: u64 = 1_000_000;
const GIB_MAX: u64 = 1 << 32;
const DAYS_OF_MONTH: u128 = 30;
const DAYS_OF_YEAR: u128 = 365;
const HOURS_OF_MONTH: u128 = 24 * DAYS_OF_MONTH;
const GIB: u128 = 1 << 30;

/// An error in a book.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BookError {
    /// The line, from 1 on; `None` if the error is of the book as a whole.
    pub line: Option<usize>,
    /// The value found, and the expected one.
    pub message: String,
}

impl fmt::Display for BookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for BookError {}

/// The contents of a price book.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriceBook {
    currency: String,
    monthly: Monthly,
    kinds: Vec<DeviceKind>,
}

/// Monthly cost of all hardware of a book, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Monthly {
    /// The purchase, divided by the months of life.
    pub purchase: u64,
    /// Energy, including that of the building.
    pub energy: u64,
    /// Monthly payments: rack, network, staff.
    pub running: u64,
}

impl Monthly {
    /// Returns the sum of all items.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.purchase.saturating_add(self.energy).saturating_add(self.running)
    }
}

/// A kind of equal devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceKind {
    /// Its name.
    pub name: String,
    /// Number of devices.
    pub number: u32,
    /// Space of one device, in GiB.
    pub capacity_gib: u64,
    /// Capacity of one device.
    pub floor: DeviceFloor,
    /// The share of the capacity that is sold, in millionths.
    pub sold_share_ppm: u32,
    /// Monthly cost of all of them, with their part of the nodes, in millionths.
    pub monthly: u64,
    /// The types of volumes that they carry; if it is empty, all types that no other kind carries.
    types: Vec<VolumeType>,
}

/// The resource that determines the price of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargedBy {
    /// Its part of the space.
    Space,
    /// Its part of the device time that is sold.
    DeviceTime,
}

/// The monthly price of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge {
    /// The price in millionths.
    pub micros: u64,
    /// The resource that determines it.
    pub by: ChargedBy,
}

/// The error that no device of the book carries volumes of this type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotCarried {
    /// The type.
    pub volume_type: VolumeType,
}

impl fmt::Display for NotCarried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no device of the price book carries {} volumes: add the type to `types` of a \
             [[device]], or leave `types` out of one",
            self.volume_type
        )
    }
}

impl std::error::Error for NotCarried {}

/// Hardware and its cost: millionths of money and of watts.
struct Hardware {
    number: u64,
    price: u64,
    years: u64,
    watts: u64,
    monthly: u64,
}

/// The cost of energy, in millionths.
struct Energy {
    kwh: u64,
    pue: u64,
}

impl PriceBook {
    /// Reads a book. `calibrated` returns the capacity in a calibration record that the book names.
    ///
    /// # Errors
    /// Returns [`BookError`], which names the line, the key, the value and the expected one.
    pub fn read(
        text: &str,
        calibrated: &mut dyn FnMut(&str) -> Result<DeviceFloor, String>,
    ) -> Result<Self, BookError> {
        let document = DeTable::parse(text).map_err(|error| BookError {
            line: error.span().map(|span| line_of(text, span.start)),
            message: error.message().to_owned(),
        })?;
        let mut book = Table::new(text, "the price book", 1, document.get_ref());
        let currency = book.words("currency")?;
        let currency = currency.ok_or_else(|| book.missing("currency", "a name, such as EUR"))?;
        let kwh = book.amount("kwh", 0..=1_000)?;
        let kwh = kwh.ok_or_else(|| book.missing("kwh", "the price of a kilowatt hour"))?;
        let energy = Energy { kwh, pue: book.amount("pue", 1..=10)?.unwrap_or(MICROS) };
        let node = book.table("node", "[node]")?.map(node).transpose()?;
        let tables = book.tables("device", "[[device]]")?;
        if tables.is_empty() || tables.len() > KINDS_MAX {
            let message = format!("{} tables [[device]]: expected 1 to {KINDS_MAX}", tables.len());
            return Err(BookError { line: None, message });
        }
        book.done()?;
        let mut devices = Vec::new();
        for table in tables {
            devices.push(device(table, calibrated)?);
        }
        Self::of(currency.to_owned(), &energy, node.as_ref(), devices)
    }

    fn of(
        currency: String,
        energy: &Energy,
        node: Option<&Hardware>,
        devices: Vec<(usize, Hardware, DeviceKind)>,
    ) -> Result<Self, BookError> {
        let nodes = node.map(|node| node.monthly(energy)).unwrap_or_default();
        let number: u128 = devices.iter().map(|(_, it, _)| u128::from(it.number)).sum();
        let mut monthly = nodes;
        let mut before = 0;
        let mut kinds: Vec<DeviceKind> = Vec::new();
        for (line, hardware, mut kind) in devices {
            if let Some(other) = kinds.iter().find(|other| kind.clashes(other)) {
                let message = format!(
                    "the devices {:?} and {:?} carry the same types: give each its own `types`, \
                     all but one",
                    other.name, kind.name
                );
                return Err(BookError { line: Some(line), message });
            }
            let own = hardware.monthly(energy);
            // Its part of the nodes, rounded so that the parts of all kinds add up to the whole.
            let upto = |devices: u128| u128::from(nodes.total()) * devices / number;
            let after = before + u128::from(hardware.number);
            let of_nodes = saturating::<_, u64>(upto(after) - upto(before));
            before = after;
            kind.monthly = own.total().saturating_add(of_nodes);
            monthly.purchase = monthly.purchase.saturating_add(own.purchase);
            monthly.energy = monthly.energy.saturating_add(own.energy);
            kinds.push(kind);
        }
        Ok(Self { currency, monthly, kinds })
    }

    /// Returns the name of its currency.
    #[must_use]
    pub fn currency(&self) -> &str {
        &self.currency
    }

    /// Returns the monthly cost of all hardware.
    #[must_use]
    pub const fn monthly(&self) -> Monthly {
        self.monthly
    }

    /// Returns its kinds of devices.
    #[must_use]
    pub fn kinds(&self) -> &[DeviceKind] {
        &self.kinds
    }

    /// Returns the devices that carry volumes of a type.
    ///
    /// # Errors
    /// Returns [`NotCarried`] if there are none.
    pub fn carrier(&self, volume_type: VolumeType) -> Result<&DeviceKind, NotCarried> {
        let named = self.kinds.iter().find(|kind| kind.types.contains(&volume_type));
        let others = || self.kinds.iter().find(|kind| kind.types.is_empty());
        named.or_else(others).ok_or(NotCarried { volume_type })
    }

    /// Returns the monthly price of a volume: its part of the space or of the sold device time of
    /// one device, whichever is larger, of the cost of that device; rounded half up.
    ///
    /// # Errors
    /// Returns [`NotCarried`] if no device carries its type.
    pub fn volume(&self, rules: &Rules, spec: &VolumeSpec) -> Result<Charge, NotCarried> {
        let kind = self.carrier(spec.volume_type)?;
        let (reserved, sellable) = kind.device_time(rules, spec);
        let gib = u128::from(spec.size_gib);
        let capacity = u128::from(kind.capacity_gib);
        let (part, whole, by) = if reserved * capacity > gib * sellable {
            (reserved, sellable, ChargedBy::DeviceTime)
        } else {
            (gib, capacity, ChargedBy::Space)
        };
        Ok(Charge { micros: kind.part(part, whole), by })
    }

    /// Returns whether a volume fits on an empty device. The price is the part of a device, so of
    /// layouts of one type and number of volumes, a cheaper one fits wherever a dearer one does.
    #[must_use]
    pub fn fits(&self, rules: &Rules, spec: &VolumeSpec) -> bool {
        self.carrier(spec.volume_type).is_ok_and(|kind| {
            let (reserved, sellable) = kind.device_time(rules, spec);
            reserved <= sellable && u64::from(spec.size_gib) <= kind.capacity_gib
        })
    }

    /// Returns the monthly price of a layout: that of all its volumes.
    ///
    /// # Errors
    /// Returns [`NotCarried`] if no device carries its type.
    pub fn layout(&self, rules: &Rules, layout: &Layout) -> Result<u64, NotCarried> {
        let each = self.volume(rules, &layout.each)?;
        Ok(each.micros.saturating_mul(layout.volumes.into()))
    }

    /// Returns the monthly price of `bytes` of a snapshot, on the devices of its volume's type, or
    /// on the first kind if the type is not known.
    ///
    /// # Errors
    /// Returns [`NotCarried`] if no device carries the type.
    pub fn snapshot(&self, of: Option<VolumeType>, bytes: u64) -> Result<u64, NotCarried> {
        let kind = match of {
            Some(volume_type) => Some(self.carrier(volume_type)?),
            None => self.kinds.first(),
        };
        let part = |kind: &DeviceKind| kind.part(bytes.into(), u128::from(kind.capacity_gib) * GIB);
        Ok(kind.map(part).unwrap_or_default())
    }
}

impl DeviceKind {
    fn clashes(&self, other: &Self) -> bool {
        let both_carry_the_rest = self.types.is_empty() && other.types.is_empty();
        both_carry_the_rest || self.types.iter().any(|it| other.types.contains(it))
    }

    /// Returns the device time that a volume reserves, and the time that one device sells.
    fn device_time(&self, rules: &Rules, spec: &VolumeSpec) -> (u128, u128) {
        let mut ledger = Ledger::new(self.floor, DomainFloor::UNLIMITED, self.sold_share_ppm);
        let reservation = rules.reserved(spec).reservation(Oversell::NONE);
        // An empty ledger accepts every reservation of a volume.
        let _ = ledger.enter(VolumeId::from_bits(0), reservation);
        let usage = ledger.usage(Resource::DeviceTime);
        (usage.sold.min(u64::MAX.into()), u128::from(usage.sellable.unwrap_or(u64::MAX).max(1)))
    }

    /// Returns a part of the monthly cost of one device.
    fn part(&self, part: u128, whole: u128) -> u64 {
        let whole = whole.saturating_mul(self.number.into()).max(1);
        let charge = u128::from(self.monthly).saturating_mul(part).saturating_add(whole / 2);
        saturating::<_, u64>(charge / whole)
    }
}

impl Hardware {
    fn monthly(&self, energy: &Energy) -> Monthly {
        let number = u128::from(self.number);
        let rounded =
            |part: u128, whole: u128| saturating::<_, u64>((part + whole / 2) / whole.max(1));
        let days = DAYS_OF_YEAR * u128::from(self.years);
        let micros = u128::from(MICROS);
        let kwh_of_month = u128::from(self.watts) * HOURS_OF_MONTH * number;
        let paid = u128::from(energy.kwh) * u128::from(energy.pue);
        Monthly {
            purchase: rounded(u128::from(self.price) * DAYS_OF_MONTH * number, days),
            // Converts millionths of a watt to kilowatt hours, and divides by the millionths of the
            // pue.
            energy: rounded(kwh_of_month * paid, micros * micros * 1_000),
            running: rounded(u128::from(self.monthly) * number, 1),
        }
    }
}

fn hardware(table: &mut Table<'_>) -> Result<Hardware, BookError> {
    let number = table.whole("number", 1..=NUMBER_MAX)?;
    let price = table.amount("price", 0..=MONEY_MAX)?;
    let years = table.whole("years", 1..=50)?;
    let watts = table.amount("watts", 0..=WATTS_MAX)?;
    Ok(Hardware {
        number: number.ok_or_else(|| table.missing("number", "how many there are"))?,
        price: price.ok_or_else(|| table.missing("price", "what one was bought for"))?,
        years: years.ok_or_else(|| table.missing("years", "its years of life"))?,
        watts: watts.ok_or_else(|| table.missing("watts", "what one takes"))?,
        monthly: 0,
    })
}

fn node(mut table: Table<'_>) -> Result<Hardware, BookError> {
    let hardware = hardware(&mut table)?;
    let monthly = table.amount("monthly", 0..=MONEY_MAX)?.unwrap_or_default();
    table.done()?;
    Ok(Hardware { monthly, ..hardware })
}

fn device(
    mut table: Table<'_>,
    calibrated: &mut dyn FnMut(&str) -> Result<DeviceFloor, String>,
) -> Result<(usize, Hardware, DeviceKind), BookError> {
    let name = table.words("name")?.map(str::to_owned);
    let name = name.ok_or_else(|| table.missing("name", "a name for the device"))?;
    let hardware = hardware(&mut table)?;
    let capacity = table.whole("capacity_gib", 1..=GIB_MAX)?;
    let capacity_gib = capacity.ok_or_else(|| table.missing("capacity_gib", "its space"))?;
    let (floor, sold_share_ppm) = sells(&mut table, calibrated)?;
    let expected = "a list of standard, st1, sc1, gp2, gp3, io1, io2";
    let types = table.list("types", expected, |text| text.parse::<VolumeType>().ok())?;
    table.done()?;
    let number = saturating::<_, u32>(hardware.number);
    let kind = DeviceKind { name, number, capacity_gib, floor, sold_share_ppm, monthly: 0, types };
    Ok((table.line(), hardware, kind))
}

/// Reads the capacity that one device sells: an operator's figure, or a calibration record.
fn sells(
    table: &mut Table<'_>,
    calibrated: &mut dyn FnMut(&str) -> Result<DeviceFloor, String>,
) -> Result<(DeviceFloor, u32), BookError> {
    let iops = table.whole("sells_iops", 1..=u32::MAX.into())?;
    let mibps = table.whole("sells_throughput", 1..=u32::MAX.into())?;
    let record = table.words("calibration")?;
    let broken = |message: String| BookError { line: Some(table.line()), message };
    let number = |value: u64| saturating::<_, u32>(value);
    let (floor, ppm) = match (iops, mibps, record) {
        (Some(iops), Some(mibps), None) => {
            let figure = Figure::new(number(iops), number(mibps));
            let figure = figure.map_err(|error| broken(format!("in [[device]]: {error}")))?;
            (figure.floor(), PPM)
        }
        (None, None, Some(path)) => (calibrated(path).map_err(broken)?, SOLD_SHARE_PPM),
        _ => {
            return Err(table.missing(
                "one source of what it sells",
                "either sells_iops and sells_throughput, or calibration",
            ));
        }
    };
    if floor.part(ppm).time_ns_per_second == 0 {
        return Err(broken("in [[device]]: the calibration sells nothing".to_owned()));
    }
    Ok((floor, ppm))
}
