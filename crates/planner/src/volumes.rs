//! Reads a list of volumes in CSV: the output of `evenkeel volume ls -o csv`, or planned volumes.

#[cfg(test)]
mod tests;

use evenkeel_core::convert::saturating;
use std::io::BufRead;

use evenkeel_core::volume::{
    InvalidSpec, Rules, ThroughputRule, VolumeRequest, VolumeSpec, VolumeType,
};

use crate::quantity::{self, Measure};
use crate::read::{Broken, Lines, cells, refuse_twice, skip_mark};

/// Maximum number of volumes in a list, including those of `count`.
pub const VOLUMES_MAX: usize = 100_000;

/// A volume of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its id, or a name.
    pub name: String,
    /// Its type and size.
    pub spec: VolumeSpec,
}

/// The columns of a list, each with its names.
const NAME: [&str; 2] = ["volume", "name"];
const TYPE: [&str; 2] = ["type", "volume_type"];
const GIB: [&str; 2] = ["gib", "size_gib"];
const IOPS: [&str; 1] = ["iops"];
const MIBPS: [&str; 2] = ["mib_s", "throughput_mibps"];
const COUNT: [&str; 1] = ["count"];

const COLUMNS: [&[&str]; 6] = [&NAME, &TYPE, &GIB, &IOPS, &MIBPS, &COUNT];

/// The indices of the columns. Others are ignored.
struct Columns {
    name: Option<usize>,
    volume_type: usize,
    gib: usize,
    iops: Option<usize>,
    mibps: Option<usize>,
    count: Option<usize>,
}

/// Reads a list. The first line has the titles of the columns: `type` and `gib` are mandatory;
/// `volume`, `iops`, `mib_s` and `count` are optional.
///
/// # Errors
/// Returns [`Broken`] with the line, the text found and the expected one.
pub fn read(input: &mut dyn BufRead, rules: &Rules) -> Result<Vec<Listed>, Broken> {
    skip_mark(input)?;
    let mut lines = Lines::new(input);
    let mut columns: Option<Columns> = None;
    let mut all = Vec::new();
    while let Some((number, line)) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let (cells, _) = cells(line, ',');
        match &columns {
            None => columns = Some(Columns::of(number, line, &cells)?),
            Some(columns) => columns.volumes(number, &cells, rules, &mut all)?,
        }
    }
    match columns {
        Some(_) => Ok(all),
        None => Err(Broken::whole("", "a list of volumes in CSV with the columns type and gib")),
    }
}

/// Resolves a volume as a list shows it: with its IOPS and throughput, even if they are not sold
/// but follow from its size.
///
/// # Errors
/// Returns [`InvalidSpec`] if the rules have no such volume.
pub fn resolve(rules: &Rules, shown: VolumeRequest) -> Result<VolumeSpec, InvalidSpec> {
    let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, .. } = shown;
    let of_type = rules.of(volume_type);
    let sells_iops = of_type.is_some_and(|rules| rules.iops_max(size_gib).is_some());
    let sells_bytes =
        of_type.is_some_and(|rules| matches!(rules.throughput, ThroughputRule::Provisioned { .. }));
    rules.resolve(&VolumeRequest {
        iops: iops.filter(|_| sells_iops),
        throughput_mibps: throughput_mibps.filter(|_| sells_bytes),
        ..shown
    })
}

impl Columns {
    fn of(number: u64, line: &str, titles: &[String]) -> Result<Self, Broken> {
        refuse_twice(number, titles, |title| {
            let title = title.trim().to_lowercase();
            let index = COLUMNS.iter().position(|names| names.contains(&title.as_str()))?;
            // Listings have an id and a name.
            Some((index, Some(title).filter(|_| index == 0)))
        })?;
        let place = |names: &[&str]| {
            let is_it = |title: &String| names.contains(&title.trim().to_lowercase().as_str());
            titles.iter().position(is_it)
        };
        let needed = |names: &[&str]| {
            place(names).ok_or_else(|| {
                let expected = format!(
                    "the titles of columns, among them {}: `evenkeel volume ls -o csv` prints such \
                     a list",
                    names.join(" or ")
                );
                Broken::at(number, line, expected)
            })
        };
        Ok(Self {
            name: place(&NAME),
            volume_type: needed(&TYPE)?,
            gib: needed(&GIB)?,
            iops: place(&IOPS),
            mibps: place(&MIBPS),
            count: place(&COUNT),
        })
    }

    /// Reads the volumes of one line.
    fn volumes(
        &self,
        number: u64,
        cells: &[String],
        rules: &Rules,
        all: &mut Vec<Listed>,
    ) -> Result<(), Broken> {
        let cell = |at: Option<usize>| {
            at.and_then(|index| cells.get(index)).map(|cell| cell.trim()).unwrap_or_default()
        };
        let whole = |at: Option<usize>, measure: Measure| match cell(at) {
            "" | "-" => Ok(None),
            text => {
                let found = quantity::whole(text, measure, None);
                let number = found.map_err(|expected| Broken::at(number, text, expected))?;
                Ok(Some(saturating::<_, u32>(number)))
            }
        };
        let text = cell(Some(self.volume_type));
        let volume_type: VolumeType = text.parse().map_err(|error| {
            Broken::at(number, text, format!("a volume type, {error}").replace(", expected", ":"))
        })?;
        let gib = whole(Some(self.gib), Measure::Gib)?;
        let size_gib = gib.ok_or_else(|| Broken::at(number, "", "a size in whole GiB"))?;
        let shown = VolumeRequest {
            volume_type,
            size_gib,
            iops: whole(self.iops, Measure::Iops)?,
            throughput_mibps: whole(self.mibps, Measure::Mibps)?,
            multi_attach: false,
        };
        let spec = resolve(rules, shown).map_err(|error| {
            Broken::at(number, &cells.join(","), format!("a volume that can be: {error}"))
        })?;
        let count = match cell(self.count) {
            "" | "-" => 1,
            text => text
                .parse::<u32>()
                .map_err(|_| Broken::at(number, text, "a whole number of volumes, or nothing"))?,
        };
        if all.len().saturating_add(count as usize) > VOLUMES_MAX {
            let found = (all.len() as u64 + u64::from(count)).to_string();
            return Err(Broken::at(number, &found, format!("at most {VOLUMES_MAX} volumes")));
        }
        let name = match cell(self.name) {
            "" => format!("line {number}"),
            name => name.to_owned(),
        };
        for copy in 1..=count {
            let name = if count > 1 { format!("{name} {copy}") } else { name.clone() };
            all.push(Listed { name, spec });
        }
        Ok(())
    }
}
