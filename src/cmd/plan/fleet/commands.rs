//! The script with the commands of all changes, each with its way back. It is not executed here.

use super::FleetAnswer;
use super::text::{signed_exact, what};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::fleet::{Action, Judged, Risk, Volume};

/// The commands of volumes that become more than this many times as dear are comments.
const DEARER_MAX: u64 = 2;

/// Returns the script. A command that deletes, risks more than `most` or makes a volume much dearer
/// is a comment.
pub fn script(told: &FleetAnswer<'_>, most: Risk) -> String {
    let mut script = String::from(
        "#!/bin/sh\n\
         # Changes that `evenkeel plan fleet` found, in the order of the list. A volume\n\
         # allows four modifications in 24 hours, and the way back is one of them.\n\
         set -eu\n",
    );
    for (volume, judged) in told.all() {
        script += &of_volume(told, (volume, judged), most);
    }
    script
}

/// Returns the commands of a volume; empty if nothing is to be changed.
pub fn of_volume(
    told: &FleetAnswer<'_>,
    (volume, judged): (&Volume, &Judged),
    most: Risk,
) -> String {
    match judged.action {
        Action::Keep => String::new(),
        Action::Modify(to) => modify(volume, judged, &to, most, &told.policies.currency),
        Action::Delete => delete(volume, judged, &told.policies.currency),
    }
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

/// Returns the flag for a volume's region; nothing for a volume of an Evenkeel server.
fn region(volume: &Volume) -> String {
    volume.region.as_ref().map_or_else(String::new, |region| format!(" --region {region}"))
}

/// Returns the properties of a volume as flags of modify-volume and create-volume.
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
