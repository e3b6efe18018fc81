//! Lists of volumes: tables with a header, answers of DescribeVolumes, and the output of
//! `evenkeel volume ls`. Columns and fields are known by their names, in any order; others are
//! skipped.
//!
//! A volume that cannot be read is refused with its place and the reason, and the others are read.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;
use std::str::FromStr;

use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeSpec, VolumeType};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::exports;
use crate::quantity::{self, Measure};
use crate::read::{
    Broken, Lines, NAMES_MAX, cells, first_byte, json_broken, refuse_twice, skip_mark, slurp,
};
use crate::regions;
use crate::used::{Source, Used};
use crate::volumes;

const JSON_FORM: &str = "volumes as DescribeVolumes or `evenkeel volume ls -o json` returns them";
/// The most characters of an id.
const ID_CHARS_MAX: usize = 64;
/// The most characters of a name or of hosts.
const TEXT_CHARS_MAX: usize = 256;

/// A volume of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its properties.
    pub spec: VolumeSpec,
    /// Whether it is attached; `None` if the list does not say.
    pub attached: Option<bool>,
    /// The instances that it is attached to, as the list writes them.
    pub attached_to: Option<String>,
    /// Whether an instance boots from it, as the list or its device name says.
    pub boots: bool,
    /// Why it cannot be judged now.
    pub unsettled: Option<String>,
    /// The region whose endpoint takes its commands; `None` for a volume of an Evenkeel server.
    pub region: Option<String>,
    /// The region whose prices apply: that of its Local Zone, if it is in one.
    pub price_region: String,
    /// Its availability zone; `None` if the list does not say.
    pub zone: Option<String>,
    /// The name of its device at its instance, as `/dev/sdf`.
    pub device: Option<String>,
    /// The type of its instance, if the list says so.
    pub instance_type: Option<String>,
    /// The value by which it is grouped; `None` if it has none.
    pub group: Option<String>,
    /// Its used space, if it is known.
    pub used: Option<Used>,
}

impl Volume {
    /// Returns the type of its instance, if it is known and its limits are published.
    #[must_use]
    pub fn instance(&self) -> Option<&'static InstanceType> {
        instance::by_name(self.instance_type.as_ref()?)
    }
}

/// A property by whose values volumes are added up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupBy {
    /// The value of a tag with this key.
    Tag(String),
    /// The account.
    Account,
    /// The availability zone.
    Zone,
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(key) => write!(f, "tag:{key}"),
            Self::Account => f.write_str("account"),
            Self::Zone => f.write_str("zone"),
        }
    }
}

impl FromStr for GroupBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("tag:")) {
            ("account", _) => Ok(Self::Account),
            ("zone", _) => Ok(Self::Zone),
            (_, Some(key)) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
            _ => Err("expected tag:NAME, account or zone".to_owned()),
        }
    }
}

impl GroupBy {
    /// Returns whether a column has the values of the tag: `tag:Team`, `Tags/Team` or `Team`.
    fn is_tag_column(&self, title: &str) -> bool {
        let Self::Tag(key) = self else { return false };
        let title = title.trim();
        let plain = ["tag:", "tag/", "tags:", "tags/", "tags."]
            .iter()
            .find(|prefix| starts_with_ignoring_case(title, prefix))
            .map_or(title, |prefix| title[prefix.len()..].trim());
        plain == key
    }
}

fn starts_with_ignoring_case(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// Information for a reader that a list may lack.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options<'a> {
    /// The region of volumes of which the list names none. A volume of another region is refused.
    pub region: Option<&'a str>,
    /// The property by whose values volumes are added up.
    pub group_by: Option<&'a GroupBy>,
    /// Whether one page of an answer is taken for all of them.
    pub allows_partial: bool,
}

/// A volume that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its place in the list, as `line 7` or `Volumes[3]`.
    pub place: String,
    /// Its id, if it has one.
    pub id: Option<String>,
    /// The reason.
    pub reason: Reason,
}

