//! What layouts cost a month: by list prices of a day, or by a price book of one's own hardware.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::price::{Cost, PriceList};
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

/// What hundredths of a percent are taken off the prices of a type.
pub type Discounts = BTreeMap<VolumeType, u32>;

/// All of a price, in hundredths of a percent.
pub const WHOLE: u32 = 10_000;

/// A list of AWS, with what a contract takes off.
#[derive(Clone, Debug)]
pub struct ListPrices {
    list: Arc<PriceList>,
    discounts: Discounts,
}

impl ListPrices {
    /// A list with discounts, each at most [`WHOLE`].
    #[must_use]
    pub fn new(list: PriceList, discounts: Discounts) -> Self {
        Self { list: Arc::new(list), discounts }
    }

    /// The list, as it was published.
    #[must_use]
    pub fn list(&self) -> &PriceList {
        &self.list
    }

    /// What is taken off.
    #[must_use]
    pub const fn discounts(&self) -> &Discounts {
        &self.discounts
    }

    /// What a volume costs a month, each item rounded half up; `None` if it has no price.
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

    /// The cost of `count` requests, for types that charge for them; otherwise 0.
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
    /// The name of the currency.
    #[must_use]
    pub fn currency(&self) -> &str {
        match self {
            Self::List(prices) => prices.list.currency(),
            Self::Book(book) => book.currency(),
        }
    }

    /// Whether volumes of a type have a price.
    #[must_use]
    pub fn has(&self, volume_type: VolumeType) -> bool {
        match self {
            Self::List(prices) => prices.list.of(volume_type).is_some(),
            Self::Book(book) => book.carrier(volume_type).is_ok(),
        }
    }

    /// The most IOPS of a volume of a type that a price is known of.
    #[must_use]
    pub fn iops_max(&self, volume_type: VolumeType) -> u32 {
        let tiers = match self {
            Self::List(prices) => prices.list.of(volume_type).map(|prices| &prices.iops_month),
            Self::Book(_) => None,
        };
        tiers.and_then(|tiers| tiers.last()).map_or(u32::MAX, |last| last.up_to)
    }

    /// What a layout costs in a month, item by item; `None` if its type has no price. A book
    /// charges each volume for the larger of its parts: `storage` is that of the space, and `iops`
    /// that of the device time.
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

    /// The cost of `count` requests, for types that charge for them; otherwise 0.
    #[must_use]
    pub fn requests(&self, volume_type: VolumeType, count: u64) -> u64 {
        match self {
            Self::List(prices) => prices.requests(volume_type, count),
            Self::Book(_) => 0,
        }
    }

    /// Whether there is a device that a volume fits on, if it is alone there.
    #[must_use]
    pub fn fits(&self, rules: &Rules, each: &VolumeSpec) -> bool {
        match self {
            Self::List(_) => true,
            Self::Book(book) => book.fits(rules, each),
        }
    }
}
