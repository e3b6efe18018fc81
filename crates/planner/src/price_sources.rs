//! The prices that apply: a price book or the price lists of a question, the lists that are known,
//! and discounts.

use crate::offers::Offers;
use crate::price_book::PriceBook;
use crate::prices::{Discounts, ListPrices, Prices};
use crate::refusal::{Cause, Refusal};
use crate::regions;
use evenkeel_core::price::{NoPrices, PriceList};
use evenkeel_core::volume::{Date, VolumeType};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The prices that a question names.
pub struct PriceSources {
    book: Option<Arc<PriceBook>>,
    lists: Vec<PriceList>,
    discounts: Discounts,
    as_of: Option<Date>,
}

/// Returns the discounts of a question, in hundredths of a percent.
///
/// # Errors
/// If a type is discounted twice.
pub fn discounts(named: &[(VolumeType, u32)]) -> Result<Discounts, Refusal> {
    let mut seen = BTreeSet::new();
    match named.iter().find(|(volume_type, _)| !seen.insert(volume_type.to_string())) {
        Some((volume_type, _)) => Err(Refusal::new(format!(
            "--discount names {volume_type} twice: name one percentage of each type"
        ))
        .cause(Cause::Question)),
        None => Ok(named.iter().copied().collect()),
    }
}

impl PriceSources {
    /// Creates the sources of prices: one price book, or the price lists of `offers`.
    ///
    /// # Errors
    /// If there are several price books, or a book with lists or discounts; or if the offers are
    /// no whole lists.
    pub fn new(
        mut books: Vec<PriceBook>,
        offers: Option<Offers>,
        discounts: Discounts,
        as_of: Option<Date>,
    ) -> Result<Self, Refusal> {
        let usage = |message: String| Refusal::new(message).cause(Cause::Question);
        if books.len() > 1 || (offers.is_some() && !books.is_empty()) {
            let message = "--prices names a price book and another file".to_owned();
            return Err(usage(message).hint("name one price book, or price lists of AWS"));
        }
        let book = books.pop().map(Arc::new);
        if book.is_some() && !discounts.is_empty() {
            let message = "--discount is of list prices, and --prices names a price book";
            return Err(usage(message.to_owned()).hint("leave one of them out"));
        }
        let lists = offers.map_or_else(|| Ok(Vec::new()), Offers::lists);
        let lists = lists.map_err(|broken| usage(format!("--prices: {broken}")))?;
        Ok(Self { book, lists, discounts, as_of })
    }

    /// Returns the prices of a region.
    ///
    /// # Errors
    /// If no price list of the region is known, or if lists are given and none is of the region.
    pub fn of(&self, region: &str) -> Result<Prices, Refusal> {
        if let Some(book) = &self.book {
            return Ok(Prices::Book(Arc::clone(book)));
        }
        self.check_used(&BTreeSet::from([region.to_owned()]))?;
        self.list(region).map(Prices::List)
    }

    /// Checks that price lists of `--prices`, if there are some, are of one of these regions.
    ///
    /// # Errors
    /// If there are lists, and none is of these regions.
    pub fn check_used(&self, regions: &BTreeSet<String>) -> Result<(), Refusal> {
        if self.lists.is_empty() || self.lists.iter().any(|list| regions.contains(list.region())) {
            return Ok(());
        }
        let given: Vec<&str> = self.lists.iter().map(PriceList::region).collect();
        let wanted: Vec<&str> = regions.iter().map(String::as_str).collect();
        let message = format!(
            "--prices has prices of {}, and {} is asked for",
            given.join(", "),
            wanted.join(", ")
        );
        let hint = format!("name the region with --region {}, or leave --prices out", given[0]);
        Err(Refusal::new(message).cause(Cause::Question).hint(hint))
    }

    /// Returns the price list of a region: that of a file, or the one that is known.
    ///
    /// # Errors
    /// If there is none.
    pub fn list(&self, region: &str) -> Result<ListPrices, Refusal> {
        let given = self.lists.iter().find(|list| list.region() == region);
        let list = match given {
            Some(list) => list.clone(),
            None => {
                let known = PriceList::in_region(region, self.as_of);
                known.map_err(|none| self.no_list(region, &none))?.clone()
            }
        };
        Ok(ListPrices::new(list, self.discounts.clone()))
    }

    /// The error of a region without a price list.
    fn no_list(&self, region: &str, none: &NoPrices) -> Refusal {
        let failure = Refusal::new(none.to_string()).cause(Cause::Question);
        let has_list = |name: &String| {
            let is_given = self.lists.iter().any(|list| list.region() == name);
            is_given || PriceList::in_region(name, None).is_ok()
        };
        match regions::meant(region).into_iter().find(has_list) {
            Some(meant) => failure.hint(format!(
                "did you mean {meant}? A region is in lower case, without the letter of a zone"
            )),
            None => failure.hint(
                "name a price list of this region with --prices FILE: an offer file of AmazonEC2, \
                 or what `aws pricing get-products` prints; docs/operating/capacity.md shows \
                 the command",
            ),
        }
    }

    /// Returns whether a price book applies.
    #[must_use]
    pub const fn has_book(&self) -> bool {
        self.book.is_some()
    }
}