/// Why a volume is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its region is not known; its zone, if it has one.
    NoRegion(Option<String>),
    /// A sentence.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRegion(zone) => {
                f.write_str("the list does not say in which region it is")?;
                if let Some(zone) = zone {
                    write!(f, " (its zone {zone:?} is none of AWS)")?;
                }
                f.write_str(": name it with --region")
            }
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Self {
        Self::Other(reason.to_owned())
    }
}

/// The volumes of a text.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct List {
    /// Those that are read, in their order.
    pub volumes: Vec<Volume>,
    /// Those that are refused.
    pub refused: Vec<Refused>,
}

/// A property of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Field {
    Id,
    Name,
    Type,
    Size,
    Iops,
    Throughput,
    State,
    Attached,
    Device,
    Boots,
    MultiAttach,
    Zone,
    Region,
    Account,
    InstanceType,
    /// The value of the tag by which volumes are grouped.
    Tag,
    /// Gibibytes in use by file systems.
    Used,
    /// Bytes in use by file systems.
    UsedBytes,
}

/// Names of columns and fields, in lower case and with letters and digits alone.
const NAMES: [(&str, Field); 50] = [
    ("volumeid", Field::Id),
    ("volume", Field::Id),
    ("id", Field::Id),
    ("name", Field::Name),
    ("tagname", Field::Name),
    ("tagsname", Field::Name),
    ("volumetype", Field::Type),
    ("type", Field::Type),
    ("size", Field::Size),
    ("gib", Field::Size),
    ("iops", Field::Iops),
    ("throughput", Field::Throughput),
    ("mibps", Field::Throughput),
    ("mibs", Field::Throughput),
    ("state", Field::State),
    ("volumestate", Field::State),
    ("attachedto", Field::Attached),
    ("attachedinstance", Field::Attached),
    ("attachedinstances", Field::Attached),
    ("attachedresource", Field::Attached),
    ("attachedresources", Field::Attached),
    ("attachments", Field::Attached),
    ("instance", Field::Attached),
    ("instanceid", Field::Attached),
    ("hostid", Field::Attached),
    ("device", Field::Device),
    ("devicename", Field::Device),
    ("boot", Field::Boots),
    ("boots", Field::Boots),
    ("root", Field::Boots),
    ("isroot", Field::Boots),
    ("multiattach", Field::MultiAttach),
    ("multiattachenabled", Field::MultiAttach),
    ("availabilityzone", Field::Zone),
    ("zone", Field::Zone),
    ("az", Field::Zone),
    ("region", Field::Region),
    ("regionname", Field::Region),
    ("awsregion", Field::Region),
    ("account", Field::Account),
    ("accountid", Field::Account),
    ("accountname", Field::Account),
    ("awsaccount", Field::Account),
    ("awsaccountid", Field::Account),
    ("ownerid", Field::Account),
    ("instancetype", Field::InstanceType),
    ("used", Field::Used),
    ("usedgib", Field::Used),
    ("usedbytes", Field::UsedBytes),
    ("bytesused", Field::UsedBytes),
];

impl Field {
    fn of(name: &str) -> Option<Self> {
        Self::with_unit(name).map(|(field, _)| field)
    }

    /// Returns the field that a name means, and the unit that it has, as in `Size (TiB)`.
    fn with_unit(name: &str) -> Option<(Self, Option<(u64, u64)>)> {
        let plain = letters(name);
        let known = |plain: &str| NAMES.iter().find(|(known, _)| *known == plain);
        if let Some((_, field)) = known(&plain) {
            return Some((*field, None));
        }
        NAMES.iter().find_map(|(known, field)| {
            let unit = plain.strip_prefix(known)?;
            let unit = unit.strip_prefix("in").unwrap_or(unit);
            let measure = field.measure()?;
            // The name as it was written tells MB from Mb.
            let written = name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let written = written.get(written.len().saturating_sub(unit.len())..);
            let written = written.filter(|written| written.eq_ignore_ascii_case(unit));
            let unit = measure.unit(written.unwrap_or(unit))?;
            Some((*field, Some(unit)))
        })
    }

