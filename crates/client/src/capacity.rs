//! The answer to DescribeCapacity: the capacity for sale, the part that is sold, and the
//! reservations of each type.

use crate::Client;
use crate::model::{number, text};
use crate::output::{Failure, Item};
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;

/// The hint if nothing is measured or configured.
pub const MEASURE: &str =
    "run `evenkeel calibrate`, or set sell-iops and sell-throughput: docs/operating/capacity.md";

/// The line below a list for a user without the right to DescribeCapacity.
pub const NOT_SHOWN: &str =
    "sold: not shown, since this user has no right to evenkeel:DescribeCapacity";

/// Returns a call's answer; `None` if the user has no right to the call.
pub(crate) fn if_allowed<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Err(failure) if failure.message.ends_with("(UnauthorizedOperation)") => Ok(None),
        answer => answer.map(Some),
    }
}

/// An answer to DescribeCapacity.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Capacity {
    /// `limited` or `unknown`; with the latter nothing is refused.
    pub state: String,
    /// The calibration in force, if there is one.
    pub calibration: Option<Calibration>,
    /// The operator's figure, if there is one.
    pub operator_figure: Option<Figure>,
    /// Space for stored bytes, if it is known.
    pub space: Option<Space>,
    /// State of the store itself, if it is known.
    pub store_health: Option<StoreHealth>,
    /// The amounts of the account's volumes, and its quotas.
    pub account: Vec<AccountUse>,
    /// All limited resources.
    pub sold: Vec<Sold>,
    /// All volume types.
    pub types: Vec<TypeSold>,
}

/// Space for the bytes of volumes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Space {
    /// The bytes that volumes could fill together.
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The bytes of all volumes, written to or not.
    pub sold_bytes: u64,
    /// The bytes that may be sold; `None` without a bound.
    pub for_sale_bytes: Option<u64>,
    /// Factor by which the space is oversold: `1`, `1.5`, `unlimited`.
    pub oversell: String,
}

/// State of the store itself, apart from its volumes. Counts begin as the server starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StoreHealth {
    /// Volumes that are not open, most of them deleted, whose remaining work fails.
    pub unfinished: u64,
    /// Volumes that are not open, whose remaining work needs space that the store does not have.
    pub no_space: u64,
    /// Sectors of the store's tables that are damaged in both copies.
    pub damaged_sectors: u64,
    /// Copies of duplicated metadata that were damaged and rewritten.
    pub copies_mended: u64,
    /// Volumes that were salvaged and lost something.
    pub volumes_salvaged: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Calibration {
    pub calibration_id: String,
    /// ISO 8601.
    pub measured: String,
    /// The part of the measured capacity that is available now, in millionths.
    pub left_ppm: u64,
}

/// The operator's figure: IOPS, throughput or both.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Figure {
    /// At 16 KiB.
    pub iops: u64,
    pub throughput_mibps: u64,
}

/// The amount of one resource that all volumes of the account have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct AccountUse {
    /// `IOPS`, `throughput` or `size`.
    pub resource: String,
    /// The unit of `used` and `quota`.
    pub unit: String,
    pub used: u64,
    /// `None` without a quota.
    pub quota: Option<u64>,
}

/// How much of one resource is sold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sold {
    /// The source: `calibration` or `operator`.
    pub source: String,
    pub resource: String,
    /// In a cluster, the nodes that must carry it: `without its largest node` and so on; `None` is
    /// the nodes that are there.
    pub row: Option<String>,
    /// The unit of `sold`, `for_sale` and `short_by`.
    pub unit: String,
    pub sold: u64,
    pub for_sale: u64,
    /// The amount by which more is sold than is for sale.
    pub short_by: u64,
}

/// The reservations of all volumes of a type.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TypeSold {
    pub volume_type: String,
    /// The policy: `nothing`, `provisioned`, `baseline`, `base throughput`.
    pub reservation: String,
    pub volumes: u64,
    pub iops: u64,
    pub bytes_per_second: u64,
    /// Factor by which the type is oversold: `1`, `1.5`.
    pub oversell: String,
}

impl Capacity {
    /// The present capacity.
    pub fn get(client: &Client) -> Result<Self, Failure> {
        client.call("DescribeCapacity", &[]).map(|answer| Self::read(&answer))
    }

