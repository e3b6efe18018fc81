//! The quotas of the account, compared with plain sums over the volumes.

use std::collections::BTreeMap;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeType};
use evenkeel_wire::agent::{Capacity, HostAddress};
use proptest::prelude::*;

use super::*;
use crate::model::{Begins, Command, LOCAL_TYPE, ModifyPolicy, Settled, Tags};

const NOW: UnixMs = UnixMs(1_000_000);
const KIB: u64 = 1 << 10;

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits(number.into())
}

/// A model with a recycle bin and these quotas.
struct World {
    settings: Settings,
    model: Model,
}

impl World {
    fn new(iops: u64, mibps: u64, gib: u64) -> Self {
        let account_quotas = AccountQuotas { iops: Some(iops), mibps: Some(mibps), gib: Some(gib) };
        let settings = Settings {
            recycle_bin_days: 7,
            modify_policy: ModifyPolicy::Immediate,
            account_quotas,
            ..Settings::default()
        };
        let mut world = Self { settings, model: Model::default() };
        let id = InstanceId::from_bits(0);
        let local = Command::RegisterHost {
            id,
            zone: None,
            instance_type: LOCAL_TYPE.into(),
            address: HostAddress::Local,
            tags: Tags::new(),
        };
        world.run(&local).unwrap();
        world
    }

