//! The prices that apply: the files of `--prices`, the lists of the regions, and discounts.

use crate::cmd;
use crate::price_book;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::price::{NoPrices, PriceList};
use evenkeel_core::volume::{Date, VolumeType};
use evenkeel_planner::offers::Offers;
use evenkeel_planner::price_book::PriceBook;
use evenkeel_planner::prices::{Discounts, ListPrices, Prices};
use evenkeel_planner::regions;
use std::collections::BTreeSet;
use std::io::{BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The region whose lists apply where a plan names none.
pub const DEFAULT_REGION: &str = "us-east-1";
/// The default of the flag for the server's region, which is no region of AWS.
const NO_REGION: &str = "local-1";
/// The bytes of a file by which its form is detected.
const HEAD_BYTES: u64 = 4 << 10;

/// The prices that files and flags name.
pub struct Given {
    book: Option<Arc<PriceBook>>,
    lists: Vec<PriceList>,
    discounts: Discounts,
    as_of: Option<Date>,
}

/// Returns the region that a flag names; `None` for the default.
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
            let mut file = PriceFile::open(path)?;
            if file.is_list {
                has_lists = true;
                add(path, file.input, &mut offers)?;
            } else {
                books.push(Arc::new(price_book::read(path, &mut file.input)?));
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

    /// Returns the prices of a region.
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

    /// Returns the price list of a region: that of a file, or the one that is known.
    pub fn list(&self, region: &str) -> Result<ListPrices, Failure> {
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
    fn no_list(&self, region: &str, none: &NoPrices) -> Failure {
        let failure = Failure::new(none.to_string()).exit(Exit::Usage);
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
                 or what `aws pricing get-products` prints; docs/operating/capacity_plan.md shows \
                 the command",
            ),
        }
    }

    /// Returns whether a price book applies.
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

/// A file of prices.
struct PriceFile {
    /// Whether it is a price list of AWS. A price book is TOML.
    is_list: bool,
    /// All its bytes.
    input: Box<dyn Read>,
}

impl PriceFile {
    /// Opens a file, once, because it may be a pipe.
    fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
        let mut input = cmd::input(path).map_err(fail)?;
        let mut head = Vec::new();
        input.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(fail)?;
        if head.is_empty() {
            let message = format!("{}: the price list is empty", path.display());
            return Err(Failure::new(message)
                .exit(Exit::Usage)
                .hint("look whether `aws pricing get-products` failed, and write the file anew"));
        }
        let is_list = is_list(&head);
        Ok(Self { is_list, input: Box::new(Cursor::new(head).chain(input)) })
    }
}

fn is_list(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let in_list = text.strip_prefix('[').map(str::trim_start);
    let is_json_list = in_list.is_some_and(|rest| rest.starts_with(['"', '{']));
    text.starts_with(['{', '"']) || is_json_list || text.starts_with("FormatVersion")
}

fn add(path: &Path, input: Box<dyn Read>, offers: &mut Offers) -> Result<(), Failure> {
    let read = offers.read(&mut BufReader::new(input));
    read.map_err(|broken| Failure::new(format!("{}: {broken}", path.display())).exit(Exit::Usage))
}
