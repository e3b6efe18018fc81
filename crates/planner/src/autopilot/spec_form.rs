//! The form of a volume's specification in audit lines and journals.

use evenkeel_core::volume::{VolumeSpec, VolumeType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A specification as an object, with the names of the EC2 API in kebab case.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Form {
    #[serde(rename = "type")]
    volume_type: String,
    size_gib: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iops: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    throughput_mibps: Option<u32>,
}

/// Serialises a specification.
pub(super) fn serialize<S: Serializer>(
    spec: &VolumeSpec,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let form = Form {
        volume_type: spec.volume_type.name().to_owned(),
        size_gib: spec.size_gib,
        iops: spec.iops,
        throughput_mibps: spec.throughput_mibps,
    };
    form.serialize(serializer)
}

/// Deserialises a specification. It attaches to one instance.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<VolumeSpec, D::Error> {
    let form = Form::deserialize(deserializer)?;
    let volume_type: VolumeType = form
        .volume_type
        .parse()
        .map_err(|_| D::Error::custom(format!("{}: no volume type", form.volume_type)))?;
    Ok(VolumeSpec {
        volume_type,
        size_gib: form.size_gib,
        iops: form.iops,
        throughput_mibps: form.throughput_mibps,
        multi_attach: false,
    })
}
