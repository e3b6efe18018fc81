//! The list price of a volume, in exact integers: millionths of a US dollar, or of the currency of
//! a list that was read at run time.
//!
//! The prices live in `data/prices/<date>.toml` and `data/regions/<date>.csv`; `build.rs` checks
//! them and turns them into the tables here. Other lists are read from files at run time.

use crate::convert::saturating;
use crate::volume::{Date, VolumeSpec, VolumeType};
use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

include!(concat!(env!("OUT_DIR"), "/prices.rs"));

/// The region of the lists of all dates.
const HOME_REGION: &str = "us-east-1";
const MIBPS_PER_GIBPS: u128 = 1_024;

/// Millionths of a currency unit in a cent.
pub const MICROS_PER_CENT: u64 = 10_000;

/// Formats cents as a number with two decimals.
#[must_use]
pub fn decimal(cents: u64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Converts millionths to cents, rounded half up.
#[must_use]
pub const fn half_up(micros: u64) -> u64 {
    micros.saturating_add(MICROS_PER_CENT / 2) / MICROS_PER_CENT
}

/// Formats millionths as a number with two decimals, rounded half up to cents.
#[must_use]
pub fn rounded(micros: u64) -> String {
    decimal(half_up(micros))
}

/// The list prices of one region from one date on. Each price is in millionths of the list's
/// currency.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriceList {
    date: Date,
    region: Cow<'static, str>,
    currency: Cow<'static, str>,
    types: Cow<'static, [TypePrices]>,
    fast_restore: Option<FastRestorePrice>,
    snapshot: Option<SnapshotPrices>,
}

/// The prices of one volume type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypePrices {
    /// The volume type.
    pub volume_type: VolumeType,
    /// Price of a GiB and month.
    pub gib_month: u64,
    /// Price of each provisioned IOPS and month, by tier; empty if IOPS are not sold.
    pub iops_month: Cow<'static, [Tier]>,
    /// Price of 1,024 provisioned MiB/s and month, by tier in MiB/s; empty if throughput is not
    /// sold. AWS lists a GiB/s, and its price for a MiB/s may be no whole millionth.
    pub gibps_month: Cow<'static, [Tier]>,
    /// Price of a million I/O requests; 0 if they are free.
    pub million_ios: u64,
}

/// The price of each unit above the tier before, up to and including `up_to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tier {
    /// Last unit of the tier. Units above the last tier have no known price.
    pub up_to: u32,
    /// Price of one unit.
    pub price: u64,
}

/// The price of fast snapshot restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastRestorePrice {
    /// Price of one snapshot in one zone and hour.
    pub hour: u64,
    /// Minimum charge, in minutes.
    pub minutes_min: u64,
}

/// The prices of snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotPrices {
    /// Price of a stored GiB and month.
    pub gib_month: u64,
    /// Price of an archived GiB and month.
    pub archive_gib_month: u64,
    /// Price of a GiB retrieved from the archive.
    pub archive_retrieval_gib: u64,
    /// Minimum charge for an archived snapshot, in days.
    pub archive_days_min: u64,
}

/// There is no price list for the requested date.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoPrices {
    /// The requested region.
    pub region: String,
    /// The requested date; the newest list if it is `None`.
    pub date: Option<Date>,
    /// The date of the oldest list of the region; `None` if there is no list of it.
    pub oldest: Option<Date>,
}

impl fmt::Display for NoPrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, date, oldest } = self;
        match (date, oldest) {
            (Some(date), Some(oldest)) => write!(
                f,
                "no prices of {region} are known for {date}; the oldest are those of {oldest}: \
                 choose that date or a later one"
            ),
            _ => write!(f, "no prices of the region {region:?} are known"),
        }
    }
}

/// The cost of a volume by item, in millionths of the list's currency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Its capacity.
    pub storage: u64,
    /// Its provisioned IOPS.
    pub iops: u64,
    /// Its provisioned throughput.
    pub throughput: u64,
}

