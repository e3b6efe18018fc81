//! Volumes and hosts, parsed from the API's XML.

use crate::Client;
use crate::capacity::if_allowed;
use crate::output::{Failure, Item, or_dash};
use evenkeel_core::price::{self, PriceList};
use evenkeel_core::qos::credit::Credit;
use evenkeel_core::qos::pacing::CreditLimit;
use evenkeel_core::time::Duration;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;
use std::collections::BTreeMap;

/// A volume as DescribeVolumes returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VolumeDescription {
    pub volume_id: String,
    pub volume_type: String,
    pub size_gib: u64,
    /// Provisioned or baseline IOPS; `None` for types that promise throughput only.
    pub iops: Option<u64>,
    /// Provisioned throughput; gp3 only.
    pub throughput_mibps: Option<u64>,
    /// creating, available, in-use, deleting, error.
    pub state: String,
    pub multi_attach: bool,
    pub create_time: String,
    /// The snapshot that it was made of.
    pub snapshot_id: Option<String>,
    /// The volume that it is a copy of.
    pub source_volume_id: Option<String>,
    pub encrypted: bool,
    pub attachments: Vec<Attachment>,
    pub tags: BTreeMap<String, String>,
    /// Its cost at AWS for a month, by the newest list prices, in millionths of a dollar.
    pub monthly_micro_usd: Option<u64>,
    /// The reason of the state `error`.
    pub error_reason: Option<String>,
}

/// A volume's status, as DescribeVolumeStatus returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VolumeStatus {
    pub volume_id: String,
    /// ok, warning, impaired, insufficient-data.
    pub status: String,
    /// The checks, and the result of each.
    pub checks: BTreeMap<String, String>,
    /// Percentage of its blocks that have the data of the snapshot or volume that it was made of;
    /// `None` if it was created empty.
    pub initialized_percent: Option<u32>,
    /// Its present problems.
    pub events: Vec<StatusEvent>,
}

/// A problem of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StatusEvent {
    pub event_type: String,
    pub description: String,
    /// Time since which it exists, in ISO 8601.
    pub since: String,
}

impl VolumeStatus {
    /// Returns the volumes whose status is `impaired`, of one volume or of all; none if the user
    /// has no right to DescribeVolumeStatus.
    pub fn impaired(client: &Client, id: Option<&str>) -> Result<Vec<Self>, Failure> {
        let mut parameters =
            vec![("Filter.1.Name", "volume-status.status"), ("Filter.1.Value.1", "impaired")];
        parameters.extend(id.map(|id| ("VolumeId.1", id)));
        let answer = if_allowed(client.call("DescribeVolumeStatus", &parameters))?;
        Ok(answer.iter().flat_map(Self::set).collect())
    }

    /// All items of an answer to DescribeVolumeStatus.
    pub fn set(answer: &Element) -> Vec<Self> {
        let event = |event: &Element| StatusEvent {
            event_type: text(event, "eventType"),
            description: text(event, "description"),
            since: text(event, "notBefore"),
        };
        let read = |item: &Element| {
            let status = item.child("volumeStatus");
            let details = status.map(|status| status.items("details")).unwrap_or_default();
            let check = |detail: &Element| (text(detail, "name"), text(detail, "status"));
            Self {
                volume_id: text(item, "volumeId"),
                status: status.map(|status| text(status, "status")).unwrap_or_default(),
                checks: details.iter().map(check).collect(),
                initialized_percent: item
                    .child("initializationStatusDetails")
                    .and_then(|details| text(details, "progress").parse().ok()),
                events: item.items("eventsSet").iter().map(event).collect(),
            }
        };
        answer.items("volumeStatusSet").iter().map(read).collect()
    }
}

impl Item for VolumeStatus {
    const SCHEMA: &'static str = "evenkeel.volume-status/1";
    const FIELD: &'static str = "statuses";
    const COLUMNS: &'static [&'static str] = &["VOLUME", "STATUS", "CHECKS", "EVENTS"];

    fn cells(&self) -> Vec<String> {
        let checks = self.checks.iter().map(|(name, result)| format!("{name}: {result}"));
        let checks = checks.collect::<Vec<_>>().join(", ");
        let event = |event: &StatusEvent| format!("{} since {}", event.description, event.since);
        let events = self.events.iter().map(event).collect::<Vec<_>>().join("; ");
        vec![self.volume_id.clone(), self.status.clone(), checks, events]
    }
}

