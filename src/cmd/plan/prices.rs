//! Reads the files of `--prices`.

use super::{failure, unopened};
use crate::cli::{Connection, PlanPrices};
use crate::cmd;
use crate::price_book;
use evenkeel_cli::endpoint::DEFAULT_REGION;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::volume::Date;
use evenkeel_planner::offers::{self, Offers};
use evenkeel_planner::price_sources::{self, PriceSources};
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

/// The bytes of a file by which its form is detected.
const HEAD_BYTES: u64 = 4 << 10;

/// Returns the region that a flag names; `None` for the default of a server, which is no region of
/// AWS.
pub fn named_region(connection: &Connection) -> Option<&str> {
    connection.region.as_deref().filter(|region| *region != DEFAULT_REGION)
}

/// Reads files: one price book, or one or several price lists of AWS.
pub fn read(flags: &PlanPrices, as_of: Option<Date>) -> Result<PriceSources, Failure> {
    let discounts = price_sources::discounts(&flags.discount).map_err(failure)?;
    let mut books = Vec::new();
    let mut offers: Option<Offers> = None;
    for path in &flags.prices {
        let mut file = PriceFile::open(path)?;
        if file.is_list {
            add(path, file.input, offers.get_or_insert_default())?;
        } else {
            books.push(price_book::read(path, &mut file.input)?);
        }
    }
    PriceSources::new(books, offers, discounts, as_of).map_err(failure)
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
        let hint = "name a price book, or the output of `aws pricing get-products`";
        let fail = |error: std::io::Error| unopened(path, &error, hint);
        let mut input = cmd::input(path).map_err(fail)?;
        let mut head = Vec::new();
        input.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(fail)?;
        if head.is_empty() {
            let message = format!("{}: the price list is empty", path.display());
            return Err(Failure::new(message)
                .exit(Exit::Input)
                .hint("look whether `aws pricing get-products` failed, and write the file anew"));
        }
        let is_list = offers::is_list(&head);
        Ok(Self { is_list, input: Box::new(Cursor::new(head).chain(input)) })
    }
}

fn add(path: &Path, input: Box<dyn Read>, offers: &mut Offers) -> Result<(), Failure> {
    let read = offers.read(&mut BufReader::new(input));
    read.map_err(|broken| Failure::new(format!("{}: {broken}", path.display())).exit(Exit::Input))
}