impl Cost {
    /// Returns the sum of all items.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.storage.saturating_add(self.iops).saturating_add(self.throughput)
    }
}

impl TypePrices {
    /// Returns the cost of a volume in a month of 30 days. Tiers count per volume. Returns `None`
    /// if it has more than the tiers have prices for.
    #[must_use]
    pub fn monthly(&self, spec: &VolumeSpec) -> Option<Cost> {
        let mibps = spec.throughput_mibps.unwrap_or(0);
        let throughput = tiered(&self.gibps_month, mibps)?;
        Some(Cost {
            storage: self.gib_month.saturating_mul(spec.size_gib.into()),
            iops: tiered(&self.iops_month, spec.iops.unwrap_or(0))?,
            throughput: share(throughput.into(), MIBPS_PER_GIBPS),
        })
    }

    /// Returns the cost of `count` I/O requests, rounded half up.
    #[must_use]
    pub fn requests(&self, count: u64) -> u64 {
        share(u128::from(self.million_ios) * u128::from(count), 1_000_000)
    }
}

impl FastRestorePrice {
    /// Returns the cost of `minutes` of `snapshots` snapshots enabled in `zones` zones each,
    /// rounded half up.
    #[must_use]
    pub fn charge(&self, snapshots: u32, zones: u32, minutes: u64) -> u64 {
        let minutes = u128::from(minutes.max(self.minutes_min));
        let units = u128::from(snapshots) * u128::from(zones);
        share((u128::from(self.hour) * minutes).saturating_mul(units), 60)
    }
}

impl PriceList {
    /// Returns each list of us-east-1, oldest first.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &PRICES
    }

    /// Returns today's list of us-east-1.
    #[must_use]
    pub fn newest() -> &'static Self {
        NEWEST
    }

    /// Returns the list of us-east-1 in force on `date`: the newest one up to that date. The error
    /// names the oldest one.
    pub fn as_of(date: Date) -> Result<&'static Self, NoPrices> {
        Self::in_region(HOME_REGION, Some(date))
    }

    /// Returns the list of a region in force on a date, or the newest.
    pub fn in_region(region: &str, date: Option<Date>) -> Result<&'static Self, NoPrices> {
        let is_in_force = |list: &&Self| date.is_none_or(|date| list.date <= date);
        let lists = || PRICES.iter().chain(&REGIONS).filter(|list| list.region == region);
        lists().rev().find(is_in_force).ok_or_else(|| NoPrices {
            region: region.to_owned(),
            date,
            oldest: lists().next().map(|list| list.date),
        })
    }

    /// Creates a list of volume types that was read at run time.
    #[must_use]
    pub fn new(date: Date, region: String, currency: String, types: Vec<TypePrices>) -> Self {
        Self {
            date,
            region: region.into(),
            currency: currency.into(),
            types: types.into(),
            fast_restore: None,
            snapshot: None,
        }
    }

    /// Returns the day on which this list came into force.
    #[must_use]
    pub fn date(&self) -> Date {
        self.date
    }

    /// Returns the region of these prices.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Returns the name of the currency of its prices.
    #[must_use]
    pub fn currency(&self) -> &str {
        &self.currency
    }

    /// Returns the prices of one type; `None` if none are known on this date.
    #[must_use]
    pub fn of(&self, t: VolumeType) -> Option<&TypePrices> {
        self.types.iter().find(|prices| prices.volume_type == t)
    }

    /// Returns the price of fast snapshot restore, if known on this date.
    #[must_use]
    pub fn fast_restore(&self) -> Option<FastRestorePrice> {
        self.fast_restore
    }

    /// Returns the prices of snapshots, if known on this date.
    #[must_use]
    pub fn snapshot(&self) -> Option<SnapshotPrices> {
        self.snapshot
    }

    /// Returns the cost of a volume in a month of 30 days, in millionths of the list's currency;
    /// `None` if the type has no known price on this date.
    #[must_use]
    pub fn monthly_micro_usd(&self, spec: &VolumeSpec) -> Option<u64> {
        Some(self.of(spec.volume_type)?.monthly(spec)?.total())
    }
}

