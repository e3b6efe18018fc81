//! Monthly costs of volumes and snapshots by group: at AWS, and on own hardware.

use super::{Cents, Items, Line, Tier, grouped, in_cents};
use crate::price_book::{Monthly, NotCarried, PriceBook};
use crate::refusal::Refusal;
use evenkeel_core::price::{self, PriceList};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};
use evenkeel_sim::text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Groups of costs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// Types of volumes.
    Type,
    /// The values of the tag with this key.
    Tag(String),
    /// The hosts that a volume is attached to.
    Host,
    /// Each volume by itself.
    Volume,
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("type", _) => Ok(Self::Type),
            ("host", _) => Ok(Self::Host),
            ("volume", _) => Ok(Self::Volume),
            (_, Some(("tag", key))) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
            _ => Err("expected type, tag:KEY, host or volume".to_owned()),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type => f.write_str("type"),
            Self::Tag(key) => write!(f, "tag:{key}"),
            Self::Host => f.write_str("host"),
            Self::Volume => f.write_str("volume"),
        }
    }
}

/// A volume of a server.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its properties.
    pub spec: VolumeSpec,
    /// The ids of the hosts that it is attached to.
    pub hosts: Vec<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// A snapshot of a server.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The id of its volume, which may not exist any more.
    pub volume_id: String,
    /// Bytes of data in it.
    pub bytes: u64,
    /// Its tier.
    pub tier: Tier,
}

/// A group of costs. The order is that of groups with equal costs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Group {
    /// A type, a tag's value, hosts or a volume.
    Named(String),
    /// Volumes without the tag, or attached to no host.
    Rest,
    /// Snapshots whose volume does not exist any more.
    VolumeGone,
}

/// The costs of all volumes and snapshots, by group.
pub struct Report {
    by: By,
    prices: &'static PriceList,
    book: Option<PriceBook>,
    groups: Vec<(Group, Line)>,
    total: Line,
    unattached: Line,
}

