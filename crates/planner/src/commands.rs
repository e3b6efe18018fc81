//! Commands that lead to a layout, and back to the volume that was recorded.

mod terraform;

use crate::case::Case;
use crate::layout::Layout;
use crate::prices::Prices;
use crate::regions::{self, DEFAULT_REGION};
use crate::spread::Spread;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::volume::{ModifyPolicy, VolumeChange, VolumeRequest, VolumeSpec};
use serde_json::{Value, json};

/// Commands of each tool.
pub struct Commands {
    /// Whether the volume is one of AWS: those of aws-cli come first then.
    pub is_at_aws: bool,
    /// This program's.
    pub evenkeel: Vec<String>,
    /// Those of aws-cli.
    pub aws: Vec<String>,
    /// Blocks of Terraform.
    pub terraform: String,
    /// The command on the host that makes one device of several volumes.
    pub stripe: Vec<String>,
    /// Obstacles, and steps beside the commands.
    pub notes: Vec<String>,
    /// The way back.
    pub back: Back,
}

/// The commands of the way back.
#[derive(Default)]
pub struct Back {
    /// This program's.
    pub evenkeel: Vec<String>,
    /// Those of aws-cli.
    pub aws: Vec<String>,
    /// Obstacles, and steps beside the commands.
    pub notes: Vec<String>,
}

/// Returns the commands for a layout.
#[must_use]
pub fn commands(case: &Case, layout: &Layout) -> Commands {
    match modified(case, layout) {
        Ok((id, source)) => by_modifying(case, layout, &id, &source),
        Err(reason) => by_creating(case, layout, reason),
    }
}

/// Returns the recorded volume if it can be modified to this layout; otherwise the reason, if there
/// is one to report.
fn modified(case: &Case, layout: &Layout) -> Result<(String, VolumeSpec), Option<String>> {
    let id: VolumeId = case.trace.name.parse().map_err(|_| None)?;
    let Some(source) = case.source else {
        let reason = format!("describe {id} with --source to modify it, if the rules allow that");
        return Err(Some(reason));
    };
    if (source.volumes, layout.volumes) != (1, 1) {
        return Err(Some("a stripe is made of new volumes, and its bytes are copied".to_owned()));
    }
    match case.space.rules.modify(&source.each, &change(&source.each, &layout.each)) {
        Ok(_) => Ok((id.to_string(), source.each)),
        Err(invalid) => Err(Some(format!("{id} cannot be modified: {invalid}"))),
    }
}

/// Returns the change from one volume to another.
fn change(from: &VolumeSpec, to: &VolumeSpec) -> VolumeChange {
    let request = to.request();
    VolumeChange {
        volume_type: Some(to.volume_type),
        size_gib: Some(to.size_gib),
        iops: request.iops,
        throughput_mibps: request.throughput_mibps,
        multi_attach: (from.multi_attach != to.multi_attach).then_some(to.multi_attach),
    }
}

fn by_modifying(case: &Case, layout: &Layout, id: &str, source: &VolumeSpec) -> Commands {
    let rules = case.space.rules;
    let policy = rules.modify_rules().map(|rules| match rules.policy {
        ModifyPolicy::Cooldown { hours } => {
            format!("a volume is modified again after {hours} h at the earliest")
        }
        ModifyPolicy::Rolling { modifications_max, hours } => {
            format!("a volume is modified at most {modifications_max} times in {hours} h")
        }
    });
    let back = match rules.modify(&layout.each, &change(&layout.each, source)) {
        Ok(_) => Back {
            evenkeel: vec![evenkeel_modify(id, source)],
            aws: vec![aws_modify(case, id, source)],
            notes: policy.into_iter().collect(),
        },
        Err(invalid) => {
            let was = Layout::one(*source);
            let note = format!(
                "{id} cannot be modified back: {invalid}. Make a volume of what it was, {was}, \
                 and copy the bytes to it"
            );
            Back { notes: vec![note], ..Back::default() }
        }
    };
    Commands {
        is_at_aws: case.is_at_aws,
        evenkeel: vec![evenkeel_modify(id, &layout.each)],
        aws: vec![aws_modify(case, id, &layout.each)],
        terraform: terraform::modified(id, &layout.each),
        stripe: vec![],
        notes: vec![],
        back,
    }
}