/// A volume or a snapshot in the recycle bin.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Binned {
    pub id: String,
    /// When it was deleted.
    pub entered: String,
    /// When its bytes are deleted.
    pub until: String,
}

impl Binned {
    /// All items of an answer to ListVolumesInRecycleBin or ListSnapshotsInRecycleBin; `list` and
    /// `id` are the names of its elements.
    pub fn set(answer: &Element, list: &str, id: &str) -> Vec<Self> {
        let read = |item: &Element| Self {
            id: text(item, id),
            entered: text(item, "recycleBinEnterTime"),
            until: text(item, "recycleBinExitTime"),
        };
        answer.items(list).iter().map(read).collect()
    }
}

impl Item for Binned {
    const SCHEMA: &'static str = "evenkeel.recycle-bin/1";
    const FIELD: &'static str = "binned";
    const COLUMNS: &'static [&'static str] = &["ID", "DELETED", "KEPT UNTIL"];

    fn cells(&self) -> Vec<String> {
        vec![self.id.clone(), self.entered.clone(), self.until.clone()]
    }
}

/// Stored bytes that belong to no volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Unowned {
    pub volume_id: String,
    pub bytes: u64,
}

impl Unowned {
    /// All items of an answer to DescribeUnownedVolumes.
    pub fn set(answer: &Element) -> Vec<Self> {
        let read = |item: &Element| {
            let bytes = number(item, "bytes").unwrap_or_default();
            Self { volume_id: text(item, "volumeId"), bytes }
        };
        answer.items("unownedVolumeSet").iter().map(read).collect()
    }
}

impl Item for Unowned {
    const SCHEMA: &'static str = "evenkeel.unowned/1";
    const FIELD: &'static str = "unowned";
    const COLUMNS: &'static [&'static str] = &["VOLUME", "BYTES"];

    fn cells(&self) -> Vec<String> {
        vec![self.volume_id.clone(), self.bytes.to_string()]
    }
}

/// An attachment of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Attachment {
    pub host_id: String,
    pub device: String,
    /// attaching, attached, busy, detaching, detached.
    pub state: String,
}

/// A client host; an instance, in EC2's terms.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Host {
    pub host_id: String,
    pub instance_type: String,
    /// The address from which it connects.
    pub address: String,
    pub state: String,
    /// When it was registered, in ISO 8601, so that the texts sort by time.
    pub registered: String,
    /// Device names in use.
    pub devices: Vec<String>,
    pub tags: BTreeMap<String, String>,
}

/// Credit balances of one volume; `None` if its type has no such credits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Credits {
    pub volume_id: String,
    /// I/O credits (gp2).
    pub operations: Option<Balance>,
    /// Byte credits (st1, sc1).
    pub bytes: Option<Balance>,
}

/// One bucket of credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Balance {
    pub balance: u64,
    pub capacity: u64,
    pub refill_per_second: u64,
    /// The rate of the burst.
    pub burst_per_second: u64,
}

impl Balance {
    /// Seconds to a full bucket while the volume is idle.
    pub fn idle_to_full_s(&self) -> Option<u64> {
        let missing = self.capacity.saturating_sub(self.balance);
        (self.refill_per_second > 0).then(|| missing.div_ceil(self.refill_per_second))
    }

    /// Seconds of full burst that the balance pays for; `None` if bursting costs nothing.
    pub fn burst_to_empty_s(&self) -> Option<u64> {
        let refill_per_second = self.refill_per_second;
        let capacity = self.capacity;
        let mut credit = Credit::full(CreditLimit { refill_per_second, capacity });
        credit.set_balance(self.balance);
        let lasts = credit.time_to_empty(self.burst_per_second)?;
        Some(lasts.ns / Duration::from_secs(1).ns)
    }
}

impl VolumeDescription {
    /// All volumes of an answer to DescribeVolumes.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("volumeSet").iter().map(Self::read).collect()
    }

    /// One volume: an item of DescribeVolumes, or CreateVolume's whole answer.
    pub fn read(item: &Element) -> Self {
        let attachments = item.items("attachmentSet").iter().map(|item| Attachment {
            host_id: text(item, "instanceId"),
            device: text(item, "device"),
            state: text(item, "status"),
        });
        let mut volume = Self {
            volume_id: text(item, "volumeId"),
            volume_type: text(item, "volumeType"),
            size_gib: number(item, "size").unwrap_or_default(),
            iops: number(item, "iops"),
            throughput_mibps: number(item, "throughput"),
            state: text(item, "status"),
            multi_attach: text(item, "multiAttachEnabled") == "true",
            create_time: text(item, "createTime"),
            snapshot_id: Some(text(item, "snapshotId")).filter(|id| !id.is_empty()),
            source_volume_id: item.child_text("sourceVolumeId").map(str::to_owned),
            encrypted: item.child_text("encrypted") == Some("true"),
            attachments: attachments.collect(),
            tags: tags(item),
            monthly_micro_usd: None,
            error_reason: item.child_text("errorReason").map(str::to_owned),
        };
        let spec = volume.spec().ok();
        volume.monthly_micro_usd =
            spec.and_then(|spec| PriceList::newest().monthly_micro_usd(&spec));
        volume
    }
}

