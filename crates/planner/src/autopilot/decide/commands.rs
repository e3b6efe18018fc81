//! The commands that do an operation by hand, and those that undo it.

use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_sim::text::command_line;

use super::facts::{Facts, Member};
use crate::autopilot::observation::Kind;
use crate::autopilot::operation::Operation;
use crate::autopilot::operation::room::{self, COMPACTED_PERCENT, Removal};
use crate::autopilot::state::same_rates;
use crate::regions::{self, DEFAULT_REGION};

/// Where a Nitro instance has the device of the volume `$NEW`.
const NEW_DEVICE: &str =
    "DEVICE=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_$(echo \"$NEW\" | tr -d -)";
/// The wait for the device of a volume that was attached: its name appears some seconds later.
const NEW_DEVICE_IS_THERE: &str =
    "timeout 300 sh -c 'until [ -b \"$0\" ]; do sleep 1; done' \"$DEVICE\"";
/// The longest wait for a modification to be in force, in seconds.
const IN_FORCE_S_MAX: u32 = 900;

/// Commands, and those of the way back.
pub struct Commands {
    pub forward: Vec<String>,
    pub back: Vec<String>,
}

/// Returns the commands of an operation.
pub fn of(facts: &Facts<'_>, operation: &Operation) -> Commands {
    let tool = Tool { facts, region: region(facts) };
    match operation {
        Operation::Modify { volume, from, to } => tool.modify(volume, from, to),
        Operation::Add { spec } => tool.add(spec),
        Operation::Remove { volume } => tool.remove(volume),
        Operation::Replace { volume, with } => tool.replace(volume, with),
        Operation::Delete { volume } => Commands {
            forward: vec![tool.ec2(&["delete-volume", "--volume-id", volume])],
            back: vec![format!("# {volume} is gone: only a snapshot brings its bytes back")],
        },
    }
}

/// Returns the region of the prices as a flag, unless it is the default.
fn region(facts: &Facts<'_>) -> String {
    match facts.policy.plan.prices.list().region() {
        DEFAULT_REGION => String::new(),
        region => format!(" --region {}", regions::endpoint(region)),
    }
}

struct Tool<'a, 'b> {
    facts: &'a Facts<'b>,
    region: String,
}

impl Tool<'_, '_> {
    /// Returns a call of the EC2 API.
    fn ec2(&self, arguments: &[&str]) -> String {
        format!("aws ec2 {}{}", command_line(arguments), self.region)
    }

    fn mount(&self) -> String {
        command_line(&[&self.facts.now.file_system.mount])
    }

    fn devid(&self, volume: &str) -> u64 {
        self.facts.member(volume).map_or(1, |member| member.device.devid)
    }

    fn modify_volume(&self, volume: &str, from: &VolumeSpec, to: &VolumeSpec) -> String {
        let asked = to.request();
        let size = to.size_gib.to_string();
        let mut arguments = vec!["modify-volume", "--volume-id", volume];
        if to.size_gib != from.size_gib {
            arguments.extend(["--size", &size]);
        }
        let iops = asked.iops.map(|iops| iops.to_string());
        let mibps = asked.throughput_mibps.map(|mibps| mibps.to_string());
        if !same_rates(from, to) {
            arguments.extend(["--volume-type", to.volume_type.name()]);
            if let Some(iops) = &iops {
                arguments.extend(["--iops", iops]);
            }
            if let Some(mibps) = &mibps {
                arguments.extend(["--throughput", mibps]);
            }
        }
        self.ec2(&arguments)
    }

    /// Returns the bounded wait for the last modification of a volume to be in force. The AWS CLI
    /// has no command for it.
    fn in_force(&self, volume: &str) -> String {
        let state = self.ec2(&[
            "describe-volumes-modifications",
            "--volume-ids",
            volume,
            "--query",
            "VolumesModifications[].ModificationState",
            "--output",
            "text",
        ]);
        let state = state.replace('\'', "\"");
        let is_in_force = format!("{state} | grep -qwE \"optimizing|completed\"");
        format!("timeout {IN_FORCE_S_MAX} sh -c 'until {is_in_force}; do sleep 5; done'")
    }

