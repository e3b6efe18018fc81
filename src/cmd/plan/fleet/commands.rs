//! The commands of all changes, each with its way back. Nothing here executes any.

use super::FleetAnswer;
use super::text::{signed_exact, what};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::fleet::{Action, Judged, Risk, Volume};

/// What costs more than so many times as much is for someone to look at.
const DEARER_MAX: u64 = 2;

/// A script. What deletes, what risks more than `most`, and what is much dearer is a comment.
pub fn script(told: &FleetAnswer<'_>, most: Risk) -> String {
    let mut script = String::from(
        "#!/bin/sh\n\
         # Changes that `evenkeel plan fleet` found, in the order of the list. A volume\n\
         # allows four modifications in 24 hours, and the way back is one of them.\n\
         set -eu\n",
    );
    for (volume, judged) in told.all() {
        match judged.action {
            Action::Keep => {}
            Action::Modify(to) => {
                script += &modify(volume, judged, &to, most, &told.policies.currency)
            }
            Action::Delete => script += &delete(volume, judged, &told.policies.currency),
        }
    }
    script
}

fn modify(volume: &Volume, judged: &Judged, to: &VolumeSpec, most: Risk, currency: &str) -> String {
    let id = &volume.id;
    let is_dear = judged.after > judged.before.saturating_mul(DEARER_MAX);
    let comment = if judged.risk > most || is_dear { "# " } else { "" };
    let region = region(volume);
    format!(
        "\n# {id}: {}: {} becomes {}; saves {} {currency} a month; risk: {}\n\
         {comment}aws ec2 modify-volume --volume-id {id}{}{region}\n\
         # undo: aws ec2 modify-volume --volume-id {id}{}{region}\n",
        judged.finding().id(),
        what(&judged.present),
        what(to),
        signed_exact(judged.saving()),
        judged.risk.word(),
        flags(to),
        flags(&judged.present),
    )
}

fn delete(volume: &Volume, judged: &Judged, currency: &str) -> String {
    let (id, spec, region) = (&volume.id, &judged.present, region(volume));
    let zone = volume.zone.as_deref().unwrap_or("ZONE");
    format!(
        "\n# {id}: {}: {}; saves {} {currency} a month, less what its snapshot costs; risk: {}\n\
         # aws ec2 create-snapshot --volume-id {id} --description 'before {id} was deleted'\
         {region}\n\
         # aws ec2 wait snapshot-completed --filters Name=volume-id,Values={id}{region}\n\
         # aws ec2 delete-volume --volume-id {id}{region}\n\
         # undo: aws ec2 create-volume --snapshot-id SNAPSHOT --availability-zone {zone}{} \
         --size {}{region}\n",
        judged.finding().id(),
        what(spec),
        signed_exact(judged.saving()),
        judged.risk.word(),
        flags(spec),
        spec.size_gib,
    )
}

/// The region of a volume as a flag, if it is known.
fn region(volume: &Volume) -> String {
    let region = volume.region.as_deref().map(endpoint_region);
    region.map_or_else(String::new, |region| format!(" --region {region}"))
}

/// The region whose endpoint answers for a Local Zone or a Wavelength Zone, such as `us-west-2` for
/// `us-west-2-lax-1`; a region itself.
pub fn endpoint_region(region: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut end = 0;
    for part in region.split('-') {
        end += part.len();
        if is_number(part) {
            return &region[..end];
        }
        end += 1;
    }
    region
}

/// What a volume is, as flags of modify-volume and create-volume.
fn flags(spec: &VolumeSpec) -> String {
    let asked = spec.request();
    let flag = |name: &str, value: Option<u32>| {
        value.map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    let iops = flag("--iops", asked.iops);
    format!(
        " --volume-type {}{iops}{}",
        asked.volume_type,
        flag("--throughput", asked.throughput_mibps)
    )
}

#[cfg(test)]
mod tests {
    use super::endpoint_region;

    #[test]
    fn a_local_zone_is_asked_for_at_its_region() {
        for (region, endpoint) in [
            ("eu-west-1", "eu-west-1"),
            ("us-gov-west-1", "us-gov-west-1"),
            ("us-west-2-lax-1", "us-west-2"),
            ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
            ("moon", "moon"),
        ] {
            assert_eq!(endpoint_region(region), endpoint);
        }
    }
}
