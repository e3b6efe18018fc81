//! Monthly costs of layouts: by list prices of a day, or by a price book of one's own hardware.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_core::price::{Cost, PriceList, Tier};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};

use crate::layout::Layout;
use crate::price_book::{Charge, ChargedBy, PriceBook};

/// Prices, in millionths of a currency.
#[derive(Clone, Debug)]
pub enum Prices {
    /// A list of AWS, in its currency.
    List(ListPrices),
    /// A book of one's own, in its currency.
    Book(Arc<PriceBook>),
}

/// Discounts on the prices of types, in hundredths of a percent.
pub type Discounts = BTreeMap<VolumeType, u32>;

/// A whole price, in hundredths of a percent.
pub const WHOLE: u32 = 10_000;

/// A price that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpriced {
    /// That of a type.
    Type(VolumeType),
    /// That of IOPS of a type above this number.
    Iops(VolumeType, u32),
    /// That of MiB/s of a type above this number.
    Throughput(VolumeType, u32),
}

impl fmt::Display for Unpriced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(volume_type) => volume_type.fmt(f),
            Self::Iops(volume_type, most) => write!(f, "IOPS of {volume_type} above {most}"),
            Self::Throughput(volume_type, most) => write!(f, "MiB/s of {volume_type} above {most}"),
        }
    }
}

/// A list of AWS, with the discounts of a contract.
#[derive(Clone, Debug)]
pub struct ListPrices {
    list: Arc<PriceList>,
    discounts: Discounts,
}

impl ListPrices {
    /// Creates a list with discounts, each at most [`WHOLE`].
    #[must_use]
    pub fn new(list: PriceList, discounts: Discounts) -> Self {
        Self { list: Arc::new(list), discounts }
    }

    /// Returns the list, as it was published.
    #[must_use]
    pub fn list(&self) -> &PriceList {
        &self.list
    }

    /// Returns the discounts.
    #[must_use]
    pub const fn discounts(&self) -> &Discounts {
        &self.discounts
    }

    /// Returns the monthly cost of a volume, each item rounded half up; `None` if it has no price.
    #[must_use]
    pub fn monthly(&self, spec: &VolumeSpec) -> Option<Cost> {
        let cost = self.list.of(spec.volume_type)?.monthly(spec)?;
        let less = |amount| self.discounted(spec.volume_type, amount);
        Some(Cost {
            storage: less(cost.storage),
            iops: less(cost.iops),
            throughput: less(cost.throughput),
        })
    }

    /// Returns the price that a volume's cost lacks; `None` if it has a cost.
    #[must_use]
    pub fn unpriced(&self, spec: &VolumeSpec) -> Option<Unpriced> {
        let volume_type = spec.volume_type;
        let Some(prices) = self.list.of(volume_type) else {
            return Some(Unpriced::Type(volume_type));
        };
        let last = |tiers: &[Tier], units: Option<u32>| {
            tiers.last().map(|tier| tier.up_to).filter(|last| units.unwrap_or(0) > *last)
        };
        let iops = last(&prices.iops_month, spec.iops);
        let throughput = last(&prices.gibps_month, spec.throughput_mibps);
        iops.map(|last| Unpriced::Iops(volume_type, last))
            .or(throughput.map(|last| Unpriced::Throughput(volume_type, last)))
    }

    /// Returns the cost of `count` requests, for types that charge for them; otherwise 0.
    fn requests(&self, volume_type: VolumeType, count: u64) -> u64 {
        let requests = self.list.of(volume_type).map_or(0, |prices| prices.requests(count));
        self.discounted(volume_type, requests)
    }

    fn discounted(&self, volume_type: VolumeType, amount: u64) -> u64 {
        let off = self.discounts.get(&volume_type).copied().unwrap_or(0).min(WHOLE);
        let whole = u128::from(WHOLE);
        let left = u128::from(amount) * u128::from(WHOLE - off);
        u64::try_from((left + whole / 2) / whole).expect("invariant: no more than the amount")
    }
}

impl From<&PriceList> for Prices {
    fn from(list: &PriceList) -> Self {
        Self::List(ListPrices::from(list))
    }
}

