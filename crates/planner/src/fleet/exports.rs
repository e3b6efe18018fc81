//! Exports of AWS's own advisers as lists of volumes: Compute Optimizer's recommendations, and
//! Trusted Advisor's checks of EBS volumes, as CSV and as JSON.
//!
//! Their advice is not used; the present volumes are. Each export becomes the table that [`list`]
//! reads, a volume a line, so that the lines of a CSV file keep their numbers.
//!
//! Sources: "Exported files" of the Compute Optimizer user guide, GetEBSVolumeRecommendations, and
//! the report columns of the check "Underutilized Amazon EBS Volumes".
//!
//! [`list`]: super::list

use std::fmt::Write as _;
use std::io::BufRead;

use serde_json::Value;

use crate::read::{Broken, cells, json_broken, slurp};

const FORM: &str = "an export of Compute Optimizer or Trusted Advisor";
const HEADER: &str = "VolumeId,VolumeType,Size,Iops,Throughput,Region,AvailabilityZone,Root,Name\n";
/// The columns of Trusted Advisor's check in JSON, which has no names.
const CHECK: [Column; 5] = [Column::Place, Column::Id, Column::Name, Column::Type, Column::Size];

/// A volume of an export, in words.
#[derive(Default)]
struct Row {
    id: String,
    volume_type: String,
    size: String,
    iops: String,
    throughput: String,
    /// A region or a zone.
    place: String,
    root: String,
    name: String,
}

/// A column of an export.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// The id of a volume, or its ARN.
    Id,
    Type,
    Size,
    Iops,
    Throughput,
    /// A region or a zone.
    Place,
    Root,
    Name,
}

impl Column {
    /// Returns the column of a title or a key. Letters alone count.
    fn of(title: &str) -> Option<Self> {
        let plain: String = title.chars().filter(char::is_ascii_alphanumeric).collect();
        Some(match plain.to_ascii_lowercase().as_str() {
            "volumearn" | "volumeid" => Self::Id,
            "currentconfigurationvolumetype" | "volumetype" => Self::Type,
            "currentconfigurationvolumesize" | "volumesize" => Self::Size,
            "currentconfigurationvolumebaselineiops" | "volumebaselineiops" => Self::Iops,
            "currentconfigurationvolumebaselinethroughput" | "volumebaselinethroughput" => {
                Self::Throughput
            }
            "regionaz" | "region" => Self::Place,
            "rootvolume" | "currentconfigurationrootvolume" => Self::Root,
            "volumename" => Self::Name,
            _ => return None,
        })
    }
}

impl Row {
    fn set(&mut self, column: Column, value: &str) {
        let value = value.trim();
        match column {
            Column::Id => {
                // arn:aws:ec2:us-east-1:123456789012:volume/vol-0123
                value.rsplit('/').next().unwrap_or_default().clone_into(&mut self.id);
                if let Some(region) =
                    value.strip_prefix("arn:").and_then(|arn| arn.split(':').nth(2))
                {
                    region.clone_into(&mut self.place);
                }
            }
            Column::Type => self.volume_type = type_word(value),
            Column::Size => value.clone_into(&mut self.size),
            Column::Iops => value.clone_into(&mut self.iops),
            Column::Throughput => value.clone_into(&mut self.throughput),
            Column::Place if !value.is_empty() => value.clone_into(&mut self.place),
            Column::Place => {}
            Column::Root => value.clone_into(&mut self.root),
            Column::Name => value.clone_into(&mut self.name),
        }
    }

    /// Appends its line of the table.
    fn write(&self, table: &mut String) {
        // Of the other types, the figures follow from the size.
        let has_iops = matches!(self.volume_type.as_str(), "gp3" | "io1" | "io2");
        let iops = if has_iops { self.iops.as_str() } else { "" };
        let throughput = if self.volume_type == "gp3" { self.throughput.as_str() } else { "" };
        let is_zone = self.place.ends_with(|c: char| c.is_ascii_lowercase());
        let [region, zone] = if is_zone { ["", &self.place] } else { [&self.place, ""] };
        let Self { id, volume_type, size, root, .. } = self;
        let name = self.name.replace('"', "\"\"");
        let cells = [id, volume_type, size, iops, throughput, region, zone, root, &*name];
        let quoted: Vec<String> = cells.iter().map(|cell| format!("\"{cell}\"")).collect();
        let _ = writeln!(table, "{}", quoted.join(","));
    }
}

