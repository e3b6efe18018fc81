//! Copies of volumes to smaller ones: their sum, the list of the largest savings, and the commands.

use super::FleetAnswer;
use super::script::{flags, region};
use super::text::what;
use crate::cost;
use crate::fleet::{Judged, Smaller, Volume};
use crate::format::money_exact;
use crate::used::{Source, Used};
use evenkeel_core::price;
use evenkeel_sim::text::table;

const GIB: u64 = 1 << 30;

/// The sum over the volumes that could be copied to smaller ones, beside the advised actions.
#[derive(Clone, Copy, Default)]
pub struct Copies {
    /// The number of volumes.
    pub volumes: u64,
    /// Their monthly cost as advised, in millionths.
    pub before: u64,
    /// That of the smaller volumes, in millionths.
    pub after: u64,
}

impl Copies {
    /// Returns the sum of an answer.
    #[must_use]
    pub fn of(answer: &FleetAnswer<'_>) -> Self {
        let mut sum = Self::default();
        for (_, _, smaller) in all(answer) {
            sum.volumes += 1;
            sum.before = sum.before.saturating_add(smaller.before);
            sum.after = sum.after.saturating_add(smaller.after);
        }
        sum
    }
}

/// Returns the volumes that could be copied.
fn all<'a>(
    answer: &'a FleetAnswer<'_>,
) -> impl Iterator<Item = (&'a Volume, &'a Judged, &'a Smaller)> {
    answer.all().filter_map(|(volume, judged)| Some((volume, judged, judged.smaller.as_ref()?)))
}

/// Returns the used space in words: GiB, rounded up.
fn used_words(used: &Used) -> String {
    let gib = used.bytes.div_ceil(GIB);
    match used.source {
        Source::FileSystem => format!("{gib}"),
        Source::Snapshot => format!("at most {gib}"),
    }
}

/// Returns the line about copies and the table of those that save the most.
pub fn text(answer: &FleetAnswer<'_>, top: usize) -> String {
    let mut copies: Vec<(&Volume, &Judged, &Smaller)> = all(answer).collect();
    if copies.is_empty() {
        return String::new();
    }
    copies.sort_by_key(|(volume, _, smaller)| (std::cmp::Reverse(smaller.saving()), &volume.id));
    let currency = &answer.policies.currency;
    let sum = Copies::of(answer);
    let mut text = format!(
        "\nafter a copy: smaller volumes, with {} % free, have room for the file systems of {} of \
         the volumes, and save\n{} {currency} a month more, which is not in the sums above. No \
         volume shrinks: its files are copied to a new one\n",
        answer.policies.usual.free_percent,
        sum.volumes,
        price::rounded(sum.before.saturating_sub(sum.after)),
    );
    copies.truncate(top);
    let savings: Vec<u64> = copies.iter().map(|(_, _, smaller)| smaller.saving()).collect();
    let total = price::half_up(savings.iter().copied().fold(0, u64::saturating_add));
    let cents = cost::apportioned(&savings, total);
    let rows = copies.iter().zip(cents).map(|((volume, judged, smaller), cents)| {
        vec![
            volume.id.clone(),
            what(&judged.advised().0),
            used_words(&smaller.used),
            what(&smaller.spec),
            price::decimal(cents),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        text += &table(&["VOLUME", "AS ADVISED", "USED GIB", "SMALLER", "SAVING"], &rows);
    }
    text
}

/// Returns the commands of a copy, all as comments: a person carries them out step by step.
pub fn commands(volume: &Volume, judged: &Judged, currency: &str) -> String {
    let Some(smaller) = &judged.smaller else { return String::new() };
    let id = &volume.id;
    let region = region(volume);
    let zone = volume.zone.as_deref().unwrap_or("ZONE");
    let hosts = volume.attached_to.as_deref().unwrap_or("INSTANCE");
    let host = hosts.split_whitespace().next().unwrap_or("INSTANCE");
    let device = volume.device.as_deref().and_then(|device| device.split_whitespace().next());
    let device = device.unwrap_or("DEVICE");
    format!(
        "\n# {id}: after a copy: {} GiB of {} are used; {} saves {} {currency} a month more\n\
         # NEW=$(aws ec2 create-volume --availability-zone {zone}{} --size {} --query VolumeId \
         --output text{region})\n\
         # aws ec2 wait volume-available --volume-ids \"$NEW\"{region}\n\
         # aws ec2 attach-volume --volume-id \"$NEW\" --instance-id {host} --device \
         FREE_DEVICE{region}\n\
         # On {host}, where the old volume is mounted at OLD; /dev/NEW is the new volume:\n\
         #   mkfs.xfs /dev/NEW && mkdir -p /mnt/new && mount /dev/NEW /mnt/new\n\
         #   rsync -aHAXS --numeric-ids --one-file-system OLD/ /mnt/new/\n\
         #   stop the programs that write to OLD, then copy the rest:\n\
         #   rsync -aHAXS --numeric-ids --one-file-system --delete OLD/ /mnt/new/\n\
         #   umount /mnt/new OLD && mount /dev/NEW OLD; change /etc/fstab to the new UUID; start \
         the programs\n\
         # aws ec2 detach-volume --volume-id {id}{region}\n\
         # Keep {id} until the copy is checked. undo: attach it again as {device}, and mount it\n",
        used_words(&smaller.used),
        judged.present.size_gib,
        what(&smaller.spec),
        money_exact(smaller.saving()),
        flags(&smaller.spec),
        smaller.spec.size_gib,
    )
}
