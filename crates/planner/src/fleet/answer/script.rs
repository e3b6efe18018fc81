//! The script with the commands of all changes, each with its way back. It is not executed here.

use super::copies;
use super::text::{script_words, signed_exact, what};
use super::{FleetAnswer, Script};
use crate::fleet::{Action, Judged, Risk, Volume};
use evenkeel_core::volume::VolumeSpec;

/// Returns the text of a script. A command that deletes, risks more than its maximum or makes a
/// volume much dearer is a comment.
pub fn script(answer: &FleetAnswer<'_>, script: &Script) -> String {
    let mut text = format!(
        "#!/bin/sh\n\
         # Changes that `evenkeel plan fleet` found, in the order of the list. A volume\n\
         # allows four modifications in 24 hours, and the way back is one of them.\n\
         # Of this script, {}.\n\
         set -eu\n",
        script_words(answer, script),
    );
    for (volume, judged) in answer.all() {
        text += &of_volume(answer, (volume, judged), script.most);
        text += &copies::commands(volume, judged, &answer.policies.currency);
    }
    text
}

/// Returns the commands of a volume; empty if nothing is to be changed.
pub fn of_volume(
    answer: &FleetAnswer<'_>,
    (volume, judged): (&Volume, &Judged),
    most: Risk,
) -> String {
    match judged.action {
        Action::Keep => String::new(),
        Action::Modify(to) => modify(volume, judged, &to, most, &answer.policies.currency),
        Action::Delete => delete(volume, judged, &answer.policies.currency),
    }
}

fn modify(volume: &Volume, judged: &Judged, to: &VolumeSpec, most: Risk, currency: &str) -> String {
    let id = &volume.id;
    let comment = if judged.is_executed(most) { "" } else { "# " };
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
    let id = &volume.id;
    let spec = &judged.present;
    let region = region(volume);
    let (zone, look) = match &volume.zone {
        Some(zone) => (zone.as_str(), String::new()),
        None => ("\"$ZONE\"", zone_of(id, &region)),
    };
    let [both, both_flag] = if spec.multi_attach {
        [", for several instances", " --multi-attach-enabled"]
    } else {
        ["", ""]
    };
    let snapshot = match judged.snapshot_at_most {
        Some(_) => "with a snapshot of all its bytes",
        None => "less what its snapshot costs",
    };
    format!(
        "\n# {id}: {}: {}{both}; saves {} {currency} a month, {snapshot}; risk: {}\n{look}\
         # SNAPSHOT=$(aws ec2 create-snapshot --volume-id {id} --description 'before {id} was \
         deleted' --query SnapshotId --output text{region})\n\
         # aws ec2 wait snapshot-completed --snapshot-ids \"$SNAPSHOT\"{region}\n\
         # aws ec2 delete-volume --volume-id {id}{region}\n\
         # undo: aws ec2 create-volume --snapshot-id \"$SNAPSHOT\" --availability-zone {zone}{} \
         --size {}{both_flag}{region}\n",
        judged.finding().id(),
        what(spec),
        signed_exact(judged.saving()),
        judged.risk.word(),
        flags(spec),
        spec.size_gib,
    )
}

/// Returns the command that reads a volume's zone while the volume exists.
fn zone_of(id: &str, region: &str) -> String {
    format!(
        "# ZONE=$(aws ec2 describe-volumes --volume-ids {id} --query \
         'Volumes[0].AvailabilityZone' --output text{region})\n"
    )
}

/// Returns the flag for a volume's region; nothing for a volume of an Evenkeel server.
pub fn region(volume: &Volume) -> String {
    volume.region.as_ref().map_or_else(String::new, |region| format!(" --region {region}"))
}

/// Returns the properties of a volume as flags of modify-volume and create-volume.
pub fn flags(spec: &VolumeSpec) -> String {
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