    /// Returns the command by which the file system grows to the end of a volume.
    fn grow(&self, volume: &str) -> String {
        let mount = self.mount();
        match self.facts.now.file_system.kind {
            Kind::Btrfs => format!("btrfs filesystem resize {}:max {mount}", self.devid(volume)),
            Kind::Xfs => format!("xfs_growfs {mount}"),
            Kind::Ext4 => {
                let path = self.facts.member(volume).map(|member| member.device.path.as_str());
                format!("resize2fs {}", command_line(&[path.unwrap_or("DEVICE")]))
            }
        }
    }

    fn modify(&self, volume: &str, from: &VolumeSpec, to: &VolumeSpec) -> Commands {
        let grows = to.size_gib > from.size_gib || from == to;
        let mut forward = Vec::new();
        if from != to {
            forward.push(self.modify_volume(volume, from, to));
        }
        if grows {
            // Before its modification is in force, a device has its old size.
            if from != to {
                forward.push(self.in_force(volume));
            }
            forward.push(self.grow(volume));
        }
        let mut back = Vec::new();
        if !same_rates(from, to) {
            let rates = VolumeSpec { size_gib: to.size_gib, ..*from };
            back.push(self.modify_volume(volume, to, &rates));
        }
        if to.size_gib > from.size_gib {
            match self.facts.now.file_system.kind {
                Kind::Btrfs => back.extend(self.replaced(volume, from)),
                Kind::Xfs | Kind::Ext4 => back.push(format!(
                    "# neither {volume} nor its file system shrinks: copy the files to a volume of \
                     {} GiB",
                    from.size_gib
                )),
            }
        } else if from == to {
            let size = self.facts.member(volume).map_or(0, |member| member.device.size_bytes);
            back.push(match self.facts.now.file_system.kind {
                Kind::Btrfs => {
                    let devid = self.devid(volume);
                    format!("btrfs filesystem resize {devid}:{size} {}", self.mount())
                }
                Kind::Xfs | Kind::Ext4 => {
                    "# the file system does not shrink: copy its files to a smaller one".to_owned()
                }
            });
        }
        Commands { forward, back }
    }

