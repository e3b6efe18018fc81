//! Commands that make a layout.

use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::layout::Layout;
use evenkeel_planner::search::Space;

/// Commands that make a layout.
pub fn commands(space: &Space, layout: &Layout) -> [String; 2] {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } = layout.each;
    let sells = space.rules.of(volume_type).and_then(|rules| rules.iops_max(size_gib));
    let iops = iops.filter(|_| sells.is_some());
    let flag = |name: &str, value: Option<u32>| {
        value.map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    let each =
        if layout.volumes > 1 { format!("   # {} times", layout.volumes) } else { "".into() };
    let both = if multi_attach { [" --multi-attach", " --multi-attach-enabled"] } else { ["", ""] };
    [
        format!(
            "evenkeel volume create --type {volume_type} --size {size_gib}{}{}{}{each}",
            flag("--iops", iops),
            flag("--throughput", throughput_mibps),
            both[0],
        ),
        format!(
            "aws ec2 create-volume --availability-zone ZONE --volume-type {volume_type} --size \
             {size_gib}{}{}{}{each}",
            flag("--iops", iops),
            flag("--throughput", throughput_mibps),
            both[1],
        ),
    ]
}
