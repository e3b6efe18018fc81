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

/// The beginning of the path of a volume's device on a Nitro instance.
const NITRO_DEVICE: &str = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_";
/// The volume that an operation makes.
const NEW: Made = Made { volume: "NEW", device: "DEVICE" };
/// The volume that takes the place of one that an operation has removed.
const OLD: Made = Made { volume: "OLD", device: "OLD_DEVICE" };
/// The comment of the first command of a way back that is not needed while the move runs.
const AFTERWARDS: &str = "  # if it has ended; otherwise the next command is the detachment";
/// The longest wait for a modification to be in force, in seconds.
const IN_FORCE_S_MAX: u32 = 900;

/// Commands, and those of the way back.
pub struct Commands {
    pub forward: Vec<String>,
    pub back: Vec<String>,
}

/// The variables of the shell with the id of a volume that commands make, and its device.
#[derive(Clone, Copy)]
struct Made {
    volume: &'static str,
    device: &'static str,
}

impl Made {
    /// Returns the words of the shell for the id and the device.
    fn words(self) -> (String, String) {
        (format!("\"${}\"", self.volume), format!("\"${}\"", self.device))
    }
}

/// Returns the words of a command for a shell, with these words in place of others.
fn shell_words(words: &[String], values: &[(&str, &str)]) -> String {
    let word = |word: &String| {
        let Some((name, _)) = values.iter().find(|(name, _)| word.contains(name)) else {
            return command_line(&[word]);
        };
        // All else of the word is quoted by itself: "$NEW"/disk.
        let mut parts = word.split(name).map(|part| match part {
            "" => String::new(),
            part => shell_words(&[part.to_owned()], values),
        });
        let first = parts.next().unwrap_or_default();
        let value = values.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value);
        parts.fold(first, |text, part| text + value + &part)
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
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
        let is_larger = to.size_gib > from.size_gib;
        let grows = from == to || is_larger && self.facts.policy.space.grows_file_systems();
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
        if is_larger && !grows {
            back.push(format!("# {volume} keeps its {} GiB: no volume shrinks", to.size_gib));
        } else if is_larger {
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

    /// Returns the commands that create a volume beside the others, and attach it.
    fn create(&self, spec: &VolumeSpec, made: Made) -> Vec<String> {
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
        let name = made.volume;
        let volume = made.words().0;
        let mut commands = vec![
            format!(
                "{name}=$(aws ec2 create-volume --availability-zone \"$({zone})\" {flags} --query \
                 VolumeId --output text{region})"
            ),
            format!("aws ec2 wait volume-available --volume-ids {volume}{region}"),
            format!(
                "aws ec2 attach-volume --volume-id {volume} --instance-id {host} --device \
                 /dev/sdp{region}  # or another name that is free there"
            ),
            format!("aws ec2 wait volume-in-use --volume-ids {volume}{region}"),
        ];
        commands.extend(self.device(made));
        commands
    }

    /// Returns the commands by which an attached volume has a device. That of a Nitro instance
    /// appears some seconds later.
    fn device(&self, made: Made) -> Vec<String> {
        let name = made.device;
        let (volume, device) = made.words();
        match &self.facts.now.front_end {
            Some(front) => {
                let uri = shell_words(std::slice::from_ref(&front.uri), &[("{volume}", &volume)]);
                let values = [("{volume}", volume.as_str()), ("{uri}", &uri)];
                let attach = shell_words(&front.attach, &values);
                vec![format!("{name}=$({attach} | tail -n 1)")]
            }
            None => vec![
                format!("{name}={NITRO_DEVICE}$(echo {volume} | tr -d -)"),
                format!("timeout 300 sh -c 'until [ -b \"$0\" ]; do sleep 1; done' {device}"),
            ],
        }
    }

    fn add(&self, spec: &VolumeSpec) -> Commands {
        let mount = self.mount();
        let (volume, device) = NEW.words();
        let mut forward = self.create(spec, NEW);
        forward.push(format!("btrfs device add -K {device} {mount}"));
        let region = &self.region;
        let mut back = vec![format!("btrfs device remove {device} {mount}")];
        back.extend(self.detached(&volume, &device));
        back.push(format!("aws ec2 wait volume-available --volume-ids {volume}{region}"));
        back.push(format!("aws ec2 delete-volume --volume-id {volume}{region}"));
        Commands { forward, back }
    }

    /// Returns the detachment of a volume, by words of the shell: its disk goes before.
    fn detached(&self, volume: &str, device: &str) -> Vec<String> {
        let front = self.facts.now.front_end.as_ref();
        let values = [("{volume}", volume), ("{device}", device)];
        let mut commands: Vec<String> =
            front.map(|front| shell_words(&front.detach, &values)).into_iter().collect();
        let region = &self.region;
        commands.push(format!("aws ec2 detach-volume --volume-id {volume}{region}"));
        commands
    }

    /// Returns the detachment of a volume whose data has moved, by words of the shell. It is
    /// deleted after the grace time.
    fn left(&self, volume: &str, device: &str) -> Vec<String> {
        let hours = self.facts.policy.budget.grace_hours;
        let region = &self.region;
        let mut commands = self.detached(volume, device);
        commands
            .push(format!("aws ec2 delete-volume --volume-id {volume}{region}  # after {hours} h"));
        commands
    }

    /// Returns the same of a volume of the file system.
    fn retired(&self, volume: &str) -> Vec<String> {
        let path = self.facts.member(volume).map_or("DEVICE", |member| &member.device.path);
        self.left(&command_line(&[volume]), &command_line(&[path]))
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
            back.extend(self.create(&member.volume.spec, OLD));
            back.push(format!("btrfs device add -K {} {mount}", OLD.words().1));
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
        let mut commands = self.create(with, NEW);
        commands.push(format!("btrfs device add -K {} {mount}", NEW.words().1));
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
    /// of the move; afterwards another volume in the place of the new one. The new one leaves.
    fn replace(&self, volume: &str, with: &VolumeSpec) -> Commands {
        let mount = self.mount();
        let forward = self.replaced(volume, with);
        let (new, device) = NEW.words();
        let mut back = vec![
            format!("btrfs device remove cancel {mount}  # while it runs"),
            format!("btrfs device remove {device} {mount}  # while it runs"),
        ];
        if let Some(member) = self.facts.member(volume) {
            let mut again = self.create(&member.volume.spec, OLD);
            if let Some(first) = again.first_mut() {
                *first += AFTERWARDS;
            }
            back.extend(again);
            back.push(format!("btrfs device add -K {} {mount}", OLD.words().1));
            // The kernel has numbered the new device by the next number.
            let devids = self.facts.members.iter().map(|member| member.device.devid);
            let smaller = devids.max().unwrap_or(0).saturating_add(1);
            back.push(format!("btrfs device remove {smaller} {mount}"));
        }
        back.extend(self.left(&new, &device));
        Commands { forward, back }
    }
}