    /// The present capacity; `None` if the user may not ask for it.
    pub fn get_if_allowed(client: &Client) -> Result<Option<Self>, Failure> {
        if_allowed(Self::get(client))
    }

    fn read(answer: &Element) -> Self {
        let value = |element: &Element, name| number(element, name).unwrap_or_default();
        Self {
            state: text(answer, "capacityState"),
            calibration: answer.child("calibration").map(|item| Calibration {
                calibration_id: text(item, "calibrationId"),
                measured: text(item, "measuredTime"),
                left_ppm: value(item, "leftPpm"),
            }),
            operator_figure: answer.child("operatorFigure").map(|item| Figure {
                iops: value(item, "iops"),
                throughput_mibps: value(item, "throughput"),
            }),
            space: answer.child("space").map(|item| Space {
                total_bytes: value(item, "totalBytes"),
                free_bytes: value(item, "freeBytes"),
                sold_bytes: value(item, "soldBytes"),
                for_sale_bytes: number(item, "forSaleBytes"),
                oversell: text(item, "oversell"),
            }),
            store_health: answer.child("storeHealth").map(|item| StoreHealth {
                unfinished: value(item, "unfinished"),
                no_space: value(item, "noSpace"),
                damaged_sectors: value(item, "damagedSectors"),
                copies_mended: value(item, "copiesMended"),
                volumes_salvaged: value(item, "volumesSalvaged"),
            }),
            account: answer.items("accountSet").iter().map(AccountUse::read).collect(),
            sold: answer.items("soldSet").iter().map(Sold::read).collect(),
            types: answer.items("volumeTypeSet").iter().map(TypeSold::read).collect(),
        }
    }

    /// Returns whether the capacity is known, so that sales are limited.
    pub fn is_known(&self) -> bool {
        !self.sold.is_empty()
    }

    /// Returns whether more is sold of some resource than is for sale.
    pub fn is_short(&self) -> bool {
        self.amounts().iter().any(|amount| amount.is_short)
    }

    /// The sources of the numbers, one line each.
    pub fn sources(&self) -> Vec<String> {
        let calibration = self.calibration.as_ref().map(|calibration| {
            let Calibration { calibration_id, measured, left_ppm } = calibration;
            let mut line = format!("calibration {calibration_id} of {measured}");
            if *left_ppm < 1_000_000 {
                let percent = left_ppm / 10_000;
                line.push_str(&format!("; the device has become slower: {percent} % of it counts"));
            }
            line
        });
        let figure = self.operator_figure.as_ref().map(|Figure { iops, throughput_mibps }| {
            format!("operator's figure: {iops} IOPS or {throughput_mibps} MiB/s")
        });
        calibration.into_iter().chain(figure).collect()
    }

    /// The sold and oversold amounts, as printed below every list of volumes.
    pub fn summary(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.amounts().into_iter().map(|amount| amount.text).collect();
        let troubles = self.store_health.map(|health| health.troubles()).unwrap_or_default();
        if !troubles.is_empty() {
            lines.push(format!("the pool has trouble: {}", troubles.join("; ")));
        }
        let factors: Vec<String> = self
            .types
            .iter()
            .filter(|of_type| of_type.oversell != "1")
            .map(|of_type| format!("{} {} times over", of_type.volume_type, of_type.oversell))
            .collect();
        if !factors.is_empty() {
            lines.push(format!("oversold by the operator: {}", factors.join(", ")));
        }
        lines
    }

    /// The sold amounts, a line for each resource.
    pub fn amounts(&self) -> Vec<Amount> {
        let sold = |sold: &Sold| Amount { text: sold.line(), is_short: sold.short_by > 0 };
        let mut amounts: Vec<Amount> = self.sold.iter().map(sold).collect();
        if amounts.is_empty() {
            amounts.push(Amount { text: UNKNOWN.to_owned(), is_short: false });
        }
        let space = |space: &Space| Amount { text: space.line(), is_short: space.is_short() };
        amounts.extend(self.space.iter().map(space));
        let quota = |text| Amount { text, is_short: false };
        amounts.extend(self.account.iter().filter_map(AccountUse::line).map(quota));
        amounts
    }
}

/// How much of a resource is sold.
pub struct Amount {
    /// The amount, and what is for sale.
    pub text: String,
    /// Whether more is sold than is for sale.
    pub is_short: bool,
}

