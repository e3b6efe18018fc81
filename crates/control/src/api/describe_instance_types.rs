//! DescribeInstanceTypes: returns EC2's types with their EBS limits, and no other properties.

use evenkeel_core::instance::{self, AttachmentLimit, EbsOptimized, InstanceType};
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Refusal;

pub const ACTION: Action = Action { name: "DescribeInstanceTypes", mutates: false, run };

const FILTERS: &[&str] = &[
    "ebs-info.attachment-limit-type",
    "ebs-info.ebs-optimized-info.baseline-bandwidth-in-mbps",
    "ebs-info.ebs-optimized-info.baseline-iops",
    "ebs-info.ebs-optimized-info.baseline-throughput-in-mbps",
    "ebs-info.ebs-optimized-info.maximum-bandwidth-in-mbps",
    "ebs-info.ebs-optimized-info.maximum-iops",
    "ebs-info.ebs-optimized-info.maximum-throughput-in-mbps",
    "ebs-info.ebs-optimized-support",
    "ebs-info.encryption-support",
    "ebs-info.maximum-ebs-attachments",
    "instance-type",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let names = args.list("InstanceType");
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 100)?;
    args.boolean("IncludeUnsupportedInRegion")?;
    args.done()?;
    let absent: Vec<&str> =
        names.iter().map(String::as_str).filter(|n| instance::by_name(n).is_none()).collect();
    if !absent.is_empty() {
        return Err(Refusal::UnknownInstanceType(absent.join(", ")).into());
    }
    // The store encrypts, whatever the type.
    let encryption = if call.plane.settings.key.is_some() { "supported" } else { "unsupported" };
    let wanted = instance::all()
        .iter()
        .filter(|t| names.is_empty() || names.iter().any(|name| name == t.name))
        .filter(|t| filters.pass(|name| values(t, encryption, name)));
    let (types, token) = page.cut(wanted, |t| t.name.to_owned());
    let items = types.into_iter().map(|t| item(t, encryption)).collect();
    Ok(view::paged("instanceTypeSet", items, token))
}

fn item(t: &InstanceType, encryption: &str) -> Element {
    let limits = [
        Element::text("baselineBandwidthInMbps", t.baseline_mbps),
        Element::text("baselineThroughputInMBps", megabytes(t.baseline_mbps)),
        Element::text("baselineIops", t.baseline_iops),
        Element::text("maximumBandwidthInMbps", t.mbps_max),
        Element::text("maximumThroughputInMBps", megabytes(t.mbps_max)),
        Element::text("maximumIops", t.iops_max),
    ];
    let ebs = [
        Element::text("ebsOptimizedSupport", support(t)),
        Element::text("encryptionSupport", encryption),
        Element::list("ebsOptimizedInfo", limits),
        Element::text("maximumEbsAttachments", t.attachments_max),
        Element::text("attachmentLimitType", attachment_limit(t)),
    ];
    let name = Element::text("instanceType", t.name);
    Element::list("item", [name, Element::list("ebsInfo", ebs)])
}

const fn support(t: &InstanceType) -> &'static str {
    match t.ebs_optimized {
        EbsOptimized::Default => "default",
        EbsOptimized::Supported => "supported",
    }
}

const fn attachment_limit(t: &InstanceType) -> &'static str {
    match t.attachment_limit {
        AttachmentLimit::Shared => "shared",
        AttachmentLimit::Dedicated => "dedicated",
    }
}

/// Converts Mbit/s to MB/s. Exact, because an eighth has at most three decimals.
fn megabytes(mbps: u32) -> String {
    let whole = mbps / 8;
    let eighths = mbps % 8;
    let decimals = format!("{:03}", eighths * 125);
    let decimals = decimals.trim_end_matches('0');
    format!("{whole}.{}", if decimals.is_empty() { "0" } else { decimals })
}

fn values(t: &InstanceType, encryption: &str, filter: &str) -> Vec<String> {
    let value = match filter {
        "ebs-info.attachment-limit-type" => attachment_limit(t).into(),
        "ebs-info.ebs-optimized-info.baseline-bandwidth-in-mbps" => t.baseline_mbps.to_string(),
        "ebs-info.ebs-optimized-info.baseline-iops" => t.baseline_iops.to_string(),
        "ebs-info.ebs-optimized-info.baseline-throughput-in-mbps" => megabytes(t.baseline_mbps),
        "ebs-info.ebs-optimized-info.maximum-bandwidth-in-mbps" => t.mbps_max.to_string(),
        "ebs-info.ebs-optimized-info.maximum-iops" => t.iops_max.to_string(),
        "ebs-info.ebs-optimized-info.maximum-throughput-in-mbps" => megabytes(t.mbps_max),
        "ebs-info.ebs-optimized-support" => support(t).into(),
        "ebs-info.encryption-support" => encryption.into(),
        "ebs-info.maximum-ebs-attachments" => t.attachments_max.to_string(),
        "instance-type" => t.name.into(),
        _ => return vec![],
    };
    vec![value]
}

#[cfg(test)]
mod tests {
    use super::megabytes;

    #[test]
    fn eighths_are_exact() {
        for (mbps, expected) in
            [(650, "81.25"), (4_750, "593.75"), (43, "5.375"), (2_085, "260.625"), (8, "1.0")]
        {
            assert_eq!(megabytes(mbps), expected);
        }
    }
}