    /// Returns the measure of a column's numbers, if it has numbers.
    const fn measure(self) -> Option<Measure> {
        match self {
            Self::Size | Self::Used => Some(Measure::Gib),
            Self::Iops => Some(Measure::Iops),
            Self::Throughput => Some(Measure::Mibps),
            _ => None,
        }
    }
}

/// A cell of a list.
struct Cell {
    text: String,
    /// The name of its column, for errors.
    column: String,
    /// The unit that the name of its column has.
    unit: Option<(u64, u64)>,
}

/// The cells of a volume, without empty ones.
type Fields = BTreeMap<Field, Cell>;

/// Reads a list.
///
/// # Errors
/// [`Broken`] if the text is no list of volumes, or has no volume.
pub fn read(input: &mut dyn BufRead, rules: &Rules, options: Options<'_>) -> Result<List, Broken> {
    let mut reading = Reading { rules, options, list: List::default(), places: BTreeMap::new() };
    skip_mark(input)?;
    if let Some(table) = exports::as_table(input)? {
        of_table(&mut table.as_bytes(), &mut reading)?;
        return Ok(reading.list);
    }
    match first_byte(input)? {
        Some(b'{' | b'[') => of_json(input, &mut reading)?,
        _ => of_table(input, &mut reading)?,
    }
    let list = reading.list;
    if list.volumes.is_empty() && list.refused.is_empty() {
        Err(Broken::whole("no volume", "at least one"))
    } else {
        Ok(list)
    }
}

/// A list that is being read.
struct Reading<'a> {
    rules: &'a Rules,
    options: Options<'a>,
    list: List,
    /// The place of each volume in the list.
    places: BTreeMap<String, String>,
}

impl Reading<'_> {
    fn add(&mut self, place: String, fields: &Fields) -> Result<(), Broken> {
        if self.list.volumes.len() + self.list.refused.len() >= NAMES_MAX {
            let expected = format!("at most {NAMES_MAX} volumes; split the list");
            return Err(Broken::whole(&place, expected));
        }
        let id = fields.get(&Field::Id).map(|cell| cell.text.clone());
        let volume = volume(fields, self.rules, self.options).and_then(|volume| {
            match self.places.get(&volume.id) {
                Some(before) => Err(format!("it stands at {before} already").into()),
                None => Ok(volume),
            }
        });
        match volume {
            Ok(volume) => {
                self.places.insert(volume.id.clone(), place);
                self.list.volumes.push(volume);
            }
            Err(reason) => self.refuse(place, id, reason),
        }
        Ok(())
    }

    fn refuse(&mut self, place: String, id: Option<String>, reason: Reason) {
        let id = id.map(|id| cut(&id, ID_CHARS_MAX));
        self.list.refused.push(Refused { place, id, reason });
    }
}

/// Returns the letters and digits of a text, in lower case.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// Returns the beginning of a text.
fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

/// Returns whether a character may be in a word of a command.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:".contains(c)
}

