//! AdoptVolume (not an EC2 action): creates a volume from stored bytes that belong to no volume. It
//! gets their id and size, and starts without credits.

use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_core::volume::VolumeRequest;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "AdoptVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let id = args.volume_id("VolumeId")?;
    let volume_type =
        args.volume_type("VolumeType")?.ok_or_else(|| ApiError::missing("VolumeType"))?;
    let iops = args.number("Iops")?;
    let throughput_mibps = args.number("Throughput")?;
    let multi_attach = args.boolean("MultiAttachEnabled")?.unwrap_or(false);
    let zone = args.text("AvailabilityZone").unwrap_or_else(|| settings.zone().to_owned());
    let tags = args.tag_specifications("volume")?;
    args.done()?;
    let outcome = call.plane.adopt(id, call.dry_run, |stored| {
        let size_gib = whole_gib(stored.size)?;
        let is_encrypted = stored.is_encrypted;
        let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        Ok::<_, ApiError>(Command::AdoptVolume { id, is_encrypted, request, zone, tags })
    })?;
    let volume =
        outcome.settled().ok_or_else(|| ApiError::internal("the adopted volume is gone"))?;
    Ok(view::volume(settings, &volume))
}

/// Returns the size in GiB. Returns an error if it is not a whole number, which no volume has.
fn whole_gib(bytes: ByteCount) -> Result<u32, ApiError> {
    let whole = bytes.0.is_multiple_of(GIB) && bytes.0 > 0;
    u32::try_from(bytes.0 / GIB).ok().filter(|_| whole).ok_or_else(|| {
        ApiError::value(format!("There are {} B; only a size of whole GiB can be adopted", bytes.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adoption_requires_a_size_of_whole_gib() {
        assert_eq!(whole_gib(ByteCount(2 * GIB)).unwrap(), 2);
        for bytes in [0, 1_000, GIB + 1] {
            let refused = whole_gib(ByteCount(bytes)).unwrap_err().message;
            assert!(refused.starts_with(&format!("There are {bytes} B; only")), "{refused}");
        }
    }
}