/// The text while nothing is measured or configured.
const UNKNOWN: &str =
    "sold: capacity is unknown, so nothing is refused; `evenkeel calibrate` measures it";

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64)
}

impl Space {
    /// Returns whether more is sold than is for sale.
    fn is_short(&self) -> bool {
        self.for_sale_bytes.is_some_and(|for_sale| self.sold_bytes > for_sale)
    }

    /// Returns the free part of the space, for people.
    pub fn free(&self) -> String {
        format!("{} of {} are free", gib(self.free_bytes), gib(self.total_bytes))
    }

    fn line(&self) -> String {
        let Self { total_bytes, free_bytes, sold_bytes, for_sale_bytes, oversell } = self;
        let times = match oversell.as_str() {
            "1" => "once".to_owned(),
            "unlimited" => "without a bound".to_owned(),
            times => format!("{times} times over"),
        };
        let mut line = format!(
            "sold: space of {} where there are {} ({} free), sold {times}",
            gib(*sold_bytes),
            gib(*total_bytes),
            gib(*free_bytes)
        );
        if let Some(for_sale) = for_sale_bytes.filter(|for_sale| sold_bytes > for_sale) {
            line.push_str(&format!("; that is {} more than may be", gib(sold_bytes - for_sale)));
        }
        line
    }
}

