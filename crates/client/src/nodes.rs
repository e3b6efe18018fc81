//! The answer to DescribeNodes: the nodes of a cluster.

use crate::model::{self, number, text};
use crate::output::Item;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;

/// A node of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Node {
    pub name: String,
    pub number: u64,
    /// The intended state: `up`, `draining` or `removed`.
    pub state: String,
    /// The present status: `serving`, `leaving`, `starting`, `away` or `stopped`.
    pub status: String,
    /// The reason of the status `away`.
    pub reason: String,
    /// Whether it runs the control plane.
    pub leads: bool,
    /// Number of volumes whose home it is.
    pub volumes: u64,
    pub api: String,
    pub nbd: Vec<String>,
    pub version: String,
    /// Settings that differ from the leader's, each as `zones a,b (leader: a)`.
    pub different_settings: Vec<String>,
}

impl Node {
    /// All nodes of an answer to DescribeNodes.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("nodeSet").iter().map(Self::read).collect()
    }

    fn read(item: &Element) -> Self {
        let text = |name: &str| text(item, name);
        let number = |name: &str| number(item, name).unwrap_or_default();
        let nbd = item.items("nbdAddressSet").iter();
        let different = item.items("differentSettingSet").iter();
        Self {
            name: text("nodeName"),
            number: number("number"),
            state: text("state"),
            status: text("status"),
            reason: text("reason"),
            leads: text("leads") == "true",
            volumes: number("volumes"),
            api: text("apiAddress"),
            nbd: nbd.map(|item| model::text(item, "address")).collect(),
            version: text("version"),
            different_settings: different.map(|item| model::text(item, "setting")).collect(),
        }
    }
}

impl Item for Node {
    const SCHEMA: &'static str = "evenkeel.nodes/1";
    const FIELD: &'static str = "nodes";
    const COLUMNS: &'static [&'static str] =
        &["NODE", "STATE", "STATUS", "LEADS", "VOLUMES", "API", "NBD", "DIFFERENT SETTINGS"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.state.clone(),
            self.status.clone(),
            if self.leads { "yes".to_owned() } else { String::new() },
            self.volumes.to_string(),
            self.api.clone(),
            self.nbd.join(","),
            self.different_settings.join("; "),
        ]
    }
}