impl From<&PriceList> for ListPrices {
    fn from(list: &PriceList) -> Self {
        Self::new(list.clone(), Discounts::new())
    }
}

impl Prices {
    /// Returns the name of the currency.
    #[must_use]
    pub fn currency(&self) -> &str {
        match self {
            Self::List(prices) => prices.list.currency(),
            Self::Book(book) => book.currency(),
        }
    }

    /// Returns whether volumes of a type have a price.
    #[must_use]
    pub fn has(&self, volume_type: VolumeType) -> bool {
        match self {
            Self::List(prices) => prices.list.of(volume_type).is_some(),
            Self::Book(book) => book.carrier(volume_type).is_ok(),
        }
    }

    /// Returns the price that a volume's cost lacks; `None` if it has a cost.
    #[must_use]
    pub fn unpriced(&self, spec: &VolumeSpec) -> Option<Unpriced> {
        match self {
            Self::List(prices) => prices.unpriced(spec),
            Self::Book(book) => {
                book.carrier(spec.volume_type).err().map(|_| Unpriced::Type(spec.volume_type))
            }
        }
    }

    /// Returns the most IOPS of a volume of a type that have a price.
    #[must_use]
    pub fn iops_max(&self, volume_type: VolumeType) -> u32 {
        let tiers = match self {
            Self::List(prices) => prices.list.of(volume_type).map(|prices| &prices.iops_month),
            Self::Book(_) => None,
        };
        tiers.and_then(|tiers| tiers.last()).map_or(u32::MAX, |last| last.up_to)
    }

    /// Returns the monthly cost of a layout, item by item; `None` if it has no price.
    ///
    /// A book charges each volume for the larger of its parts: `storage` is that of the space, and
    /// `iops` that of the device time.
    #[must_use]
    pub fn monthly(&self, rules: &Rules, layout: &Layout) -> Option<Cost> {
        match self {
            Self::List(prices) => layout.monthly(prices),
            Self::Book(book) => {
                let Charge { micros, by } = book.volume(rules, &layout.each).ok()?;
                let all = micros.saturating_mul(layout.volumes.into());
                let (storage, iops) = match by {
                    ChargedBy::Space => (all, 0),
                    ChargedBy::DeviceTime => (0, all),
                };
                Some(Cost { storage, iops, throughput: 0 })
            }
        }
    }

    /// Returns the cost of `count` requests, for types that charge for them; otherwise 0.
    #[must_use]
    pub fn requests(&self, volume_type: VolumeType, count: u64) -> u64 {
        match self {
            Self::List(prices) => prices.requests(volume_type, count),
            Self::Book(_) => 0,
        }
    }

    /// Returns whether there is a device that a volume fits on, if it is alone there.
    #[must_use]
    pub fn fits(&self, rules: &Rules, each: &VolumeSpec) -> bool {
        match self {
            Self::List(_) => true,
            Self::Book(book) => book.fits(rules, each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A missing price is named, and it is missing exactly where there is no cost.
    #[test]
    fn the_price_that_is_missing_is_named() {
        let prices = |region: &str| ListPrices::from(PriceList::in_region(region, None).unwrap());
        let spec = |volume_type, iops| VolumeSpec {
            volume_type,
            size_gib: 500,
            iops,
            throughput_mibps: None,
            multi_attach: false,
        };
        let ireland = prices("eu-west-1");
        let home = prices("us-east-1");
        for (prices, spec, words) in [
            (&ireland, spec(VolumeType::Io2, Some(32_001)), Some("IOPS of io2 above 32000")),
            (&ireland, spec(VolumeType::Io2, Some(32_000)), None),
            (&home, spec(VolumeType::Io2, Some(32_001)), None),
            (&ireland, spec(VolumeType::Standard, None), Some("standard")),
            (&home, spec(VolumeType::Standard, None), None),
        ] {
            let unpriced = prices.unpriced(&spec).map(|unpriced| unpriced.to_string());
            assert_eq!(unpriced.as_deref(), words);
            assert_eq!(prices.monthly(&spec).is_none(), words.is_some());
        }
    }
}