impl Report {
    /// Adds up the costs of volumes and snapshots by a price list, and by a price book of own
    /// hardware if there is one.
    ///
    /// # Errors
    /// If the price book has no device for one of them.
    pub fn new(
        by: By,
        (prices, book): (&'static PriceList, Option<PriceBook>),
        volumes: &[Volume],
        snapshots: &[Snapshot],
    ) -> Result<Self, Refusal> {
        let mut report = Self {
            by,
            prices,
            book,
            groups: vec![],
            total: Line::default(),
            unattached: Line::default(),
        };
        report.add_up(volumes, snapshots)?;
        Ok(report)
    }

    fn add_up(&mut self, volumes: &[Volume], snapshots: &[Snapshot]) -> Result<(), Refusal> {
        let mut lines = Vec::new();
        let mut group_of: BTreeMap<&str, (Group, VolumeType)> = BTreeMap::new();
        for volume in volumes {
            let group = group(&self.by, volume);
            let spec = volume.spec;
            group_of.insert(&volume.id, (group.clone(), spec.volume_type));
            let own =
                self.own(|book| book.volume(Rules::newest(), &spec).map(|charge| charge.micros))?;
            let line = Line { own, ..Line::volume(self.prices, &spec) };
            if volume.hosts.is_empty() {
                self.unattached.add(&line);
            }
            lines.push((group, line));
        }
        for snapshot in snapshots {
            let Snapshot { volume_id, bytes, tier } = snapshot;
            let volume = group_of.get(volume_id.as_str());
            let own = self.own(|book| book.snapshot(volume.map(|(_, kind)| *kind), *bytes))?;
            let group = volume.map_or(Group::VolumeGone, |(group, _)| group.clone());
            lines.push((group, Line { own, ..Line::snapshot(self.prices, *bytes, *tier) }));
        }
        lines.iter().for_each(|(_, line)| self.total.add(line));
        self.groups = grouped(lines);
        Ok(())
    }

    /// Returns the cost of an item by the price book; 0 without one.
    fn own(
        &self,
        price: impl FnOnce(&PriceBook) -> Result<u64, NotCarried>,
    ) -> Result<u64, Refusal> {
        let cost = self.book.as_ref().map(price).transpose();
        cost.map(Option::unwrap_or_default).map_err(|error| Refusal::new(error.to_string()))
    }

    /// Returns the amounts of the table in cents, one row for each group: the items, or with a
    /// price book only the total.
    fn cents(&self) -> Cents {
        let groups = self.groups.iter();
        let table = |of: fn(&Line) -> Vec<u64>| {
            in_cents(&groups.clone().map(|(_, line)| of(line)).collect::<Vec<_>>())
        };
        if self.book.is_none() {
            return table(|line| line.list.all().to_vec());
        }
        // Two currencies, which have no sum.
        let own = table(|line| vec![line.own]);
        let list = table(|line| vec![line.list.total()]);
        let rows = own.rows.into_iter().zip(list.rows).map(|(own, list)| [own, list].concat());
        Cents { rows: rows.collect(), columns: vec![own.total, list.total], total: 0 }
    }

    fn columns(&self) -> Vec<String> {
        let group = match self.by {
            By::Type => "TYPE",
            By::Tag(_) => "TAG",
            By::Host => "HOST",
            By::Volume => "VOLUME",
        };
        let counts = [group, "VOLUMES", "GIB", "SNAPSHOTS"].map(str::to_owned);
        let money = match &self.book {
            None => ["STORAGE", "IOPS", "THROUGHPUT", "SNAPSHOT DATA", "USD/MONTH"]
                .map(str::to_owned)
                .to_vec(),
            Some(book) => {
                vec![format!("{}/MONTH", book.currency()), "USD/MONTH AT AWS".to_owned()]
            }
        };
        counts.into_iter().chain(money).collect()
    }

    fn rows(&self, cents: &Cents) -> Vec<Vec<String>> {
        let rows = self.groups.iter().zip(&cents.rows);
        rows.map(|((group, line), cents)| self.row(self.name(group), line, cents)).collect()
    }

    /// Returns the name of a group; a name in parentheses does not come from a user.
    fn name(&self, group: &Group) -> String {
        match (group, &self.by) {
            (Group::Named(name), _) if name.is_empty() => "(empty)".to_owned(),
            (Group::Named(name), _) => name.clone(),
            (Group::Rest, By::Tag(key)) => format!("(no tag {key})"),
            (Group::Rest, _) => "(not attached)".to_owned(),
            (Group::VolumeGone, _) => "(volume deleted)".to_owned(),
        }
    }

    /// Returns the report in lines.
    #[must_use]
    pub fn text(&self) -> String {
        let date = self.prices.date();
        let region = self.prices.region();
        let head = format!("list prices of {date} in {region}; a month has 30 days\n\n");
        if self.groups.is_empty() {
            return format!("{head}no volumes and no snapshots\n");
        }
        let cents = self.cents();
        let mut rows = self.rows(&cents);
        rows.push(self.row("total".to_owned(), &self.total, &cents.columns));
        let mut text = head + &text::table(&words(&self.columns()), &rows);
        let notes = self.notes();
        if !notes.is_empty() {
            text.push('\n');
        }
        notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
        text
    }

    /// Returns the report as CSV, without its total.
    #[must_use]
    pub fn csv(&self) -> String {
        text::csv(&words(&self.columns()), &self.rows(&self.cents()))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let Line { volumes, gib, list, .. } = &self.unattached;
        if *volumes > 0 {
            let usd = price::rounded(list.total());
            let own = self.book.as_ref().map_or_else(String::new, |book| {
                format!("{} {}, ", price::rounded(self.unattached.own), book.currency())
            });
            notes.push(format!(
                "attached to no host: {volumes} volumes, {gib} GiB, {own}{usd} USD at AWS"
            ));
        }
        notes.extend(self.book.as_ref().map(|book| self.hardware(book)));
        if self.total.snapshots > 0 {
            notes.push(
                "snapshots count with all their data, which they may share: EBS charges at most \
                 this"
                    .to_owned(),
            );
        }
        if let Some(prices) = self.prices.snapshot().filter(|_| self.total.archived > 0) {
            notes.push(format!(
                "archived: {}; AWS charges each for {} days at least, and {} USD once for each GiB \
                 that is restored",
                self.total.archived,
                prices.archive_days_min,
                price::rounded(prices.archive_retrieval_gib)
            ));
        }
        if self.total.unpriced > 0 {
            let count = self.total.unpriced;
            let date = self.prices.date();
            notes.push(format!(
                "the list of {date} has no price for {count} of them; they count as nothing"
            ));
        }
        notes
    }

    /// Describes the cost of the hardware, and the part of it that is not charged to volumes or
    /// snapshots.
    fn hardware(&self, book: &PriceBook) -> String {
        let Monthly { purchase, energy, running } = book.monthly();
        let [purchase, energy, running] = [purchase, energy, running].map(price::rounded);
        let all = book.monthly().total();
        let currency = book.currency();
        let paid = self.total.own;
        let rest = match all.checked_sub(paid) {
            Some(rest) => format!("{} of it are not charged to anything", price::rounded(rest)),
            None => format!("{} more than that are charged", price::rounded(paid - all)),
        };
        format!(
            "the hardware costs {} {currency} (purchase {purchase}, energy {energy}, running \
             {running}); {rest}",
            price::rounded(all)
        )
    }

    fn row(&self, name: String, line: &Line, cents: &[u64]) -> Vec<String> {
        let counts = [line.volumes, line.gib, line.snapshots].map(|count| count.to_string());
        let sum = cents.iter().copied().fold(0, u64::saturating_add);
        let sum = self.book.is_none().then_some(sum);
        let money = cents.iter().copied().chain(sum).map(price::decimal);
        std::iter::once(name).chain(counts).chain(money).collect()
    }

    /// Returns a line with amounts in millionths.
    fn json_of(&self, line: &Line) -> Value {
        let Items { storage, iops, throughput, snapshots } = line.list;
        json!({
            "volumes": line.volumes,
            "gib": line.gib,
            "snapshots": line.snapshots,
            "archived_snapshots": line.archived,
            "snapshot_data_bytes": line.snapshot_bytes,
            "unpriced": line.unpriced,
            "own_monthly_micros": self.book.as_ref().map(|_| line.own),
            "monthly_micro_usd": {
                "storage": storage,
                "iops": iops,
                "throughput": throughput,
                "snapshots": snapshots,
                "total": line.list.total(),
            },
        })
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let group = |(group, line): &(Group, Line)| {
            let mut value = self.json_of(line);
            value["group"] = match group {
                Group::Named(name) => name.as_str().into(),
                Group::Rest | Group::VolumeGone => Value::Null,
            };
            value["volume_deleted"] = (*group == Group::VolumeGone).into();
            value
        };
        let hardware = self.book.as_ref().map(|book| {
            let Monthly { purchase, energy, running } = book.monthly();
            json!({
                "currency": book.currency(),
                "monthly_micros": {
                    "purchase": purchase,
                    "energy": energy,
                    "running": running,
                    "total": book.monthly().total(),
                },
            })
        });
        json!({
            "schema": "evenkeel.cost/1",
            "by": self.by.to_string(),
            "prices": self.prices.date().to_string(),
            "region": self.prices.region(),
            "groups": self.groups.iter().map(group).collect::<Vec<_>>(),
            "total": self.json_of(&self.total),
            "unattached": self.json_of(&self.unattached),
            "hardware": hardware,
        })
    }
}

/// Returns the group of a volume's costs.
fn group(by: &By, volume: &Volume) -> Group {
    match by {
        By::Type => Group::Named(volume.spec.volume_type.to_string()),
        By::Volume => Group::Named(volume.id.clone()),
        By::Tag(key) => volume.tags.get(key).cloned().map_or(Group::Rest, Group::Named),
        By::Host => {
            let mut hosts: Vec<&str> = volume.hosts.iter().map(String::as_str).collect();
            hosts.sort_unstable();
            // A volume of several hosts is in a group of its own.
            if hosts.is_empty() { Group::Rest } else { Group::Named(hosts.join(" ")) }
        }
    }
}

fn words(titles: &[String]) -> Vec<&str> {
    titles.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::admission::DeviceFloor;

    const BOOK: &str = include_str!("../../books/price_book.toml");

    fn volume(id: &str, volume_type: &str, hosts: &[&str], team: Option<&str>) -> Volume {
        let spec = VolumeSpec {
            volume_type: volume_type.parse().unwrap(),
            size_gib: 10,
            iops: Some(3_001),
            throughput_mibps: (volume_type == "gp3").then_some(126),
            multi_attach: false,
        };
        Volume {
            id: id.to_owned(),
            spec,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            tags: team.map(|team| ("team".to_owned(), team.to_owned())).into_iter().collect(),
        }
    }

    fn snapshot(volume: &str, bytes: u64, tier: Tier) -> Snapshot {
        Snapshot { volume_id: volume.to_owned(), bytes, tier }
    }

    fn report(by: &str) -> Report {
        report_with(by, None)
    }

    fn report_with(by: &str, book: Option<PriceBook>) -> Report {
        let prices = PriceList::as_of("2025-10-14".parse().unwrap()).unwrap();
        let volumes = [
            volume("vol-1", "gp3", &["i-2", "i-1"], Some("db")),
            volume("vol-2", "gp3", &["i-1"], None),
            volume("vol-3", "io2", &[], Some("")),
        ];
        let snapshots = [
            snapshot("vol-1", 1 << 30, Tier::Standard),
            snapshot("vol-9", 1 << 29, Tier::Standard),
        ];
        Report::new(by.parse().unwrap(), (prices, book), &volumes, &snapshots).unwrap()
    }

    #[test]
    fn a_table_by_type_adds_up() {
        assert_eq!(
            report("type").text(),
            "list prices of 2025-10-14 in us-east-1; a month has 30 days\n\n\
             TYPE              VOLUMES  GIB  SNAPSHOTS  STORAGE    IOPS  THROUGHPUT  \
             SNAPSHOT DATA  USD/MONTH\n\
             io2                     1   10          0     1.25  195.07        0.00  \
             \x20        0.00     196.32\n\
             gp3                     2   20          1     1.60    0.01        0.08  \
             \x20        0.05       1.74\n\
             (volume deleted)        0    0          1     0.00    0.00        0.00  \
             \x20        0.02       0.02\n\
             total                   3   30          2     2.85  195.08        0.08  \
             \x20        0.07     198.08\n\n\
             attached to no host: 1 volumes, 10 GiB, 196.32 USD at AWS\n\
             snapshots count with all their data, which they may share: EBS charges at most this\n"
        );
    }

    #[test]
    fn what_has_no_tag_or_no_host_is_a_group_of_its_own() {
        let names = |by: &str| {
            let report = report(by);
            report.groups.iter().map(|(group, _)| report.name(group)).collect::<Vec<_>>()
        };
        assert_eq!(names("tag:team"), ["(empty)", "db", "(no tag team)", "(volume deleted)"]);
        assert_eq!(names("host"), ["(not attached)", "i-1 i-2", "i-1", "(volume deleted)"]);
        assert_eq!(names("volume"), ["vol-3", "vol-1", "vol-2", "(volume deleted)"]);
        for by in ["tag:", "tag", "hosts", ""] {
            let error = by.parse::<By>().unwrap_err();
            assert_eq!(error, "expected type, tag:KEY, host or volume", "{by}");
        }
    }

    #[test]
    fn archived_snapshots_have_their_own_price_and_a_note() {
        let mut report = report("type");
        report.total = Line::default();
        let archived = [Tier::Archive, Tier::Restored].map(|tier| snapshot("vol-1", 4 << 30, tier));
        report.add_up(&[], &archived).unwrap();
        assert_eq!(report.total.list.snapshots, 50_000 + 250_000);
        assert_eq!(report.json()["total"]["archived_snapshots"], 2);
        let text = report.text();
        let note = "archived: 2; AWS charges each for 90 days at least, and 0.03 USD once for each \
                    GiB that is restored\n";
        assert!(text.ends_with(note), "{text}");
    }

    /// The sums in JSON are exact, whatever the groups are.
    #[test]
    fn every_report_has_the_same_total() {
        for by in ["type", "tag:team", "host", "volume"] {
            let value = report(by).json();
            let totals = value["groups"].as_array().unwrap().iter();
            let total = |value: &Value| value["monthly_micro_usd"]["total"].as_u64().unwrap();
            assert_eq!(totals.map(total).sum::<u64>(), total(&value["total"]), "{by}");
            // 10 GiB of io2 and twice of gp3, 3,001 IOPS of io2, one more than is free of gp3 and
            // a MiB/s, and 1.5 GiB of snapshots.
            let expected = 1_250_000 + 195_065_000 + 2 * (800_000 + 5_000 + 40_000) + 75_000;
            assert_eq!(total(&value["total"]), expected, "{by}");
        }
    }

    #[test]
    fn csv_has_no_line_of_totals() {
        let report = report("type");
        let csv = report.csv();
        assert_eq!(
            csv.lines().take(2).collect::<Vec<_>>(),
            [
                "type,volumes,gib,snapshots,storage,iops,throughput,snapshot_data,usd_month",
                "io2,1,10,0,1.25,195.07,0.00,0.00,196.32"
            ]
        );
        assert_eq!(csv.lines().count(), 4);
    }

    /// A fast device costs 63.96 a month. Of its 4,000 GiB and 80,000 IOPS 10 GiB are 0.1599, and
    /// 3,001 IOPS 2.3993; a gp3 volume has 126 MiB/s beside them, in I/Os of 44 KiB.
    #[test]
    fn a_price_book_stands_beside_aws() {
        let mut none = |_: &str| Err::<DeviceFloor, _>(String::new());
        let book = PriceBook::read(BOOK, &mut none).unwrap();
        let report = report_with("type", Some(book));
        let text = report.text();
        for line in [
            "TYPE              VOLUMES  GIB  SNAPSHOTS  EUR/MONTH  USD/MONTH AT AWS",
            "io2                     1   10          0       2.40            196.32",
            "(volume deleted)        0    0          1       0.01              0.02",
            "attached to no host: 1 volumes, 10 GiB, 2.40 EUR, 196.32 USD at AWS",
            "the hardware costs 619.44 EUR (purchase 372.00, energy 127.44, running 120.00);",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let value = report.json();
        let own = |value: &Value| value["own_monthly_micros"].as_u64().unwrap();
        let sum: u64 = value["groups"].as_array().unwrap().iter().map(own).sum();
        assert_eq!(sum, own(&value["total"]));
        assert_eq!(value["hardware"]["monthly_micros"]["total"], 619_440_000);
    }
}