impl StoreHealth {
    /// Returns the store's present problems, for people; empty if there are none.
    pub fn troubles(&self) -> Vec<String> {
        let kinds = [
            (self.unfinished, "volumes that are not open have work that fails"),
            (self.no_space, "volumes that are not open have work that waits for space"),
            (self.damaged_sectors, "sectors of its tables are damaged in both copies"),
        ];
        let is_there = |(count, _): &(u64, &str)| *count > 0;
        kinds.into_iter().filter(is_there).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl AccountUse {
    fn read(item: &Element) -> Self {
        Self {
            resource: text(item, "resource"),
            unit: text(item, "unit"),
            used: number(item, "used").unwrap_or_default(),
            quota: number(item, "quota"),
        }
    }

    /// Returns the line of a quota; `None` if there is none.
    fn line(&self) -> Option<String> {
        let Self { resource, unit, used, quota } = self;
        let quota = (*quota)?;
        let mut line = match resource.as_str() {
            "throughput" => format!("quota: {} of {} MiB/s", used.div_ceil(1 << 20), quota >> 20),
            _ => format!("quota: {used} of {quota} {unit}"),
        };
        if *used > quota {
            line.push_str("; that is more than the quota, so no volume can have more");
        }
        Some(line)
    }
}

impl Sold {
    fn read(item: &Element) -> Self {
        let value = |name| number(item, name).unwrap_or_default();
        Self {
            source: text(item, "source"),
            resource: text(item, "resource"),
            row: item.child("row").map(|_| text(item, "row")),
            unit: text(item, "unit"),
            sold: value("sold"),
            for_sale: value("forSale"),
            short_by: value("shortBy"),
        }
    }

    fn line(&self) -> String {
        let Self { source, resource, row, unit, sold, for_sale, short_by } = self;
        let row = row.as_ref().map(|row| format!(" {row}")).unwrap_or_default();
        let mut line =
            format!("sold: {resource}{row} worth {sold} of {for_sale} {unit} ({source})");
        if *short_by > 0 {
            line.push_str(&format!("; that is {short_by} more than there is"));
        }
        line
    }
}

impl TypeSold {
    fn read(item: &Element) -> Self {
        let value = |name| number(item, name).unwrap_or_default();
        Self {
            volume_type: text(item, "volumeType"),
            reservation: text(item, "reservation"),
            volumes: value("volumes"),
            iops: value("iops"),
            bytes_per_second: value("bytesPerSecond"),
            oversell: text(item, "oversell"),
        }
    }
}

impl Item for TypeSold {
    const SCHEMA: &'static str = "evenkeel.capacity/1";
    const FIELD: &'static str = "types";
    const COLUMNS: &'static [&'static str] =
        &["TYPE", "RESERVES", "VOLUMES", "IOPS", "MIB/S", "TIMES SOLD"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.volume_type.clone(),
            self.reservation.clone(),
            self.volumes.to_string(),
            self.iops.to_string(),
            self.bytes_per_second.div_ceil(1 << 20).to_string(),
            self.oversell.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLD: &str = "<DescribeCapacityResponse><capacityState>limited</capacityState>\
        <calibration><calibrationId>cal-1</calibrationId><measuredTime>2026-11-21T04:00:00.000Z\
        </measuredTime><leftPpm>750000</leftPpm></calibration><operatorFigure><iops>9000</iops>\
        <throughput>500</throughput></operatorFigure><accountSet><item><resource>IOPS</resource>\
        <unit>IOPS</unit><used>7</used><quota>6</quota></item><item><resource>throughput\
        </resource><unit>bytes per second</unit><used>1048577</used><quota>3145728</quota></item>\
        <item><resource>size</resource><unit>GiB</unit><used>9</used></item></accountSet>\
        <soldSet><item><source>calibration</source>\
        <resource>device time</resource><unit>I/Os of 16 KiB per second</unit><sold>6000</sold>\
        <forSale>5000</forSale><shortBy>1000</shortBy></item><item><source>calibration</source>\
        <resource>CPU time</resource><unit>ns per second</unit><sold>7</sold><forSale>8</forSale>\
        <shortBy>0</shortBy><row>without its largest node</row></item></soldSet><volumeTypeSet>\
        <item><volumeType>io2</volumeType><reservation>provisioned</reservation>\
        <volumes>2</volumes><iops>9000</iops><bytesPerSecond>147456001</bytesPerSecond>\
        <oversell>1.5</oversell></item>\
        </volumeTypeSet></DescribeCapacityResponse>";

    #[test]
    fn what_is_sold_is_read_and_shown() {
        let capacity = Capacity::read(&Element::parse(SOLD).unwrap());
        assert!(capacity.is_known() && capacity.is_short());
        assert_eq!(
            capacity.sources(),
            [
                "calibration cal-1 of 2026-11-21T04:00:00.000Z; the device has become slower: \
                 75 % of it counts",
                "operator's figure: 9000 IOPS or 500 MiB/s"
            ]
        );
        assert_eq!(
            capacity.summary(),
            [
                "sold: device time worth 6000 of 5000 I/Os of 16 KiB per second (calibration); \
                 that is 1000 more than there is",
                "sold: CPU time without its largest node worth 7 of 8 ns per second (calibration)",
                "quota: 7 of 6 IOPS; that is more than the quota, so no volume can have more",
                "quota: 2 of 3 MiB/s",
                "oversold by the operator: io2 1.5 times over"
            ]
        );
        assert_eq!(capacity.types[0].cells(), ["io2", "provisioned", "2", "9000", "141", "1.5"]);
    }

    #[test]
    fn troubles_of_the_pool_are_read_and_shown_beside_what_is_sold() {
        let text = |unfinished, sectors| {
            format!(
                "<DescribeCapacityResponse><capacityState>unknown</capacityState><storeHealth>\
                 <unfinished>{unfinished}</unfinished><noSpace>0</noSpace>\
                 <damagedSectors>{sectors}</damagedSectors><copiesMended>2</copiesMended>\
                 <volumesSalvaged>1</volumesSalvaged></storeHealth><soldSet/><volumeTypeSet/>\
                 </DescribeCapacityResponse>"
            )
        };
        let read = |text: String| Capacity::read(&Element::parse(&text).unwrap());
        let capacity = read(text(3, 1));
        let health = capacity.store_health.unwrap();
        assert_eq!((health.copies_mended, health.volumes_salvaged), (2, 1));
        let shown = "the pool has trouble: 3 volumes that are not open have work that fails; \
                     1 sectors of its tables are damaged in both copies";
        assert_eq!(capacity.summary(), [UNKNOWN, shown]);
        assert_eq!(read(text(0, 0)).summary(), [UNKNOWN]);
    }

    #[test]
    fn that_nothing_is_known_is_said() {
        let text = "<DescribeCapacityResponse><capacityState>unknown</capacityState><soldSet/>\
                    <volumeTypeSet/></DescribeCapacityResponse>";
        let capacity = Capacity::read(&Element::parse(text).unwrap());
        assert!(!capacity.is_known() && !capacity.is_short() && capacity.sources().is_empty());
        assert_eq!(capacity.summary(), [UNKNOWN]);
    }
}
