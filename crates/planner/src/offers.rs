//! Reads the price lists that AWS publishes: the offer files of AmazonEC2 of the Price List API, in
//! JSON and CSV, and the answers of `aws pricing get-products`.
//!
//! A file of a region has several hundred megabytes, so it is read value by value, and only the
//! prices of volumes are kept. A price belongs to the region that its `regionCode` names.

mod csv;
mod json;

use std::collections::BTreeMap;
use std::io::BufRead;

use evenkeel_core::price::{PriceList, Tier, TypePrices};
use evenkeel_core::volume::{Date, VolumeType};

use crate::read::{Broken, first_byte, skip_mark};

/// The IOPS and the MiB/s of gp3 that the price of its storage includes.
const GP3_IOPS: u32 = 3_000;
const GP3_MIBPS: u32 = 125;
/// The last IOPS of io2's first and second tier.
const IO2_TIERS: [u32; 2] = [32_000, 64_000];
const MICROS: u128 = 1_000_000;
const MIBPS_PER_GIBPS: u128 = 1_024;
/// The region whose usage types have no prefix.
const HOME_REGION: &str = "us-east-1";
/// Maximum number of digits of a price.
const DIGITS_MAX: usize = 24;

/// The subject of a price.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Item {
    Gib(VolumeType),
    Iops(VolumeType),
    Io2Tier(usize),
    Gibps,
    MillionIos,
}

/// The usage types of volumes, after `EBS:`.
const ITEMS: [(&str, Item); 14] = [
    ("VolumeUsage", Item::Gib(VolumeType::Standard)),
    ("VolumeUsage.st1", Item::Gib(VolumeType::St1)),
    ("VolumeUsage.sc1", Item::Gib(VolumeType::Sc1)),
    ("VolumeUsage.gp2", Item::Gib(VolumeType::Gp2)),
    ("VolumeUsage.gp3", Item::Gib(VolumeType::Gp3)),
    ("VolumeUsage.piops", Item::Gib(VolumeType::Io1)),
    ("VolumeUsage.io2", Item::Gib(VolumeType::Io2)),
    ("VolumeP-IOPS.gp3", Item::Iops(VolumeType::Gp3)),
    ("VolumeP-IOPS.piops", Item::Iops(VolumeType::Io1)),
    ("VolumeP-IOPS.io2", Item::Iops(VolumeType::Io2)),
    ("VolumeP-IOPS.io2.tier2", Item::Io2Tier(0)),
    ("VolumeP-IOPS.io2.tier3", Item::Io2Tier(1)),
    ("VolumeP-Throughput.gp3", Item::Gibps),
    ("VolumeIOUsage", Item::MillionIos),
];

impl Item {
    /// Returns the subject of a usage type such as `APN1-EBS:VolumeUsage.gp3`; `None` if it is not
    /// a volume's.
    fn of(usage_type: &str) -> Option<Self> {
        let (_, usage) = usage_type.split_once("EBS:")?;
        ITEMS.iter().find(|(known, _)| *known == usage).map(|(_, item)| *item)
    }

    /// Returns the millionths of the item's own unit for one of `unit`.
    fn factor(self, unit: &str) -> Option<u128> {
        let unit = unit.to_ascii_lowercase();
        match (self, unit.as_str()) {
            (Self::Gib(_), "gb-mo" | "gb-month" | "gib-mo")
            | (Self::Iops(_) | Self::Io2Tier(_), "iops-mo" | "iops-month")
            | (Self::Gibps, "gibps-mo" | "gibps-month") => Some(1),
            (Self::Gibps, "mibps-mo" | "mibps-month") => Some(MIBPS_PER_GIBPS),
            (Self::MillionIos, "ios") => Some(MICROS),
            _ => None,
        }
    }
}

/// A price as a file has it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Row {
    /// Its place in the file, for errors.
    place: String,
    usage_type: String,
    region: Option<String>,
    unit: String,
    /// Decimals, such as `0.0800000000`.
    price: String,
    currency: String,
    /// A day, or a time of a day.
    date: String,
}

/// The prices read from files. The prices of a region may be in several files.
#[derive(Default)]
pub struct Offers {
    lists: BTreeMap<String, Prices>,
}

/// The prices of a region.
#[derive(Default)]
struct Prices {
    date: Option<Date>,
    currency: String,
    micros: BTreeMap<Item, u64>,
}

impl Offers {
    /// Adds the prices of an offer file or of an answer.
    ///
    /// # Errors
    /// Returns [`Broken`] if the text is neither, if a price is invalid, or if pages are missing.
    pub fn read(&mut self, input: &mut dyn BufRead) -> Result<(), Broken> {
        skip_mark(input)?;
        match first_byte(input)? {
            Some(b'{' | b'[') => json::read(input, self),
            _ => csv::read(input, self),
        }
    }

    /// Returns the price list of each region.
    ///
    /// # Errors
    /// Returns [`Broken`] if no type has all of its prices.
    pub fn lists(self) -> Result<Vec<PriceList>, Broken> {
        let lists: Vec<PriceList> = self.lists.into_iter().filter_map(Prices::list).collect();
        if lists.is_empty() {
            return Err(Broken::whole(
                "no EBS volume type with all of its prices",
                "an offer file of AmazonEC2, or what `aws pricing get-products` prints of a \
                 region's product families Storage, System Operation and Provisioned Throughput",
            ));
        }
        Ok(lists)
    }