impl VolumeDescription {
    /// Returns the specification in the product's own terms.
    ///
    /// # Errors
    /// If the server knows types or numbers that this program does not.
    pub fn spec(&self) -> Result<VolumeSpec, Failure> {
        let unknown = |what: &str, value: &str| {
            Failure::new(format!("{}: {what} {value} is not known", self.volume_id))
                .hint("is the server of another version than this program?")
        };
        let whole =
            |what, value: u64| u32::try_from(value).map_err(|_| unknown(what, &value.to_string()));
        let volume_type = self.volume_type.parse();
        Ok(VolumeSpec {
            volume_type: volume_type.map_err(|_| unknown("the type", &self.volume_type))?,
            size_gib: whole("a size in GiB of", self.size_gib)?,
            iops: self.iops.map(|iops| whole("a number of IOPS of", iops)).transpose()?,
            throughput_mibps: self
                .throughput_mibps
                .map(|mibps| whole("a throughput in MiB/s of", mibps))
                .transpose()?,
            multi_attach: self.multi_attach,
        })
    }
}

impl Host {
    /// All hosts of an answer to DescribeInstances.
    pub fn set(answer: &Element) -> Vec<Self> {
        let reservations = answer.items("reservationSet").iter();
        reservations.flat_map(|item| item.items("instancesSet")).map(Self::read).collect()
    }

    /// One host: an item of DescribeInstances, or the `instance` in RegisterHost's answer.
    pub fn read(item: &Element) -> Self {
        let mappings = item.items("blockDeviceMapping").iter();
        Self {
            host_id: text(item, "instanceId"),
            instance_type: text(item, "instanceType"),
            address: text(item, "privateIpAddress"),
            state: item.child("instanceState").map(|s| text(s, "name")).unwrap_or_default(),
            registered: text(item, "launchTime"),
            devices: mappings.map(|item| text(item, "deviceName")).collect(),
            tags: tags(item),
        }
    }
}

impl Credits {
    /// All volumes of an answer to DescribeVolumeCredits.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("volumeCreditSet").iter().map(Self::read).collect()
    }

    fn read(item: &Element) -> Self {
        Self {
            volume_id: text(item, "volumeId"),
            operations: item.child("operations").map(Balance::read),
            bytes: item.child("bytes").map(Balance::read),
        }
    }
}

impl Balance {
    fn read(item: &Element) -> Self {
        let value = |name| number(item, name).unwrap_or_default();
        Self {
            balance: value("balance"),
            capacity: value("capacity"),
            refill_per_second: value("refillPerSecond"),
            burst_per_second: value("burstPerSecond"),
        }
    }
}

/// Reads the text of a child element; `None` without one.
pub(crate) fn optional(element: &Element, name: &str) -> Option<String> {
    element.child_text(name).map(str::to_owned)
}

pub(crate) fn text(element: &Element, name: &str) -> String {
    element.child_text(name).unwrap_or_default().to_owned()
}

/// Reads the number in a child element; `None` without one, or of other text.
pub fn number(element: &Element, name: &str) -> Option<u64> {
    element.child_text(name)?.parse().ok()
}

pub(crate) fn tags(element: &Element) -> BTreeMap<String, String> {
    let items = element.items("tagSet").iter();
    items.map(|item| (text(item, "key"), text(item, "value"))).collect()
}

impl Item for VolumeDescription {
    const SCHEMA: &'static str = "evenkeel.volumes/1";
    const FIELD: &'static str = "volumes";
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "TYPE", "GIB", "IOPS", "MIB/S", "STATE", "USD/MONTH", "ATTACHED TO", "NAME"];

    fn cells(&self) -> Vec<String> {
        let hosts: Vec<&str> =
            self.attachments.iter().map(|attachment| attachment.host_id.as_str()).collect();
        vec![
            self.volume_id.clone(),
            self.volume_type.clone(),
            self.size_gib.to_string(),
            or_dash(self.iops),
            or_dash(self.throughput_mibps),
            self.state.clone(),
            or_dash(self.monthly_micro_usd.map(price::rounded)),
            if hosts.is_empty() { "-".to_owned() } else { hosts.join(" ") },
            self.tags.get("Name").cloned().unwrap_or_default(),
        ]
    }
}

