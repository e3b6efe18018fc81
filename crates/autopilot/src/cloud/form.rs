//! The common form of what both APIs answer and are asked for.

use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::observation::Modification;
use evenkeel_wire::aws::timestamp;
use std::collections::BTreeMap;

/// The tag with the UUID of the file system that a volume belongs to.
pub const FILE_SYSTEM_TAG: &str = "evenkeel:fs";
/// The tag with the operation that created a volume.
pub const OPERATION_TAG: &str = "evenkeel:operation";
/// The tag with the time at which a volume was marked for deletion, in milliseconds since 1970.
pub const RETIRED_TAG: &str = "evenkeel:retired";
/// The end of a time as the AWS CLI prints it.
const UTC: &str = "+00:00";

/// A volume as DescribeVolumes returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Its id.
    pub id: String,
    /// Its properties.
    pub spec: VolumeSpec,
    /// `creating`, `available`, `in-use`, `deleting`, `error`.
    pub state: String,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// The key by which it is encrypted, if the API names one.
    pub kms_key: Option<String>,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// An attachment of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The instance.
    pub instance: String,
    /// The name of the device, as `/dev/sdf`.
    pub device: String,
    /// `attaching`, `attached`, `busy`, `detaching`, `detached`.
    pub state: String,
    /// When it began, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The last modification of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modified {
    /// The volume.
    pub volume: String,
    /// Its state.
    pub state: Modification,
    /// When it began, in milliseconds since 1970.
    pub started_ms: u64,
}

/// An instance as DescribeInstances returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedInstance {
    /// Its type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
}

/// The figures that the metrics of a volume show.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Measure {
    /// Credits that are left, in millionths of the maximum.
    pub balance_ppm: Option<u32>,
    /// Seconds of the window in which a limit delayed requests.
    pub exceeded_s: Option<u32>,
    /// MiB/s in the last minute, rounded up.
    pub used_mibps: Option<u32>,
}

/// A call that changes something, with its fields by the names of the EC2 API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The action.
    pub action: &'static str,
    /// The fields.
    pub fields: Vec<(&'static str, String)>,
    /// The tags that it sets: of the new volume if the action is CreateVolume.
    pub tags: Vec<(String, String)>,
}

#[cfg(test)]
impl Request {
    /// Creates a call.
    pub fn of(
        action: &'static str,
        fields: &[(&'static str, &str)],
        tags: &[(&str, &str)],
    ) -> Self {
        Self {
            action,
            fields: fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            tags: tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        }
    }
}

/// Parses a time of either API; returns milliseconds since 1970.
pub fn time_ms(text: &str) -> Option<u64> {
    match text.strip_suffix(UTC) {
        Some(plain) => timestamp::parse_extended(&format!("{plain}Z")),
        None => timestamp::parse_extended(text),
    }
}

/// Returns the state of a modification by its name in the API.
pub fn modification(name: &str) -> Option<Modification> {
    match name {
        "modifying" => Some(Modification::Modifying),
        "optimizing" => Some(Modification::Optimizing),
        "completed" => Some(Modification::Completed),
        "failed" => Some(Modification::Failed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_either_api_is_read() {
        let expected = Some(1_440_938_160_000);
        for text in
            ["2015-08-30T12:36:00.000Z", "2015-08-30T12:36:00+00:00", "2015-08-30T12:36:00Z"]
        {
            assert_eq!(time_ms(text), expected, "{text}");
        }
        assert_eq!(time_ms("2015-08-30T12:36:00.250000+00:00"), Some(1_440_938_160_250));
        for text in ["", "yesterday", "2015-08-30T12:36:00+02:00"] {
            assert_eq!(time_ms(text), None, "{text}");
        }
    }
}