/// Makes a volume of its fields, or returns why they are none.
fn volume(fields: &Fields, rules: &Rules, options: Options<'_>) -> Result<Volume, Reason> {
    let text = |field: Field| fields.get(&field).map(|cell| cell.text.as_str());
    let id = text(Field::Id).ok_or("it has no id: expected vol-... in the column VolumeId")?;
    if id.len() > ID_CHARS_MAX || id.starts_with('-') || !id.chars().all(is_plain) {
        return Err(format!(
            "the id {:?}: expected at most {ID_CHARS_MAX} letters, digits, '-', '_', '.' and ':'",
            cut(id, ID_CHARS_MAX)
        )
        .into());
    }
    let type_text = text(Field::Type).ok_or("it has no type: expected gp3 or another one")?;
    let volume_type: VolumeType = type_text
        .to_ascii_lowercase()
        .parse()
        .map_err(|error| format!("the type {:?}: {error}", cut(type_text, ID_CHARS_MAX)))?;
    let size_gib = number(fields, Field::Size)?.ok_or("it has no size in GiB")?;
    let iops = number(fields, Field::Iops)?;
    let throughput_mibps = number(fields, Field::Throughput)?;
    let multi_attach = yes(fields, Field::MultiAttach, "Multi-Attach")?.unwrap_or(false);
    let shown = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    let spec = volumes::resolve(rules, shown)
        .map_err(|error| format!("by the rules of {} it cannot be: {error}", rules.date()))?;
    let attached_to = text(Field::Attached).map(|hosts| cut(hosts, TEXT_CHARS_MAX));
    let (attached, unsettled) = state(text(Field::State), attached_to.is_some())?;
    let boots = yes(fields, Field::Boots, "boots")?;
    let zone = text(Field::Zone);
    let regions = Regions::of(text(Field::Region), zone, options.region)?;
    let short = |field: Field| text(field).map(|text| cut(text, TEXT_CHARS_MAX));
    let group = match options.group_by {
        Some(GroupBy::Tag(key)) if key == "Name" => short(Field::Name),
        Some(GroupBy::Tag(_)) => short(Field::Tag),
        Some(GroupBy::Account) => short(Field::Account),
        Some(GroupBy::Zone) => short(Field::Zone),
        None => None,
    };
    Ok(Volume {
        id: id.to_owned(),
        name: short(Field::Name),
        spec,
        attached,
        boots: boots.unwrap_or_else(|| boots_by_device(fields)),
        attached_to,
        unsettled,
        region: regions.endpoint,
        price_region: regions.prices,
        zone: zone.map(str::to_owned),
        device: short(Field::Device),
        instance_type: short(Field::InstanceType),
        group,
        used: used_bytes(fields)?.map(|bytes| Used { bytes, source: Source::FileSystem }),
    })
}

/// Returns the bytes in use by the file systems of a volume, of a column in GiB or in bytes.
fn used_bytes(fields: &Fields) -> Result<Option<u64>, String> {
    if let Some(cell) = fields.get(&Field::UsedBytes) {
        let number = cell.text.parse().map_err(|_| {
            let text = cut(&cell.text, ID_CHARS_MAX);
            format!("column {}: {text:?}: expected a number of bytes", cell.column)
        });
        return number.map(Some);
    }
    let Some(cell) = fields.get(&Field::Used) else { return Ok(None) };
    let bytes = quantity::bytes(&cell.text, cell.unit).map_err(|expected| {
        let text = cut(&cell.text, ID_CHARS_MAX);
        format!("column {}: {text:?}: expected {expected}", cell.column)
    });
    bytes.map(Some)
}

/// The regions of a volume.
struct Regions {
    endpoint: Option<String>,
    prices: String,
}