impl Item for Host {
    const SCHEMA: &'static str = "evenkeel.hosts/1";
    const FIELD: &'static str = "hosts";
    const COLUMNS: &'static [&'static str] =
        &["HOST", "TYPE", "ADDRESS", "STATE", "VOLUMES", "NAME"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.host_id.clone(),
            self.instance_type.clone(),
            self.address.clone(),
            self.state.clone(),
            self.devices.len().to_string(),
            self.tags.get("Name").cloned().unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUMES: &str = "<DescribeVolumesResponse><requestId>r</requestId><volumeSet><item>\
        <volumeId>vol-0000000000000000a</volumeId><size>100</size><status>in-use</status>\
        <createTime>2026-11-21T04:00:00.000Z</createTime><attachmentSet><item>\
        <volumeId>vol-0000000000000000a</volumeId><instanceId>i-0000000000000000b</instanceId>\
        <device>/dev/sdf</device><status>attached</status></item></attachmentSet>\
        <tagSet><item><key>Name</key><value>log</value></item></tagSet>\
        <volumeType>gp3</volumeType><iops>3000</iops><multiAttachEnabled>false</multiAttachEnabled>\
        <throughput>125</throughput></item><item><volumeId>vol-0000000000000000c</volumeId>\
        <size>500</size><status>available</status><volumeType>st1</volumeType></item></volumeSet>\
        </DescribeVolumesResponse>";

    #[test]
    fn volumes_are_read_and_shown() {
        let volumes = VolumeDescription::set(&Element::parse(VOLUMES).unwrap());
        assert_eq!(volumes[0].iops, Some(3_000));
        assert_eq!(volumes[0].attachments[0].device, "/dev/sdf");
        assert_eq!(
            crate::output::listing(&volumes, crate::output::Format::Text, ""),
            "VOLUME                 TYPE  GIB  IOPS  MIB/S  STATE      USD/MONTH  \
             ATTACHED TO          NAME\n\
             vol-0000000000000000a  gp3   100  3000    125  in-use          8.00  \
             i-0000000000000000b  log\n\
             vol-0000000000000000c  st1   500     -      -  available      22.50  -\n"
        );
    }

    #[test]
    fn hosts_are_read() {
        let answer = "<DescribeInstancesResponse><reservationSet><item><instancesSet><item>\
            <instanceId>i-0000000000000000b</instanceId><instanceState><code>16</code>\
            <name>running</name></instanceState><instanceType>m5.large</instanceType>\
            <launchTime>2026-11-21T04:00:00.000Z</launchTime>\
            <privateIpAddress>127.0.0.1</privateIpAddress><blockDeviceMapping><item>\
            <deviceName>/dev/sdf</deviceName></item></blockDeviceMapping></item></instancesSet>\
            </item></reservationSet></DescribeInstancesResponse>";
        let hosts = Host::set(&Element::parse(answer).unwrap());
        assert_eq!(
            hosts,
            [Host {
                host_id: "i-0000000000000000b".to_owned(),
                instance_type: "m5.large".to_owned(),
                address: "127.0.0.1".to_owned(),
                state: "running".to_owned(),
                registered: "2026-11-21T04:00:00.000Z".to_owned(),
                devices: vec!["/dev/sdf".to_owned()],
                tags: BTreeMap::new(),
            }]
        );
    }

    /// gp2 of 100 GiB: 300 IOPS, burst 3,000, 5.4 million credits: 2,000 s of burst, 5 h to refill.
    #[test]
    fn a_balance_tells_how_long_it_lasts() {
        let full = Balance {
            balance: 5_400_000,
            capacity: 5_400_000,
            refill_per_second: 300,
            burst_per_second: 3_000,
        };
        assert_eq!(full.burst_to_empty_s(), Some(2_000));
        assert_eq!(full.idle_to_full_s(), Some(0));
        let empty = Balance { balance: 0, ..full };
        assert_eq!(empty.idle_to_full_s(), Some(18_000));
        let large = Balance { refill_per_second: 3_000, ..full };
        assert_eq!(large.burst_to_empty_s(), None);
    }
}