    /// Returns the commands that create a volume as `$NEW` beside the others, and attach it as
    /// `$DEVICE`.
    fn create(&self, spec: &VolumeSpec) -> Vec<String> {
        let beside =
            self.facts.members.first().map(|member: &Member<'_>| member.volume.id.as_str());
        let zone = self.ec2(&[
            "describe-volumes",
            "--volume-ids",
            beside.unwrap_or("VOLUME"),
            "--query",
            "Volumes[0].AvailabilityZone",
            "--output",
            "text",
        ]);
        let asked = spec.request();
        let mut flags = format!("--volume-type {} --size {}", spec.volume_type, spec.size_gib);
        if let Some(iops) = asked.iops {
            flags += &format!(" --iops {iops}");
        }
        if let Some(mibps) = asked.throughput_mibps {
            flags += &format!(" --throughput {mibps}");
        }
        let host = self.facts.now.instance.as_ref().map_or("INSTANCE", |host| host.id.as_str());
        let host = command_line(&[host]);
        let region = &self.region;
        vec![
            format!(
                "NEW=$(aws ec2 create-volume --availability-zone \"$({zone})\" {flags} --query \
                 VolumeId --output text{region})"
            ),
            format!("aws ec2 wait volume-available --volume-ids \"$NEW\"{region}"),
            format!(
                "aws ec2 attach-volume --volume-id \"$NEW\" --instance-id {host} --device \
                 /dev/sdp{region}  # or another name that is free there"
            ),
            format!("aws ec2 wait volume-in-use --volume-ids \"$NEW\"{region}"),
            NEW_DEVICE.to_owned(),
            NEW_DEVICE_IS_THERE.to_owned(),
        ]
    }

    fn add(&self, spec: &VolumeSpec) -> Commands {
        let mount = self.mount();
        let mut forward = self.create(spec);
        forward.push(format!("btrfs device add -K \"$DEVICE\" {mount}"));
        let region = &self.region;
        let back = vec![
            format!("btrfs device remove \"$DEVICE\" {mount}"),
            format!("aws ec2 detach-volume --volume-id \"$NEW\"{region}"),
            format!("aws ec2 wait volume-available --volume-ids \"$NEW\"{region}"),
            format!("aws ec2 delete-volume --volume-id \"$NEW\"{region}"),
        ];
        Commands { forward, back }
    }

    /// Returns the detachment of a volume whose data has moved. It is deleted after the grace time.
    fn retired(&self, volume: &str) -> [String; 2] {
        let hours = self.facts.policy.budget.grace_hours;
        let delete = self.ec2(&["delete-volume", "--volume-id", volume]);
        [
            self.ec2(&["detach-volume", "--volume-id", volume]),
            format!("{delete}  # after {hours} h"),
        ]
    }

    fn remove(&self, volume: &str) -> Commands {
        let mount = self.mount();
        let mut forward = Vec::new();
        if self.is_compacted_to_remove(volume) {
            forward.push(format!("btrfs balance start -dusage={COMPACTED_PERCENT} {mount}"));
        }
        forward.push(format!("btrfs device remove {} {mount}", self.devid(volume)));
        forward.extend(self.retired(volume));
        let mut back = vec![format!("btrfs device remove cancel {mount}  # while it runs")];
        if let Some(member) = self.facts.member(volume) {
            back.extend(self.create(&member.volume.spec));
            back.push(format!("btrfs device add -K \"$DEVICE\" {mount}"));
        }
        Commands { forward, back }
    }

    /// Returns whether the data of a volume finds room on the others only after compaction.
    fn is_compacted_to_remove(&self, volume: &str) -> bool {
        let Some(member) = self.facts.member(volume) else { return false };
        let file_system = &self.facts.now.file_system;
        let removal = room::to_remove(self.facts.policy, file_system, member.device.devid);
        removal == Ok(Removal::AfterCompaction)
    }

    /// Returns the commands by which a smaller volume takes the place of one.
    fn replaced(&self, volume: &str, with: &VolumeSpec) -> Vec<String> {
        let mount = self.mount();
        let mut commands = self.create(with);
        commands.push(format!("btrfs device add -K \"$DEVICE\" {mount}"));
        if self.is_compacted_to_replace(volume, with) {
            commands.push(format!("btrfs balance start -dusage={COMPACTED_PERCENT} {mount}"));
        }
        commands.push(format!("btrfs device remove {} {mount}", self.devid(volume)));
        commands.extend(self.retired(volume));
        commands
    }

    /// Returns whether the data of a volume finds room beside this new one only after compaction.
    fn is_compacted_to_replace(&self, volume: &str, with: &VolumeSpec) -> bool {
        let Some(member) = self.facts.member(volume) else { return false };
        let file_system = &self.facts.now.file_system;
        let size_bytes = u64::from(with.size_gib).saturating_mul(GIB);
        let room = room::to_take_over(self.facts.policy, file_system, member.device, size_bytes);
        room == Ok(Removal::AfterCompaction)
    }

    /// Returns the commands of a replacement, and those that undo it: while the data moves, the end
    /// of the move and the removal of the new device.
    fn replace(&self, volume: &str, with: &VolumeSpec) -> Commands {
        let mount = self.mount();
        let forward = self.replaced(volume, with);
        let mut back = vec![
            format!("btrfs device remove cancel {mount}  # while it runs"),
            format!("btrfs device remove \"$DEVICE\" {mount}  # while it runs"),
        ];
        let Some(member) = self.facts.member(volume) else { return Commands { forward, back } };
        back.extend(self.create(&member.volume.spec));
        back.push(format!("btrfs device add -K \"$DEVICE\" {mount}"));
        // The kernel has numbered the new device by the next number.
        let devids = self.facts.members.iter().map(|member| member.device.devid);
        let smaller = devids.max().unwrap_or(0).saturating_add(1);
        back.push(format!("btrfs device remove {smaller} {mount}"));
        Commands { forward, back }
    }
}
