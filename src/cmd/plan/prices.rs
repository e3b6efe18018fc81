//! The prices that apply: the files of `--prices`, the lists of the regions, and discounts.

use crate::cmd;
use crate::price_book;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Date, VolumeType};
use evenkeel_planner::offers::Offers;
use evenkeel_planner::price_book::PriceBook;
use evenkeel_planner::prices::{Discounts, ListPrices, Prices};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The region whose lists apply where a plan names none.
pub const DEFAULT_REGION: &str = "us-east-1";
/// What the flag for the server's region is unless it is given: no region of AWS.
const NO_REGION: &str = "local-1";
/// The bytes of a file by which its form is told.
const HEAD_BYTES: usize = 4 << 10;

/// What files and flags say of prices.
pub struct Given {
    book: Option<Arc<PriceBook>>,
    lists: Vec<PriceList>,
    discounts: Discounts,
    as_of: Option<Date>,
}

/// The region that a flag names, if it names one of AWS.
pub fn named_region(flag: &str) -> Option<&str> {
    Some(flag).filter(|region| *region != NO_REGION)
}

impl Given {
    /// Reads files: one price book, or one or several price lists of AWS.
    pub fn read(
        paths: &[PathBuf],
        discounts: &[(VolumeType, u32)],
        as_of: Option<Date>,
    ) -> Result<Self, Failure> {
        let usage = |message: String| Failure::new(message).exit(Exit::Usage);
        check_discounts(discounts).map_err(usage)?;
        let discounts: Discounts = discounts.iter().copied().collect();
        let (mut books, mut offers) = (Vec::new(), Offers::default());
        let mut has_lists = false;
        for path in paths {
            match is_list(path)? {
                true => {
                    has_lists = true;
                    add(path, &mut offers)?;
                }
                false => books.push(Arc::new(price_book::load(path)?)),
            }
        }
        if books.len() > 1 || (has_lists && !books.is_empty()) {
            let message = "--prices names a price book and another file".to_owned();
            return Err(usage(message).hint("name one price book, or price lists of AWS"));
        }
        let book = books.pop();
        if book.is_some() && !discounts.is_empty() {
            let message = "--discount is of list prices, and --prices names a price book";
            return Err(usage(message.to_owned()).hint("leave one of them out"));
        }
        let lists = if has_lists { offers.lists() } else { Ok(Vec::new()) };
        let lists = lists.map_err(|broken| usage(format!("--prices: {broken}")))?;
        Ok(Self { book, lists, discounts, as_of })
    }

    /// The prices of a region.
    pub fn of(&self, region: &str) -> Result<Prices, Failure> {
        if let Some(book) = &self.book {
            return Ok(Prices::Book(Arc::clone(book)));
        }
        self.check_used(&BTreeSet::from([region.to_owned()]))?;
        self.list(region).map(Prices::List)
    }

    /// Returns an error if there are price lists of `--prices`, and none of these regions.
    pub fn check_used(&self, regions: &BTreeSet<String>) -> Result<(), Failure> {
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
        Err(Failure::new(message).exit(Exit::Usage).hint(hint))
    }

    /// The price list of a region: what a file has goes before what is known.
    pub fn list(&self, region: &str) -> Result<ListPrices, Failure> {
        let given = self.lists.iter().find(|list| list.region() == region);
        let list = match given {
            Some(list) => list.clone(),
            None => {
                let known = PriceList::in_region(region, self.as_of);
                known.map_err(|none| no_list(none.to_string()))?.clone()
            }
        };
        Ok(ListPrices::new(list, self.discounts.clone()))
    }

    /// Whether a price book applies.
    pub const fn has_book(&self) -> bool {
        self.book.is_some()
    }
}

/// Returns an error if a type is discounted twice.
fn check_discounts(discounts: &[(VolumeType, u32)]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match discounts.iter().find(|(volume_type, _)| !seen.insert(volume_type.to_string())) {
        Some((volume_type, _)) => {
            Err(format!("--discount names {volume_type} twice: name one percentage of each type"))
        }
        None => Ok(()),
    }
}

fn no_list(message: String) -> Failure {
    Failure::new(message).exit(Exit::Usage).hint(
        "name a price list of this region with --prices FILE: an offer file of AmazonEC2, or what \
         `aws pricing get-products` prints; docs/operating/capacity_plan.md shows the command",
    )
}

/// Whether a file is a price list of AWS. A price book is TOML.
fn is_list(path: &Path) -> Result<bool, Failure> {
    let fail = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let mut input = BufReader::with_capacity(HEAD_BYTES, cmd::input(path).map_err(fail)?);
    let head = input.fill_buf().map_err(fail)?;
    if head.is_empty() {
        let message = format!("{}: the price list is empty", path.display());
        return Err(Failure::new(message)
            .exit(Exit::Usage)
            .hint("look whether `aws pricing get-products` failed, and write the file anew"));
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let in_list = text.strip_prefix('[').map(str::trim_start);
    let is_json_list = in_list.is_some_and(|rest| rest.starts_with(['"', '{']));
    Ok(text.starts_with(['{', '"']) || is_json_list || text.starts_with("FormatVersion"))
}

fn add(path: &Path, offers: &mut Offers) -> Result<(), Failure> {
    let name = path.display();
    let input = cmd::input(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    let read = offers.read(&mut BufReader::new(input));
    read.map_err(|broken| Failure::new(format!("{name}: {broken}")).exit(Exit::Usage))
}
