//! The answer about a fleet: the judgement of each volume, their sums, and the notes.

pub mod copies;
pub mod json;
pub mod script;
pub mod text;

use super::hosts::Host;
use super::policies::Policies;
use super::totals::{Sum, Totals};
use super::{Action, Finding, GroupBy, Judged, List, Risk, Volume};
use serde_json::Value;
use std::collections::BTreeMap;

/// The answer about a fleet.
pub struct FleetAnswer<'a> {
    /// The file of the list.
    pub name: String,
    /// The script with the commands, if one is written.
    pub script: Option<Script>,
    /// The policies by which volumes are judged.
    pub policies: &'a Policies,
    /// The sums.
    pub totals: Totals,
    /// The list.
    pub list: &'a List,
    /// The judgements, in the order of the list.
    pub judged: &'a [Judged],
    /// The property by whose values volumes are added up.
    pub group_by: Option<&'a GroupBy>,
    /// The instances whose limits their volumes exceed.
    pub hosts: Vec<Host>,
    /// Types of instances without published limits, and the number of their volumes.
    pub unknown_types: BTreeMap<String, usize>,
    /// Parts of the metrics that are not used, with the reasons.
    pub left_out: &'a [String],
}

/// The script with the commands of all changes.
pub struct Script {
    /// Its file.
    pub path: String,
    /// The highest risk of a change whose command is not a comment.
    pub most: Risk,
    /// The sum over the volumes whose commands are not comments.
    pub executed: Sum,
}

/// The cost of snapshots of the volumes that are to be deleted.
pub struct Snapshots<'a> {
    /// The most that they cost a month, in millionths; `None` if none of them has a price.
    pub most_micros: Option<u64>,
    /// GiB of volumes in regions whose lists have no price of snapshots.
    pub unpriced_gib: BTreeMap<&'a str, u64>,
}

/// Volumes whose cost is not in the sums.
pub struct Missing {
    /// Volumes that are refused.
    pub refused: usize,
    /// Volumes without a price.
    pub unpriced: usize,
}

impl FleetAnswer<'_> {
    /// Returns the answer in lines, with at most `top` rows of a table.
    #[must_use]
    pub fn text(&self, top: usize) -> String {
        text::text(self, top)
    }

    /// Returns the answer as CSV, with a row for each volume.
    #[must_use]
    pub fn csv(&self) -> String {
        text::csv(self)
    }

    /// Returns the answer as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json::json_of(self)
    }

    /// Returns the cost of snapshots of the volumes that are to be deleted; `None` without any.
    fn snapshots(&self) -> Option<Snapshots<'_>> {
        let mut all = Snapshots { most_micros: None, unpriced_gib: BTreeMap::new() };
        for (volume, judged) in self.all().filter(|(_, judged)| judged.action == Action::Delete) {
            let gib = u64::from(judged.present.size_gib);
            match judged.snapshot_at_most {
                Some(most) => {
                    let sum = all.most_micros.get_or_insert(0);
                    *sum = sum.saturating_add(most);
                }
                None => *all.unpriced_gib.entry(&volume.price_region).or_insert(0) += gib,
            }
        }
        (all.most_micros.is_some() || !all.unpriced_gib.is_empty()).then_some(all)
    }

    /// Returns the sums of each group, by its name; volumes without a value have the name `-`.
    fn groups(&self) -> BTreeMap<&str, Totals> {
        let mut groups: BTreeMap<&str, Totals> = BTreeMap::new();
        for (volume, judged) in self.all().filter(|_| self.group_by.is_some()) {
            groups.entry(volume.group.as_deref().unwrap_or("-")).or_default().add(judged);
        }
        groups
    }

    /// Counts the volumes whose cost is not in the sums.
    fn missing(&self) -> Missing {
        let is_unpriced =
            |judged: &&Judged| judged.finding() == Finding::NotJudged && judged.before == 0;
        Missing {
            refused: self.list.refused.len(),
            unpriced: self.judged.iter().filter(is_unpriced).count(),
        }
    }

    /// Returns the volumes with their judgements, in the order of the list.
    pub fn all(&self) -> impl Iterator<Item = (&Volume, &Judged)> {
        self.list.volumes.iter().zip(self.judged)
    }
}