/// Returns the price of `units`, each at the price of its tier; `None` if the tiers end below.
/// Without tiers, units are not sold and cost nothing.
fn tiered(tiers: &[Tier], units: u32) -> Option<u64> {
    let mut from = 0;
    let mut sum = 0_u64;
    for tier in tiers {
        let within = units.min(tier.up_to).saturating_sub(from);
        sum = sum.saturating_add(tier.price.saturating_mul(within.into()));
        from = tier.up_to;
    }
    (tiers.is_empty() || units <= from).then_some(sum)
}

/// Returns `whole` / `parts` rounded half up; saturates.
fn share(whole: u128, parts: u128) -> u64 {
    saturating(whole.saturating_add(parts / 2) / parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Rules, VolumeRequest};

    /// Returns the charge in the example of the price page: half a day of a month of 30 days,
    /// rounded half up.
    fn half_a_day(monthly: u64) -> u64 {
        (monthly + 30) / 60
    }

    fn spec(t: VolumeType, size_gib: u32, iops: Option<u32>, mibps: Option<u32>) -> VolumeSpec {
        let request = VolumeRequest {
            volume_type: t,
            size_gib,
            iops,
            throughput_mibps: mibps,
            multi_attach: false,
        };
        Rules::newest().resolve(&request).unwrap()
    }

    fn half_day(spec: &VolumeSpec) -> (u64, u64, u64) {
        let prices = PriceList::newest().of(spec.volume_type).unwrap();
        let cost = prices.monthly(spec).unwrap();
        (half_a_day(cost.storage), half_a_day(cost.iops), half_a_day(cost.throughput))
    }

    #[test]
    fn amounts_are_rounded_half_up_to_cents() {
        assert_eq!(
            (rounded(8_005_000), rounded(8_004_999)),
            ("8.01".to_owned(), "8.00".to_owned())
        );
        assert_eq!(decimal(5), "0.05");
    }

    #[test]
    fn the_examples_of_the_price_page_come_out_exactly() {
        use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1};
        let gib = 2_000;
        assert_eq!(half_day(&spec(Gp2, gib, None, None)), (3_333_333, 0, 0));
        assert_eq!(half_day(&spec(Io2, gib, Some(1_000), None)), (4_166_667, 1_083_333, 0));
        assert_eq!(half_day(&spec(Io2, gib, Some(60_000), None)), (4_166_667, 55_900_000, 0));
        assert_eq!(half_day(&spec(Io1, gib, Some(1_000), None)), (4_166_667, 1_083_333, 0));
        assert_eq!(half_day(&spec(St1, gib, None, None)), (1_500_000, 0, 0));
        assert_eq!(half_day(&spec(Sc1, gib, None, None)), (500_000, 0, 0));
        // The page's gp3 example is of a region where a MiB/s costs 0.06 instead of 0.04.
        let gp3 = spec(Gp3, gib, Some(10_000), Some(500));
        assert_eq!(half_day(&gp3), (2_666_667, 583_333, 250_000));
        let elsewhere = TypePrices {
            gibps_month: Cow::Borrowed(&[
                Tier { up_to: 125, price: 0 },
                Tier { up_to: 2_000, price: 61_440_000 },
            ]),
            ..PriceList::newest().of(Gp3).unwrap().clone()
        };
        let cost = elsewhere.monthly(&gp3).unwrap();
        assert_eq!(half_a_day(cost.throughput), 375_000);
        assert_eq!(half_a_day(cost.total()), 3_625_000);
    }

    #[test]
    fn tiers_of_io2_count_per_volume() {
        let monthly = |iops| {
            let spec = spec(VolumeType::Io2, 256, Some(iops), None);
            PriceList::newest().of(VolumeType::Io2).unwrap().monthly(&spec).unwrap().iops
        };
        assert_eq!(monthly(32_000), 32_000 * 65_000);
        assert_eq!(monthly(32_001), 32_000 * 65_000 + 45_500);
        assert_eq!(monthly(64_000), 32_000 * 65_000 + 32_000 * 45_500);
        assert_eq!(monthly(256_000), 32_000 * 65_000 + 32_000 * 45_500 + 192_000 * 31_850);
    }

    #[test]
    fn included_iops_and_throughput_of_gp3_are_free() {
        let monthly = |iops, mibps| {
            let spec = spec(VolumeType::Gp3, 100, Some(iops), Some(mibps));
            PriceList::newest().monthly_micro_usd(&spec).unwrap()
        };
        assert_eq!(monthly(3_000, 125), 8_000_000);
        assert_eq!(monthly(3_001, 126), 8_000_000 + 5_000 + 40_000);
    }

    /// A volume of 500 GiB in 2021, in millionths of a dollar; not all of these could be created.
    fn in_2021(volume_type: VolumeType, iops: Option<u32>, throughput_mibps: Option<u32>) -> u64 {
        let spec =
            VolumeSpec { volume_type, size_gib: 500, iops, throughput_mibps, multi_attach: false };
        let list = PriceList::as_of("2021-07-31".parse().unwrap()).unwrap();
        list.monthly_micro_usd(&spec).unwrap()
    }

    #[test]
    fn half_a_tebibyte_in_2021_costs_what_its_price_list_says() {
        use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};
        assert_eq!(in_2021(Gp2, Some(1_500), None), 50_000_000);
        assert_eq!(in_2021(Gp3, Some(3_000), Some(125)), 40_000_000);
        assert_eq!(in_2021(Gp3, Some(4_000), Some(250)), 50_000_000);
        assert_eq!(in_2021(Gp3, Some(4_015), Some(250)), 50_075_000);
        assert_eq!(in_2021(Gp3, Some(3_000), Some(1_000)), 75_000_000);
        assert_eq!(in_2021(Gp3, Some(16_000), Some(1_000)), 140_000_000);
        for t in [Io1, Io2] {
            assert_eq!(in_2021(t, Some(3_000), None), 257_500_000, "{t}");
            assert_eq!(in_2021(t, Some(16_000), None), 1_102_500_000, "{t}");
        }
        assert_eq!(in_2021(Io1, Some(64_000), None), 4_222_500_000, "no tiers");
        assert_eq!(in_2021(Io2, Some(64_000), None), 3_598_500_000, "half at the second tier");
        let others = [Standard, St1, Sc1].map(|t| in_2021(t, None, None));
        assert_eq!(others, [25_000_000, 22_500_000, 7_500_000]);
    }

    #[test]
    fn fast_restore_is_charged_by_the_minute_from_an_hour_on() {
        let price = PriceList::newest().fast_restore().unwrap();
        assert_eq!(price.charge(1, 3, 90), 3_375_000);
        assert_eq!(price.charge(1, 1, 45), 750_000);
        assert_eq!(price.charge(3, 2, 150), 11_250_000);
        assert_eq!(price.charge(u32::MAX, u32::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn an_archived_gib_is_a_quarter_of_a_stored_one_for_90_days_at_least() {
        let price = PriceList::newest().snapshot().unwrap();
        assert_eq!((price.gib_month, price.archive_gib_month), (50_000, 12_500));
        assert_eq!((price.archive_retrieval_gib, price.archive_days_min), (30_000, 90));
    }

    #[test]
    fn io_requests_cost_on_magnetic_volumes_only() {
        let price_of = |t| PriceList::newest().of(t).unwrap();
        assert_eq!(price_of(VolumeType::Standard).requests(3_000_000), 150_000);
        assert_eq!(
            price_of(VolumeType::Standard).requests(10),
            1,
            "half a millionth is rounded up"
        );
        assert_eq!(price_of(VolumeType::Gp2).requests(u64::MAX), 0);
    }

    #[test]
    fn prices_are_chosen_by_date() {
        let list = |date: &str| PriceList::as_of(date.parse().unwrap());
        let io1 = |date| list(date).unwrap().of(VolumeType::Io1).unwrap().iops_month[0].price;
        assert_eq!(
            (io1("2013-01"), io1("2014-06-16"), io1("2014-06-17")),
            (100_000, 100_000, 65_000)
        );
        assert!(list("2014-06-16").unwrap().of(VolumeType::Gp2).is_none());
        let gp3 = |date| list(date).unwrap().of(VolumeType::Gp3).map(|gp3| gp3.gib_month);
        assert_eq!((gp3("2021-05-16"), gp3("2021-05-17")), (None, Some(80_000)));
        let standard = |date| list(date).unwrap().of(VolumeType::Standard).unwrap().gib_month;
        assert_eq!((standard("2013-12"), standard("2015-01")), (100_000, 50_000));
        let error = list("2012-12-31").unwrap_err();
        assert_eq!(
            std::format!("{error}"),
            "no prices of us-east-1 are known for 2012-12-31; the oldest are those of 2013-01-01: \
             choose that date or a later one"
        );
        assert_eq!(PriceList::newest(), PriceList::all().last().unwrap());
        assert!(PriceList::all().windows(2).all(|w| w[0].date() < w[1].date()));
        assert!(PriceList::all().iter().all(|l| l.region() == "us-east-1"));
        assert!(VolumeType::ALL.iter().all(|t| PriceList::newest().of(*t).is_some()));
    }

    /// Figures of the Price List, published 2026-10-15 (2026-09-10 for the tiers of Tokyo).
    #[test]
    fn regions_have_their_own_prices_or_none() {
        let list = |region: &str| PriceList::in_region(region, None);
        let monthly =
            |region: &str, spec: &VolumeSpec| list(region).unwrap().monthly_micro_usd(spec);
        let gp3 = spec(VolumeType::Gp3, 100, Some(4_000), Some(250));
        assert_eq!(monthly("us-east-1", &gp3), Some(8_000_000 + 5_000_000 + 5_000_000));
        assert_eq!(monthly("ap-northeast-1", &gp3), Some(9_600_000 + 6_000_000 + 6_000_000));
        // The price of a GiB/s is 58.4909.
        assert_eq!(monthly("eu-central-2", &gp3), Some(11_420_000 + 7_000_000 + 7_140_002));
        // Beyond the known tiers there is no price.
        let io2 = |iops| spec(VolumeType::Io2, 256, Some(iops), None);
        let storage = 256 * 142_000;
        let all = 32_000 * (74_000 + 51_800) + 1_000 * 36_260;
        assert_eq!(monthly("ap-northeast-1", &io2(65_000)), Some(storage + all));
        assert_eq!(monthly("eu-west-1", &io2(32_000)), Some(256 * 138_000 + 32_000 * 72_000));
        assert_eq!(monthly("eu-west-1", &io2(32_001)), None);
        let none = list("moon-1").unwrap_err();
        assert_eq!(std::format!("{none}"), "no prices of the region \"moon-1\" are known");
        let early = PriceList::in_region("eu-west-1", Some("2021-06".parse().unwrap()));
        assert_eq!(early.unwrap_err().oldest, Some("2026-10-15".parse().unwrap()));
        assert_eq!(REGIONS.len(), 35);
        for region in REGIONS.iter().map(PriceList::region) {
            let list = list(region).unwrap();
            let gp3 = &spec(VolumeType::Gp3, 8, None, None);
            assert_eq!((list.region(), list.currency()), (region, "USD"));
            assert!(list.monthly_micro_usd(gp3).is_some(), "{region}");
        }
    }
}