    /// Decides, applies, and confirms every change as the data plane does.
    fn run(&mut self, command: &Command) -> Result<(), Refusal> {
        let decision = self.model.decide(&self.settings, &Capacity::Unknown, command, NOW)?;
        let volume = decision.volume();
        decision.events.into_iter().for_each(|event| self.model.apply(event));
        if let Some(id) = volume {
            let events = self.model.settle(&self.settings, id, Settled::Done, NOW);
            events.into_iter().for_each(|event| self.model.apply(event));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Wanted {
    volume_type: VolumeType,
    size_gib: u32,
    iops: u32,
    mibps: u32,
}

impl Wanted {
    fn request(self) -> VolumeRequest {
        VolumeRequest {
            volume_type: self.volume_type,
            size_gib: self.size_gib,
            iops: (self.volume_type != VolumeType::Standard).then_some(self.iops),
            throughput_mibps: (self.volume_type == VolumeType::Gp3).then_some(self.mibps),
            multi_attach: false,
        }
    }

    /// Returns what it takes, as the documentation of volume types has it.
    fn amounts(self) -> Amounts {
        let (iops, bytes) = match self.volume_type {
            VolumeType::Standard => (0, 0),
            VolumeType::Gp3 => (u64::from(self.iops), u64::from(self.mibps) * MIB),
            _ => (u64::from(self.iops), u64::from(self.iops) * 16 * KIB),
        };
        [iops, bytes, self.size_gib.into()]
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Create(u8, Wanted),
    Adopt(u8, Wanted),
    Modify(u8, Wanted),
    Delete(u8),
    Restore(u8),
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let kinds = [VolumeType::Standard, VolumeType::Gp3, VolumeType::Io1];
    (0..kinds.len(), 100_u32..200, 3_000_u32..4_000, 125_u32..300).prop_map(
        move |(kind, size_gib, iops, mibps)| {
            let volume_type = kinds[kind];
            Wanted { volume_type, size_gib, iops, mibps }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0_u8..6;
    prop_oneof![
        4 => (number(), wanted()).prop_map(|(number, wanted)| Step::Create(number, wanted)),
        2 => (number(), wanted()).prop_map(|(number, wanted)| Step::Adopt(number, wanted)),
        4 => (number(), wanted()).prop_map(|(number, wanted)| Step::Modify(number, wanted)),
        2 => number().prop_map(Step::Delete),
        2 => number().prop_map(Step::Restore),
    ]
}

/// The volumes, and whether each is in the recycle bin.
#[derive(Default)]
struct Oracle(BTreeMap<u8, (Wanted, bool)>);

impl Oracle {
    fn taken(volume: &(Wanted, bool)) -> Amounts {
        let [iops, bytes, gib] = volume.0.amounts();
        if volume.1 { [0, 0, gib] } else { [iops, bytes, gib] }
    }

    fn sum(&self, without: Option<u8>) -> Amounts {
        let others = self.0.iter().filter(|(number, _)| Some(**number) != without);
        others.fold([0; 3], |sum, (_, volume)| {
            let taken = Self::taken(volume);
            [sum[0] + taken[0], sum[1] + taken[1], sum[2] + taken[2]]
        })
    }

    /// Returns the refusal of a volume that would take `after`.
    fn refusal(&self, settings: &Settings, number: u8, after: Amounts) -> Option<OverQuota> {
        let before = self.0.get(&number).map_or([0; 3], Self::taken);
        let used = self.sum(Some(number));
        let quotas = settings.account_quotas.amounts();
        (0..3).find_map(|index| {
            let quota = quotas[index]?;
            let is_over = after[index] > before[index] && used[index] + after[index] > quota;
            let resource = AccountResource::ALL[index];
            let [used, wanted] = [used[index], after[index]];
            is_over.then_some(OverQuota { resource, quota, used, wanted })
        })
    }

    /// Returns the command of a step, what its volume becomes, and what it takes meanwhile; `None`
    /// if the step is not possible now.
    fn plan(&self, step: Step) -> Option<(Command, u8, (Wanted, bool), Amounts)> {
        let zone = || "local-1a".to_owned();
        let tags = Tags::new;
        match step {
            Step::Create(number, wanted) if !self.0.contains_key(&number) => {
                let command = Command::CreateVolume {
                    id: vol(number),
                    request: wanted.request(),
                    begins: Begins::default(),
                    zone: zone(),
                    tags: tags(),
                    token: None,
                };
                Some((command, number, (wanted, false), wanted.amounts()))
            }
            Step::Adopt(number, wanted) if !self.0.contains_key(&number) => {
                let request = wanted.request();
                let id = vol(number);
                let is_encrypted = false;
                let command =
                    Command::AdoptVolume { id, is_encrypted, request, zone: zone(), tags: tags() };
                Some((command, number, (wanted, false), wanted.amounts()))
            }
            Step::Modify(number, wanted) => {
                let (before, is_binned) = *self.0.get(&number)?;
                if is_binned || wanted.size_gib < before.size_gib || wanted == before {
                    return None;
                }
                let request = wanted.request();
                let change = VolumeChange {
                    volume_type: Some(wanted.volume_type),
                    size_gib: Some(wanted.size_gib),
                    iops: request.iops,
                    throughput_mibps: request.throughput_mibps,
                    ..VolumeChange::default()
                };
                // Both are reserved until the change is confirmed.
                let [then, now] = [before.amounts(), wanted.amounts()];
                let both = [then[0].max(now[0]), then[1].max(now[1]), then[2].max(now[2])];
                let command = Command::ModifyVolume { id: vol(number), change };
                Some((command, number, (wanted, false), both))
            }
            Step::Delete(number) => {
                let (wanted, is_binned) = *self.0.get(&number)?;
                let gib = wanted.amounts()[2];
                let command = Command::DeleteVolume { id: vol(number) };
                (!is_binned).then_some((command, number, (wanted, true), [0, 0, gib]))
            }
            Step::Restore(number) => {
                let (wanted, is_binned) = *self.0.get(&number)?;
                let command = Command::RestoreVolume { id: vol(number), error: None };
                is_binned.then_some((command, number, (wanted, false), wanted.amounts()))
            }
            Step::Create(..) | Step::Adopt(..) => None,
        }
    }
}

proptest! {
    /// A change is refused if and only if it takes more than before, and the sum of all volumes
    /// would be more than the quota.
    #[test]
    fn refusals_and_used_amounts_are_those_of_a_plain_sum(
        steps in prop::collection::vec(step(), 1..40),
        quotas in (6_000_u64..12_000, 300_u64..700, 300_u64..600),
        keeps in any::<bool>(),
    ) {
        let mut world = World::new(quotas.0, quotas.1, quotas.2);
        if keeps {
            world.model.keep_books(&world.settings.clone(), &Capacity::Unknown);
        }
        let mut oracle = Oracle::default();
        for step in steps {
            let Some((command, number, after, taken)) = oracle.plan(step) else { continue };
            let refusal = oracle.refusal(&world.settings, number, taken);
            let result = world.run(&command);
            prop_assert_eq!(&result, &refusal.map_or(Ok(()), |over| Err(Refusal::OverQuota(over))));
            if result.is_ok() {
                oracle.0.insert(number, after);
            }
            prop_assert_eq!(world.model.account_amounts(&world.settings), oracle.sum(None));
        }
    }
}

#[test]
fn each_way_to_get_more_is_refused_beyond_each_quota() {
    let io1 = Wanted { volume_type: VolumeType::Io1, size_gib: 100, iops: 3_000, mibps: 0 };
    let gp3 = Wanted { volume_type: VolumeType::Gp3, size_gib: 100, iops: 3_000, mibps: 125 };
    let mut oracle = Oracle::default();
    let mut world = World::new(7_000, 200, 300);
    for step in [Step::Create(0, io1), Step::Adopt(1, gp3), Step::Delete(1)] {
        let (command, number, after, _) = oracle.plan(step).unwrap();
        world.run(&command).unwrap();
        oracle.0.insert(number, after);
    }
    let over = |resource, quota, used, wanted| OverQuota { resource, quota, used, wanted };
    let io1_bytes = 3_000 * 16 * KIB;
    let size = over(AccountResource::Size, 300, 200, 101);
    let iops = over(AccountResource::Iops, 7_000, 3_000, 4_001);
    let throughput = over(AccountResource::Throughput, 200 * MIB, io1_bytes, 154 * MIB);
    let standard = |size_gib| Wanted { volume_type: VolumeType::Standard, size_gib, ..gp3 };
    for (step, expected) in [
        (Step::Create(2, standard(101)), size),
        (Step::Adopt(2, standard(101)), size),
        (Step::Create(2, Wanted { iops: 4_001, ..io1 }), iops),
        (Step::Create(2, Wanted { mibps: 154, ..gp3 }), throughput),
        (Step::Modify(0, Wanted { size_gib: 201, ..io1 }), over(size.resource, 300, 100, 201)),
        (Step::Modify(0, Wanted { iops: 7_001, size_gib: 200, ..io1 }), {
            over(iops.resource, 7_000, 0, 7_001)
        }),
    ] {
        let (command, ..) = oracle.plan(step).unwrap();
        assert_eq!(world.run(&command), Err(Refusal::OverQuota(expected)), "{step:?}");
    }
    // A copy of a volume takes as much as any volume.
    let begins = Begins {
        source: Some(vol(0)),
        spares: [1, 2].map(SnapshotId::from_bits),
        ..Begins::default()
    };
    let zone = "local-1a".to_owned();
    let tags = Tags::new();
    let request = Wanted { size_gib: 101, ..io1 }.request();
    let copy = Command::CreateVolume { id: vol(2), request, begins, zone, tags, token: None };
    assert_eq!(world.run(&copy), Err(Refusal::OverQuota(size)));
    // The bin keeps bytes, and a restored volume reserves again.
    world.settings.account_quotas.iops = Some(5_999);
    let (restore, ..) = oracle.plan(Step::Restore(1)).unwrap();
    let expected = over(AccountResource::Iops, 5_999, 3_000, 3_000);
    assert_eq!(world.run(&restore), Err(Refusal::OverQuota(expected)));
    // A lower quota takes nothing away: what needs no more is still possible.
    world.settings.account_quotas = AccountQuotas { iops: Some(1), mibps: Some(1), gib: Some(1) };
    let (less, ..) = oracle.plan(Step::Modify(0, Wanted { iops: 2_999, ..io1 })).unwrap();
    assert_eq!(world.run(&less), Ok(()));
}