/// Returns the name of a type that Trusted Advisor writes in words.
fn type_word(text: &str) -> String {
    let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    match plain.to_ascii_lowercase().as_str() {
        "generalpurposessd" => "gp2",
        "magnetic" => "standard",
        "throughputoptimizedhdd" => "st1",
        "coldhdd" => "sc1",
        _ => return text.to_owned(),
    }
    .to_owned()
}

/// Returns the table of an export; `None` if the text is none.
///
/// # Errors
/// [`Broken`] if it is one, and is not whole.
pub(super) fn as_table(input: &mut dyn BufRead) -> Result<Option<String>, Broken> {
    let head = input.fill_buf().unwrap_or_default();
    let head = String::from_utf8_lossy(head).into_owned();
    let is_json = head.trim_start().starts_with('{');
    let of_json = ["\"volumeRecommendations\"", "\"flaggedResources\""];
    let of_table = ["volumeArn", "Monthly Storage Cost"];
    let marks = if is_json { of_json } else { of_table };
    if !marks.iter().any(|mark| head.contains(mark)) {
        return Ok(None);
    }
    let text = slurp(input, FORM)?;
    let mut table = HEADER.to_owned();
    if is_json {
        let answer = serde_json::from_slice(&text).map_err(|error| json_broken(&error, FORM))?;
        json(&answer, &mut table)?;
    } else {
        csv(&String::from_utf8_lossy(&text), &mut table)?;
    }
    Ok(Some(table))
}

/// Appends the volumes of a CSV file, below the header, which may have other lines before it.
fn csv(text: &str, table: &mut String) -> Result<(), Broken> {
    let mut columns: Option<Vec<Option<Column>>> = None;
    let mut lines_before = 0;
    for (number, line) in (1_usize..).zip(text.lines()) {
        let (cells, _) = cells(line, ',');
        let Some(columns) = &columns else {
            let found: Vec<Option<Column>> = cells.iter().map(|cell| Column::of(cell)).collect();
            let has = |column: Column| found.contains(&Some(column));
            if has(Column::Id) && has(Column::Type) && has(Column::Size) {
                columns = Some(found);
            }
            lines_before = number - 1;
            continue;
        };
        let mut row = Row::default();
        for (column, cell) in columns.iter().zip(&cells) {
            if let Some(column) = column {
                row.set(*column, cell);
            }
        }
        if row.id.is_empty() {
            table.push('\n');
        } else {
            row.write(table);
        }
    }
    // A line of the table has the number of the line of the file.
    table.insert_str(0, &"\n".repeat(lines_before));
    match columns {
        Some(_) => Ok(()),
        None => Err(Broken::whole(
            FORM,
            "a header with the id, the type and the size of the volumes: export the fields \
             VolumeArn, CurrentConfigurationVolumeType and CurrentConfigurationVolumeSize",
        )),
    }
}