fn by_creating(case: &Case, layout: &Layout, reason: Option<String>) -> Commands {
    let VolumeRequest { volume_type, size_gib, multi_attach, .. } = layout.each.request();
    let [both, both_aws] =
        if multi_attach { [" --multi-attach", " --multi-attach-enabled"] } else { ["", ""] };
    let flags = flags(&layout.each);
    let create =
        format!("evenkeel volume create --type {volume_type} --size {size_gib}{flags}{both}");
    let region = region(case);
    let zone = case.described.as_ref().and_then(|described| described.zone.as_deref());
    let zone = zone.filter(|_| case.is_at_aws).unwrap_or("ZONE");
    let create_aws = format!(
        "aws ec2 create-volume --availability-zone {zone} --volume-type {volume_type} --size \
         {size_gib}{flags}{both_aws}{region}"
    );
    let attach_aws = format!(
        "aws ec2 attach-volume --volume-id VOLUME --instance-id INSTANCE --device DEVICE{region}"
    );
    let delete_aws = each("aws ec2 delete-volume --volume-id", &region, layout.volumes);
    let copy = "stop the writers, copy with `rsync -aHAXS OLD/ NEW/`, start them on the copy";
    let mut notes: Vec<String> = reason.into_iter().collect();
    notes.push(copy.to_owned());
    let stripe_kib = match case.space.spread {
        Spread::Striped { stripe_bytes } => Some(stripe_bytes >> 10),
        Spread::Hot { .. } => None,
    };
    let back = Back {
        evenkeel: vec![each("evenkeel volume rm", "", layout.volumes)],
        aws: vec![delete_aws],
        notes: vec![
            "the old volume is unchanged: copy newer data to it, start the writers on it again, \
             and delete the new ones"
                .to_owned(),
        ],
    };
    Commands {
        is_at_aws: case.is_at_aws,
        evenkeel: vec![times(&create, layout.volumes)],
        aws: vec![times(&create_aws, layout.volumes), attach_aws],
        terraform: terraform::created(layout),
        stripe: match stripe_kib {
            _ if layout.volumes <= 1 => vec![],
            Some(stripe_kib) => vec![stripe_command(layout.volumes, stripe_kib)],
            None => vec![ONE_AFTER_THE_OTHER.to_owned()],
        },
        notes,
        back,
    }
}

/// Returns a command that is run once for each volume.
fn times(command: &str, volumes: u32) -> String {
    match volumes {
        1 => command.to_owned(),
        _ => format!("for n in $(seq {volumes}); do {command}; done"),
    }
}

/// Returns a command with the id of each new volume, and flags behind it.
fn each(command: &str, flags: &str, volumes: u32) -> String {
    match volumes {
        1 => format!("{command} VOLUME{flags}"),
        _ => format!("for v in VOLUME...; do {command} $v{flags}; done"),
    }
}

/// The command that makes one device of several, which are filled one after the other.
const ONE_AFTER_THE_OTHER: &str = "pvcreate DEVICE... && vgcreate plan DEVICE... && lvcreate \
                                   --extents 100%FREE --name data plan";

/// Returns the command that makes a stripe of several devices.
fn stripe_command(volumes: u32, stripe_kib: u32) -> String {
    format!(
        "mdadm --create /dev/md0 --level=0 --chunk={stripe_kib}K --raid-devices={volumes} DEVICE..."
    )
}

/// Returns the flags for IOPS and throughput that are provisioned; both tools have them.
fn flags(each: &VolumeSpec) -> String {
    let request = each.request();
    let flag = |name: &str, value: Option<u32>| {
        value.map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    flag("--iops", request.iops) + &flag("--throughput", request.throughput_mibps)
}

fn evenkeel_modify(id: &str, each: &VolumeSpec) -> String {
    let VolumeSpec { volume_type, size_gib, .. } = each;
    format!("evenkeel volume modify {id} --type {volume_type} --size {size_gib}{}", flags(each))
}

fn aws_modify(case: &Case, id: &str, each: &VolumeSpec) -> String {
    let VolumeSpec { volume_type, size_gib, .. } = each;
    let flags = flags(each);
    let region = region(case);
    format!(
        "aws ec2 modify-volume --volume-id {id} --volume-type {volume_type} --size \
         {size_gib}{flags}{region}"
    )
}

/// Returns the region of the prices as a flag of aws-cli, unless it is the default and no list of
/// volumes says it.
fn region(case: &Case) -> String {
    let described = case.described.as_ref();
    let is_known = described.is_some_and(|described| described.region.is_some());
    match &case.space.prices {
        Prices::List(list) if is_known || list.list().region() != DEFAULT_REGION => {
            format!(" --region {}", regions::endpoint(list.list().region()))
        }
        Prices::List(_) | Prices::Book(_) => String::new(),
    }
}

impl Commands {
    /// Returns the commands as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "evenkeel": self.evenkeel,
            "aws": self.aws,
            "terraform": self.terraform,
            "stripe": self.stripe,
            "notes": self.notes,
            "back": {
                "evenkeel": self.back.evenkeel,
                "aws": self.back.aws,
                "notes": self.back.notes,
            },
        })
    }

    /// Returns the first command of each tool.
    fn first_of_each<'a>(
        &self,
        evenkeel: &'a [String],
        aws: &'a [String],
    ) -> impl Iterator<Item = &'a String> {
        let tools = if self.is_at_aws { [aws, evenkeel] } else { [evenkeel, aws] };
        tools.into_iter().filter_map(|commands| commands.first())
    }

    /// Returns the commands in a few lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from("to make it:\n");
        for line in self.first_of_each(&self.evenkeel, &self.aws) {
            text += &format!("  {line}\n");
        }
        if let Some(line) = self.stripe.first() {
            text += &format!("  {line}\n");
        }
        for note in &self.notes {
            text += &format!("  # {note}\n");
        }
        text += "to go back:\n";
        for line in self.first_of_each(&self.back.evenkeel, &self.back.aws) {
            text += &format!("  {line}\n");
        }
        for note in &self.back.notes {
            text += &format!("  # {note}\n");
        }
        text
    }
}
