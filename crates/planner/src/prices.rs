//! What layouts cost a month: by list prices of a day, or by a price book of one's own hardware.

use std::sync::Arc;

use evenkeel_core::price::{Cost, PriceList};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};

use crate::layout::Layout;
use crate::price_book::{Charge, ChargedBy, PriceBook};

/// Prices, in millionths of a currency.
#[derive(Clone, Debug)]
pub enum Prices {
    /// A list of AWS, in US dollars.
    List(&'static PriceList),
    /// A book of one's own, in its currency.
    Book(Arc<PriceBook>),
}

impl From<&'static PriceList> for Prices {
    fn from(list: &'static PriceList) -> Self {
        Self::List(list)
    }
}

impl Prices {
    /// The name of the currency.
    #[must_use]
    pub fn currency(&self) -> &str {
        match self {
            Self::List(_) => "USD",
            Self::Book(book) => book.currency(),
        }
    }

    /// Whether volumes of a type have a price.
    #[must_use]
    pub fn has(&self, volume_type: VolumeType) -> bool {
        match self {
            Self::List(list) => list.of(volume_type).is_some(),
            Self::Book(book) => book.carrier(volume_type).is_ok(),
        }
    }

    /// What a layout costs in a month, item by item; `None` if its type has no price. A book
    /// charges each volume for the larger of its parts: `storage` is that of the space, and `iops`
    /// that of the device time.
    #[must_use]
    pub fn monthly(&self, rules: &Rules, layout: &Layout) -> Option<Cost> {
        match self {
            Self::List(list) => layout.monthly(list),
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

    /// What so many requests cost beside.
    #[must_use]
    pub fn requests(&self, volume_type: VolumeType, count: u64) -> u64 {
        match self {
            Self::List(list) => list.of(volume_type).map_or(0, |prices| prices.requests(count)),
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
