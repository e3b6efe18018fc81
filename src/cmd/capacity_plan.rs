//! `evenkeel capacity plan`: calculates whether volumes fit on devices, what is left, and what
//! further devices are needed.

use super::plan::failure;
use crate::cli::{Capacity, CapacityPlan, CapacityVerb};
use crate::price_book;
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_core::qos::admission::{DomainFloor, SOLD_SHARE_PPM};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::Rules;
use evenkeel_planner::capacity::{self, Named, of_book, with_network};
use evenkeel_planner::fit::Device;
use evenkeel_planner::volumes::{self, Listed};
use evenkeel_server::calibration::record::Record;
use std::io::BufReader;
use std::path::Path;

pub fn run(arguments: &Capacity) -> Result<(), Failure> {
    let CapacityVerb::Plan(flags) = &arguments.verb;
    let question = question(flags)?;
    let answer = question.answer().map_err(failure)?;
    output::print(&match arguments.output.format {
        Format::Text => answer.text(),
        Format::Csv => answer.csv(),
        Format::Json => output::json(&answer.json()),
    })?;
    answer.verdict().map_err(failure)
}

fn question(flags: &CapacityPlan) -> Result<capacity::Capacity, Failure> {
    let volumes = list(&flags.volumes)?;
    if volumes.is_empty() {
        let message = format!("{}: there is no volume in this list", flags.volumes.display());
        return Err(Failure::new(message).exit(Exit::Input));
    }
    let kinds = match &flags.prices {
        None => calibrated(flags)?,
        Some(book) => of_book(&price_book::load(book)?, network(flags)).map_err(failure)?,
    };
    capacity::Capacity::new(volumes, &kinds, flags.next.as_deref()).map_err(failure)
}

/// Reads the volumes of a file.
fn list(path: &Path) -> Result<Vec<Listed>, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", path.display())).exit(Exit::Input);
    let input = super::input(path).map_err(|error| failed(error.to_string()))?;
    volumes::read(&mut BufReader::new(input), Rules::newest())
        .map_err(|broken| failed(broken.to_string()))
}

/// Returns the bandwidth of a server's network in each direction, in bytes a second.
fn network(flags: &CapacityPlan) -> Option<u64> {
    flags.network.map(|mibps| u64::from(mibps) * MIB)
}

/// Returns the devices of calibration records, one of each.
fn calibrated(flags: &CapacityPlan) -> Result<Vec<(Named, u32)>, Failure> {
    flags.calibration.iter().map(|path| Ok((calibrated_device(flags, path)?, 1))).collect()
}

/// Returns the device of a calibration record.
fn calibrated_device(flags: &CapacityPlan, path: &Path) -> Result<Named, Failure> {
    let name = path.display().to_string();
    let record = Record::load(path).map_err(|failure| failure.exit(Exit::Input))?;
    let record = record.ok_or_else(|| {
        Failure::new(format!("{name}: there is no such calibration record"))
            .exit(Exit::NotFound)
            .hint("`evenkeel calibrate` writes calibration.json into the data folder")
    })?;
    let of_record = record.device.bytes.map(|bytes| bytes / GIB);
    let space_gib = flags.space.or(of_record).ok_or_else(|| {
        let message = format!("{name}: the record does not say how large its device is");
        Failure::new(message).exit(Exit::Usage).hint("name it with --space GIB")
    })?;
    let calibration = record.calibration();
    let domain = match flags.cores {
        Some(cores) => calibration.domain_floor(cores),
        None => DomainFloor::UNLIMITED,
    };
    let device = Device {
        floor: record.sold_floor(),
        domain: with_network(network(flags), domain),
        sold_share_ppm: SOLD_SHARE_PPM,
        space_gib,
        types: None,
    };
    Ok(Named { name, device, monthly: None })
}