impl Regions {
    /// Returns the regions of a volume in a zone. `asked` is the region of `--region`: it applies
    /// if the list names neither a region nor a zone of AWS, to prices alone for a zone of an
    /// Evenkeel server. A volume of another region is refused.
    fn of(named: Option<&str>, zone: Option<&str>, asked: Option<&str>) -> Result<Self, Reason> {
        let mut names = [named, zone].into_iter().flatten();
        if let Some(bad) = names.find(|name| !name.chars().all(is_plain)) {
            return Err(format!(
                "the zone {:?}: expected the name of a zone or a region, such as eu-west-1a",
                cut(bad, ID_CHARS_MAX)
            )
            .into());
        }
        let of_zone = zone.and_then(regions::of_zone);
        if let (Some(named), Some(of_zone), Some(zone)) = (named, of_zone, zone)
            && regions::endpoint(named) != regions::endpoint(of_zone)
        {
            let [zone, named] = [zone, named].map(|name| cut(name, ID_CHARS_MAX));
            return Err(format!("its zone {zone} is not in its region {named}").into());
        }
        let known = of_zone.or(named);
        if let (Some(asked), Some(known)) = (asked, known)
            && regions::endpoint(asked) != regions::endpoint(known)
        {
            let found = cut(zone.filter(|_| of_zone.is_some()).unwrap_or(known), ID_CHARS_MAX);
            let kind = if of_zone.is_some() { "zone" } else { "region" };
            return Err(format!(
                "its {kind} {found} is not in {asked}, which --region names: leave --region out, \
                 or name {}",
                cut(regions::endpoint(known), ID_CHARS_MAX)
            )
            .into());
        }
        let unknown = || Reason::NoRegion(zone.map(|zone| cut(zone, ID_CHARS_MAX)));
        let prices = known.or(asked).ok_or_else(unknown)?;
        let endpoint = known.or(asked.filter(|_| zone.is_none())).map(regions::endpoint);
        Ok(Self {
            endpoint: endpoint.map(|region| cut(region, ID_CHARS_MAX)),
            prices: cut(prices, ID_CHARS_MAX),
        })
    }
}

/// Returns whether a volume is attached, and why it cannot be judged now.
fn state(text: Option<&str>, has_hosts: bool) -> Result<(Option<bool>, Option<String>), String> {
    Ok(match text.map(letters).as_deref() {
        Some("inuse") => (Some(true), None),
        Some("available") if !has_hosts => (Some(false), None),
        Some("available") | None => (has_hosts.then_some(true), None),
        Some(word @ ("creating" | "error")) => {
            (has_hosts.then_some(true), Some(format!("its state is {word}")))
        }
        Some("deleting" | "deleted") => return Err("it is being deleted".to_owned()),
        Some(word) => {
            return Err(format!(
                "the state {:?}: expected in-use, available, creating, deleting or error",
                cut(word, ID_CHARS_MAX)
            ));
        }
    })
}

/// Returns whether a device has the name of a root device, which is the only hint of a list.
fn boots_by_device(fields: &Fields) -> bool {
    let has = |field: Field| {
        fields.get(&field).is_some_and(|cell| {
            let mut words = cell.text.split(|c: char| c.is_whitespace() || ",;()".contains(c));
            words.any(|word| matches!(word, "/dev/xvda" | "/dev/sda1" | "/dev/sda"))
        })
    };
    has(Field::Device) || has(Field::Attached)
}

/// Returns the number of a cell in whole units of its measure.
fn number(fields: &Fields, field: Field) -> Result<Option<u32>, String> {
    let Some(cell) = fields.get(&field) else { return Ok(None) };
    let measure = field.measure().expect("invariant: a column of numbers");
    let found = quantity::whole(&cell.text, measure, cell.unit).and_then(|number| {
        u32::try_from(number).map_err(|_| format!("at most {} of {}", u32::MAX, measure.expected()))
    });
    found.map(Some).map_err(|expected| {
        format!("column {}: {:?}: expected {expected}", cell.column, cut(&cell.text, ID_CHARS_MAX))
    })
}

fn yes(fields: &Fields, field: Field, what: &str) -> Result<Option<bool>, String> {
    let Some(text) = fields.get(&field).map(|cell| &cell.text) else { return Ok(None) };
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" | "enabled" => Ok(Some(true)),
        "false" | "no" | "0" | "disabled" => Ok(Some(false)),
        _ => Err(format!("{what} {:?}: expected true or false", cut(text, ID_CHARS_MAX))),
    }
}

/// Adds the value of a column, unless it stands for none.
fn put(fields: &mut Fields, field: Field, value: &str, unit: Option<(u64, u64)>, column: &str) {
    let value = value.trim();
    let is_none = |none: &&str| value.eq_ignore_ascii_case(none);
    if !["", "-", "–", "null", "none", "nan", "n/a"].iter().any(is_none) {
        let text = value.to_owned();
        let column = cut(column.trim(), ID_CHARS_MAX);
        fields.entry(field).or_insert(Cell { text, column, unit });
    }
}