/// Appends the volumes of an answer of GetEBSVolumeRecommendations or of
/// DescribeTrustedAdvisorCheckResult.
fn json(answer: &Value, table: &mut String) -> Result<(), Broken> {
    let is_partial = |key: &str| answer.get(key).and_then(Value::as_str).is_some();
    if is_partial("nextToken") {
        let expected = "an answer with all pages; ask on with --next-token, and join the pages";
        return Err(Broken::whole("nextToken", expected));
    }
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    for recommendation in list(answer.get("volumeRecommendations")) {
        let mut row = Row::default();
        let current = recommendation.get("currentConfiguration");
        let all = [Some(&recommendation), current].into_iter().flatten();
        for (key, value) in all.filter_map(Value::as_object).flatten() {
            let Some(column) = Column::of(key) else { continue };
            match value {
                Value::String(text) => row.set(column, text),
                Value::Number(_) | Value::Bool(_) => row.set(column, &value.to_string()),
                _ => {}
            }
        }
        row.write(table);
    }
    let result = answer.get("result").unwrap_or(answer);
    for resource in list(result.get("flaggedResources")) {
        let mut row = Row::default();
        for (column, value) in CHECK.into_iter().zip(list(resource.get("metadata"))) {
            row.set(column, value.as_str().unwrap_or_default());
        }
        row.write(table);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::fleet::list::{self, Options};
    use evenkeel_core::volume::{Rules, VolumeType};

    fn read(text: &str) -> list::List {
        list::read(&mut text.as_bytes(), Rules::newest(), Options::default()).unwrap()
    }

    fn shown(list: &list::List) -> Vec<String> {
        let volumes = list.volumes.iter();
        volumes
            .map(|volume| format!("{} {} {}", volume.id, volume.spec.size_gib, volume.price_region))
            .collect()
    }

    #[test]
    fn recommendations_of_compute_optimizer_are_a_list() {
        let csv = "recommendations_count,accountId,volumeArn,finding,\
            currentConfiguration_volumeType,currentConfiguration_volumeSize,\
            currentConfiguration_volumeBaselineIOPS,currentConfiguration_volumeBaselineThroughput,\
            rootVolume\n\
            2,123456789012,arn:aws:ec2:eu-west-1:123456789012:volume/vol-0a,NotOptimized,gp2,500,\
            1500,250,false\n\
            2,123456789012,arn:aws:ec2:us-east-1:123456789012:volume/vol-0b,Optimized,gp3,100,\
            4000,200,true\n";
        let list = read(csv);
        assert_eq!(shown(&list), ["vol-0a 500 eu-west-1", "vol-0b 100 us-east-1"]);
        assert_eq!((list.volumes[1].spec.iops, list.volumes[1].boots), (Some(4_000), true));
        assert_eq!(list.volumes[0].spec.volume_type, VolumeType::Gp2);
        let json = r#"{"volumeRecommendations": [
            {"volumeArn": "arn:aws:ec2:eu-west-1:123456789012:volume/vol-0a", "finding": "x",
             "currentConfiguration": {"volumeType": "gp2", "volumeSize": 500,
             "volumeBaselineIOPS": 1500, "volumeBaselineThroughput": 250, "rootVolume": false}},
            {"volumeArn": "arn:aws:ec2:us-east-1:123456789012:volume/vol-0b",
             "currentConfiguration": {"volumeType": "gp3", "volumeSize": 100,
             "volumeBaselineIOPS": 4000, "volumeBaselineThroughput": 200, "rootVolume": true}}]}"#;
        assert_eq!(read(json).volumes, list.volumes);
        let more = json.replace("\"volumeRec", "\"nextToken\": \"x\", \"volumeRec");
        let broken =
            list::read(&mut more.as_bytes(), Rules::newest(), Options::default()).unwrap_err();
        assert!(broken.expected.starts_with("an answer with all pages"), "{broken}");
    }

    #[test]
    fn a_check_of_trusted_advisor_is_a_list() {
        let csv = "Underutilized Amazon EBS Volumes\n\n\
            Status,Region/AZ,Volume ID,Volume Name,Volume Type,Volume Size,Monthly Storage Cost\n\
            Yellow,eu-west-1a,vol-0a,\"logs, old\",General Purpose (SSD),500,$55.00\n\
            Yellow,us-east-1,vol-0b,,Magnetic,100,$5.00\n\
            Yellow,us-east-1,vol-0c,,tape,100,$5.00\n";
        let list = read(csv);
        assert_eq!(shown(&list), ["vol-0a 500 eu-west-1", "vol-0b 100 us-east-1"]);
        assert_eq!(list.volumes[0].name.as_deref(), Some("logs, old"));
        assert_eq!((list.refused.len(), list.refused[0].place.as_str()), (1, "line 6"));
        let json = r#"{"result": {"checkId": "DAvU99Dc4C", "flaggedResources": [
            {"status": "warning", "metadata": ["eu-west-1a", "vol-0a", "logs, old",
             "General Purpose (SSD)", "500", "$55.00", null, null, null]}]}}"#;
        assert_eq!(read(json).volumes, list.volumes[..1]);
    }

    #[test]
    fn an_export_without_sizes_is_refused() {
        let text =
            "accountId,volumeArn,finding\n1,arn:aws:ec2:eu-west-1:1:volume/vol-0a,Optimized\n";
        let broken =
            list::read(&mut text.as_bytes(), Rules::newest(), Options::default()).unwrap_err();
        assert!(broken.expected.contains("CurrentConfigurationVolumeSize"), "{broken}");
    }
}
