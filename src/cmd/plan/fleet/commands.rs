//! The commands of all changes, each with its way back. Nothing here executes any.

use super::Told;
use super::text::{signed_exact, what};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::fleet::{Action, Judged, Risk, Volume};

/// What costs more than so many times as much is for someone to look at.
const DEARER_MAX: u64 = 2;

/// A script. What deletes, what risks more than `most`, and what is much dearer is a comment.
pub fn script(told: &Told<'_>, most: Risk) -> String {
    let mut script = String::from(
        "#!/bin/sh\n\
         # Changes that `evenkeel plan fleet` found, in the order of the list. A volume\n\
         # allows four modifications in 24 hours, and the way back is one of them.\n\
         set -eu\n",
    );
    for (volume, judged) in told.all() {
        match judged.action {
            Action::Keep => {}
            Action::Modify(to) => script += &modify(volume, judged, &to, most),
            Action::Delete => script += &delete(volume, judged),
        }
    }
    script
}

fn modify(volume: &Volume, judged: &Judged, to: &VolumeSpec, most: Risk) -> String {
    let id = &volume.id;
    let is_dear = judged.after > judged.before.saturating_mul(DEARER_MAX);
    let comment = if judged.risk > most || is_dear { "# " } else { "" };
    format!(
        "\n# {id}: {}: {} becomes {}; saves {} USD a month; risk: {}\n\
         {comment}aws ec2 modify-volume --volume-id {id}{}\n\
         # undo: aws ec2 modify-volume --volume-id {id}{}\n",
        judged.finding().id(),
        what(&judged.present),
        what(to),
        signed_exact(judged.saving()),
        judged.risk.word(),
        flags(to),
        flags(&judged.present),
    )
}

fn delete(volume: &Volume, judged: &Judged) -> String {
    let (id, spec) = (&volume.id, &judged.present);
    format!(
        "\n# {id}: {}: {}; saves {} USD a month, less what its snapshot costs; risk: {}\n\
         # aws ec2 create-snapshot --volume-id {id} --description 'before {id} was deleted'\n\
         # aws ec2 wait snapshot-completed --filters Name=volume-id,Values={id}\n\
         # aws ec2 delete-volume --volume-id {id}\n\
         # undo: aws ec2 create-volume --snapshot-id SNAPSHOT --availability-zone ZONE{} \
         --size {}\n",
        judged.finding().id(),
        what(spec),
        signed_exact(judged.saving()),
        judged.risk.word(),
        flags(spec),
        spec.size_gib,
    )
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