fn of_table(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), Broken> {
    let mut lines = Lines::new(input);
    let mut header: Option<(char, Vec<Option<Heading>>)> = None;
    while let Some((number, line)) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let Some((separator, columns)) = &header else {
            header = Some(columns_of(number, line, reading.options.group_by)?);
            continue;
        };
        let place = format!("line {number}");
        let (cells, is_closed) = cells(line, *separator);
        if !is_closed {
            let reason = "a quote is not closed on the line: expected \"text\"".to_owned();
            reading.refuse(place, None, reason.into());
            continue;
        }
        if cells.len() != columns.len() {
            let found = cells.len();
            let wanted = columns.len();
            let reason = format!("it has {found} cells: expected {wanted}, as the header has");
            let is_id = |heading: &Heading| heading.field == Field::Id;
            let id = columns.iter().position(|heading| heading.as_ref().is_some_and(is_id));
            reading.refuse(place, id.and_then(|index| cells.get(index)).cloned(), reason.into());
            continue;
        }
        let mut fields = Fields::new();
        for (heading, cell) in columns.iter().zip(&cells) {
            if let Some(Heading { field, unit, name }) = heading {
                put(&mut fields, *field, cell, *unit, name);
            }
        }
        reading.add(place, &fields)?;
    }
    Ok(())
}

/// A column that is known.
struct Heading {
    field: Field,
    /// The unit of its numbers, if its name says one.
    unit: Option<(u64, u64)>,
    name: String,
}

/// Returns the separator of cells, and the columns.
fn columns_of(
    number: u64,
    line: &str,
    group_by: Option<&GroupBy>,
) -> Result<(char, Vec<Option<Heading>>), Broken> {
    let separators = [',', '\t', ';'];
    let count = |separator: &char| line.matches(*separator).count();
    let separator = separators.into_iter().rev().max_by_key(count).unwrap_or(',');
    let (cells, _) = cells(line, separator);
    // Two names of one column may both be there: the first with a value counts.
    refuse_twice(number, &cells, |title| Field::of(title).map(|_| letters(title)))?;
    refuse_units(number, &cells)?;
    let heading = |cell: &String| {
        let is_group = group_by.is_some_and(|group_by| group_by.is_tag_column(cell));
        let known = Field::with_unit(cell);
        // A column that is known keeps its meaning.
        let (field, unit) = known.or(is_group.then_some((Field::Tag, None)))?;
        Some(Heading { field, unit, name: cell.clone() })
    };
    let columns: Vec<Option<Heading>> = cells.iter().map(heading).collect();
    for (needed, name) in
        [(Field::Id, "VolumeId"), (Field::Type, "VolumeType"), (Field::Size, "Size")]
    {
        if !columns.iter().flatten().any(|heading| heading.field == needed) {
            let expected = format!(
                "a header with VolumeId, VolumeType and Size, and as they are known Iops, \
                 Throughput, State and AttachedTo; there is no column {name}"
            );
            return Err(Broken::at(number, line, expected));
        }
    }
    Ok((separator, columns))
}

/// Refuses a column of numbers whose unit is not known: its numbers would be read in another unit,
/// or be the defaults of the type.
fn refuse_units(number: u64, titles: &[String]) -> Result<(), Broken> {
    for title in titles {
        let Some((name, _)) = title.split_once(['(', '[']) else { continue };
        let measure = Field::of(name).and_then(Field::measure);
        if let Some(measure) = measure.filter(|_| Field::with_unit(title).is_none()) {
            let expected = format!("a column of {}", measure.expected());
            return Err(Broken::at(number, title, expected));
        }
    }
    Ok(())
}