    /// Adds a price, if it is a volume's.
    fn add(&mut self, row: Row) -> Result<(), Broken> {
        let Some(item) = Item::of(&row.usage_type) else { return Ok(()) };
        let micros = micros(&row, item)?;
        // The IOPS and MiB/s that gp3 includes have a price of 0 in some lists.
        if micros == 0 {
            return Ok(());
        }
        let is_home = row.usage_type.starts_with("EBS:");
        let region = row.region.filter(|region| !region.is_empty());
        let region = region.or_else(|| is_home.then(|| HOME_REGION.to_owned()));
        let region = region.ok_or_else(|| {
            Broken::whole(&row.place, format!("the regionCode of {}", row.usage_type))
        })?;
        let prices = self.lists.entry(region).or_default();
        if !prices.currency.is_empty() && prices.currency != row.currency {
            let expected =
                format!("prices in one currency, {}, not {}", prices.currency, row.currency);
            return Err(Broken::whole(&row.place, expected));
        }
        prices.currency = row.currency;
        let date = row.date.get(..10).and_then(|day| day.parse::<Date>().ok());
        prices.date = prices.date.max(date);
        match prices.micros.insert(item, micros) {
            Some(before) if before != micros => {
                let expected = format!("one price of {}", row.usage_type);
                Err(Broken::whole(&row.place, expected))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the price of a row in millionths of its currency, rounded half up.
fn micros(row: &Row, item: Item) -> Result<u64, Broken> {
    let bad =
        |found: &str, expected: String| Broken::whole(&format!("{}: {found}", row.place), expected);
    let factor = item.factor(&row.unit).ok_or_else(|| {
        let expected = format!("the unit of {}: GB-Mo, IOPS-Mo, GiBps-mo or IOs", row.usage_type);
        bad(&row.unit, expected)
    })?;
    let price = || bad(&row.price, "a price, such as 0.0800000000".to_owned());
    let (whole, decimals) = row.price.split_once('.').unwrap_or((&row.price, ""));
    let digits = format!("{whole}{decimals}");
    let is_number = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let amount = digits.parse::<u128>().ok().filter(|_| is_number && digits.len() <= DIGITS_MAX);
    let places = u32::try_from(decimals.len()).expect("invariant: few digits");
    let amount = amount.ok_or_else(price)?;
    let parts = 10_u128.pow(places);
    let all = amount.checked_mul(MICROS * factor).ok_or_else(price)?;
    u64::try_from((all + parts / 2) / parts).map_err(|_| price())
}

impl Prices {
    /// Returns the list of a region; `None` if no type has all of its prices, or if the day is
    /// missing.
    fn list((region, prices): (String, Self)) -> Option<PriceList> {
        let date = prices.date?;
        let types: Vec<TypePrices> =
            VolumeType::ALL.into_iter().filter_map(|it| prices.of(it)).collect();
        (!types.is_empty()).then(|| PriceList::new(date, region, prices.currency, types))
    }

    /// Returns the prices of a type; `None` if one of them is missing.
    fn of(&self, volume_type: VolumeType) -> Option<TypePrices> {
        let price = |item: Item| self.micros.get(&item).copied();
        let tier = |up_to: u32, price: u64| Tier { up_to, price };
        let iops = || price(Item::Iops(volume_type));
        let iops_month = match volume_type {
            VolumeType::Gp3 => vec![tier(GP3_IOPS, 0), tier(u32::MAX, iops()?)],
            VolumeType::Io1 => vec![tier(u32::MAX, iops()?)],
            VolumeType::Io2 => {
                let mut tiers = vec![tier(IO2_TIERS[0], iops()?)];
                tiers.extend(price(Item::Io2Tier(0)).map(|price| tier(IO2_TIERS[1], price)));
                let is_second = tiers.len() == 2;
                let third = price(Item::Io2Tier(1)).filter(|_| is_second);
                tiers.extend(third.map(|price| tier(u32::MAX, price)));
                tiers
            }
            _ => Vec::new(),
        };
        let gibps_month = match volume_type {
            VolumeType::Gp3 => vec![tier(GP3_MIBPS, 0), tier(u32::MAX, price(Item::Gibps)?)],
            _ => Vec::new(),
        };
        let million_ios = match volume_type {
            VolumeType::Standard => price(Item::MillionIos)?,
            _ => 0,
        };
        Some(TypePrices {
            volume_type,
            gib_month: price(Item::Gib(volume_type))?,
            iops_month: iops_month.into(),
            gibps_month: gibps_month.into(),
            million_ios,
        })
    }
}

/// Returns whether a file that begins like this is a price list of AWS. A price book is TOML.
#[must_use]
pub fn is_list(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let in_list = text.strip_prefix('[').map(str::trim_start);
    let is_json_list = in_list.is_some_and(|rest| rest.starts_with(['"', '{']));
    text.starts_with(['{', '"']) || is_json_list || text.starts_with("FormatVersion")
}

#[cfg(test)]
mod tests;