fn of_json(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), Broken> {
    let allows_partial = reading.options.allows_partial;
    let text = slurp(input, JSON_FORM)?;
    let mut answer = Answer { reading, is_partial: false, has_volumes: false, over: None };
    let mut deserializer = serde_json::Deserializer::from_slice(&text);
    let read = deserializer.deserialize_any(&mut answer).and_then(|()| deserializer.end());
    if let Some(over) = answer.over {
        return Err(over);
    }
    let is_partial = answer.is_partial;
    let has_volumes = answer.has_volumes;
    read.map_err(|error| json_broken(&error, JSON_FORM))?;
    if !has_volumes {
        return Err(Broken::whole("a JSON text without Volumes", JSON_FORM));
    }
    if is_partial && !allows_partial {
        return Err(Broken::whole(
            "NextToken",
            "an answer with all pages; ask on with --starting-token, or allow a part",
        ));
    }
    Ok(())
}

/// An answer, of which one volume at a time is in memory as JSON.
struct Answer<'a, 'b> {
    reading: &'a mut Reading<'b>,
    is_partial: bool,
    has_volumes: bool,
    over: Option<Broken>,
}

impl<'de> Visitor<'de> for &mut Answer<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(JSON_FORM)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "Volumes" | "volumes" => map.next_value_seed(&mut *self)?,
                "NextToken" | "nextToken" => {
                    let token: Value = map.next_value()?;
                    self.is_partial = token.as_str().is_some_and(|token| !token.is_empty());
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.has_volumes = true;
        let mut index = 0_u32;
        while let Some(item) = items.next_element::<Value>()? {
            let place = format!("Volumes[{index}]");
            let fields = fields_of(&item, self.reading.options.group_by);
            if let Err(over) = self.reading.add(place, &fields) {
                self.over = Some(over);
                return Err(serde::de::Error::custom("too many volumes"));
            }
            index += 1;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Answer<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// Returns the fields of an item of an answer.
fn fields_of(item: &Value, group_by: Option<&GroupBy>) -> Fields {
    let mut fields = Fields::new();
    let sought = match group_by {
        Some(GroupBy::Tag(key)) => key.as_str(),
        _ => "",
    };
    for (key, value) in item.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("Attachments" | "attachments", Value::Array(all)) => attachments(&mut fields, all),
            ("Tags", Value::Array(tags)) => {
                for tag in tags {
                    let part = |name: &str| tag.get(name).and_then(Value::as_str);
                    let value = part("Value").unwrap_or_default();
                    if part("Key") == Some("Name") {
                        put(&mut fields, Field::Name, value, None, key);
                    }
                    if part("Key") == Some(sought) {
                        put(&mut fields, Field::Tag, value, None, key);
                    }
                }
            }
            ("tags", Value::Object(tags)) => {
                for (field, name) in [(Field::Name, "Name"), (Field::Tag, sought)] {
                    let value = tags.get(name).and_then(Value::as_str);
                    put(&mut fields, field, value.unwrap_or_default(), None, key);
                }
            }
            (_, Value::String(text)) => put_named(&mut fields, key, text),
            (_, Value::Number(_) | Value::Bool(_)) => {
                put_named(&mut fields, key, &value.to_string());
            }
            _ => {}
        }
    }
    fields
}

fn put_named(fields: &mut Fields, key: &str, value: &str) {
    if let Some((field, unit)) = Field::with_unit(key) {
        put(fields, field, value, unit, key);
    }
}

fn attachments(fields: &mut Fields, all: &[Value]) {
    let text = |attachment: &Value, keys: [&str; 2]| -> Option<String> {
        let value = keys.iter().find_map(|key| attachment.get(key)?.as_str());
        value.map(str::to_owned)
    };
    let joined = |keys: [&str; 2]| {
        let each: Vec<String> = all.iter().filter_map(|it| text(it, keys)).collect();
        each.join(" ")
    };
    put(fields, Field::Attached, &joined(["InstanceId", "host_id"]), None, "Attachments");
    put(fields, Field::Device, &joined(["Device", "device"]), None, "Attachments");
}

#[cfg(test)]
mod tests;
