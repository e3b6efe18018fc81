//! Tests of the rules of both APIs, on an API in memory.

use super::form::{Attachment, DescribedInstance};
use super::*;
use evenkeel_core::volume::VolumeType;
use evenkeel_planner::autopilot::observation::Modification;
use evenkeel_planner::fleet;
use std::sync::{Arc, Mutex};

/// An hour in milliseconds.
const HOUR_MS: u64 = 3_600_000;
pub const UUID: &str = "0b8e5e3c-6b5d-4a3c-9d0e-000000000001";
const HOST: &str = "i-1";
const NOW: u64 = 1_795_633_200_000;

/// An API with some volumes, which notes the calls.
#[derive(Default)]
struct Memory {
    volumes: Vec<Described>,
    modifications: Vec<Modified>,
    calls: Arc<Mutex<Vec<Request>>>,
    refusal: Option<&'static str>,
}

impl Api for Memory {
    fn volumes(&mut self, filters: &[(String, Vec<String>)]) -> Result<Vec<Described>, Failure> {
        let passes = |volume: &&Described| {
            filters.iter().all(|(name, values)| match name.as_str() {
                "volume-id" => values.contains(&volume.id),
                "attachment.instance-id" => {
                    volume.attachments.iter().any(|found| values.contains(&found.instance))
                }
                "tag-key" => volume.tags.keys().any(|key| values.contains(key)),
                other => {
                    let tag = volume.tags.get(other.strip_prefix("tag:").expect("a tag"));
                    tag.is_some_and(|tag| values.contains(tag))
                }
            })
        };
        Ok(self.volumes.iter().filter(passes).cloned().collect())
    }

    fn modifications(&mut self, volumes: &[&str]) -> Result<Vec<Modified>, Failure> {
        let is_asked = |found: &&Modified| volumes.contains(&found.volume.as_str());
        Ok(self.modifications.iter().filter(is_asked).cloned().collect())
    }

    fn instance(&mut self, id: &str) -> Result<Option<DescribedInstance>, Failure> {
        let found =
            DescribedInstance { instance_type: "m5.large".to_owned(), zone: "local-1a".to_owned() };
        Ok(Some(found).filter(|_| id == HOST))
    }

    fn measures(&mut self, volumes: &[&Described], window_s: u32) -> Result<Measured, Failure> {
        let measure =
            Measure { exceeded_s: Some(window_s), used_mibps: Some(3), ..Measure::default() };
        let volumes = volumes.iter().map(|volume| (volume.id.clone(), measure)).collect();
        Ok(Measured { volumes, unix_ms: Some(NOW - 5) })
    }

    fn call(&mut self, request: &Request) -> Result<(), Failure> {
        self.calls.lock().unwrap().push(request.clone());
        match self.refusal {
            Some(code) => Err(Failure::new(format!("refused ({code})"))),
            None => Ok(()),
        }
    }
}

fn gp3(size_gib: u32) -> VolumeSpec {
    VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    }
}

/// Returns a volume in this state of its attachment to a host; `""` is detached.
fn described(id: &str, attachment: &str, host: &str, tags: &[(&str, &str)]) -> Described {
    let state = if attachment.is_empty() { "available" } else { "in-use" };
    let attached = Attachment {
        instance: host.to_owned(),
        device: format!("/dev/sd{}", if id.ends_with('1') { 'f' } else { 'g' }),
        state: attachment.to_owned(),
        since_ms: NOW - 90_000,
    };
    Described {
        id: id.to_owned(),
        spec: gp3(10),
        state: state.to_owned(),
        created_ms: NOW - 7 * HOUR_MS,
        encrypted: false,
        kms_key: None,
        attachments: Some(attached).filter(|_| !attachment.is_empty()).into_iter().collect(),
        tags: tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
    }
}

fn ec2(memory: Memory, folder: &tempfile::TempDir) -> Ec2 {
    let mut policy = Policy::usual("db", fleet::Policy::usual());
    policy.tags = [("app".to_owned(), "db".to_owned())].into();
    let setting = Setting {
        instance: HOST.to_owned(),
        groups: vec![policy.tags.clone()],
        policy,
        changes: folder.path().join("modifications.json"),
        counters: None,
        clock: || NOW,
    };
    Ec2::new(Box::new(memory), setting)
}

const OWN: (&str, &str) = (FILE_SYSTEM_TAG, UUID);

/// For tests: returns an API with a retired volume that is attached to the host.
pub fn with_retired(id: &str, folder: &tempfile::TempDir) -> Ec2 {
    let tags = [OWN, (RETIRED_TAG, "1795633100000")];
    let volumes = vec![described(id, "attached", HOST, &tags)];
    ec2(Memory { volumes, ..Memory::default() }, folder)
}

#[test]
fn observation_has_the_devices_and_the_tagged_volumes_in_their_states() {
    let folder = tempfile::tempdir().unwrap();
    let new = described("vol-2", "attaching", HOST, &[OWN, (OPERATION_TAG, "0b8e-7.0")]);
    let memory = Memory {
        volumes: vec![
            described("vol-1", "attached", HOST, &[("app", "db")]),
            Described { created_ms: NOW - 90_000, ..new },
            described("vol-3", "", HOST, &[OWN, (RETIRED_TAG, "1795633100000")]),
            described("vol-4", "attached", "i-2", &[OWN]),
            described("vol-5", "attached", HOST, &[]),
            described("vol-6", "detaching", HOST, &[OWN]),
            described("vol-7", "attached", "i-2", &[("app", "db")]),
        ],
        modifications: vec![Modified {
            volume: "vol-1".to_owned(),
            state: Modification::Optimizing,
            started_ms: NOW - HOUR_MS / 2,
        }],
        ..Memory::default()
    };
    let known = ec2(memory, &folder).observe(UUID, &["vol-1".to_owned()]).unwrap();
    let states: Vec<(&str, VolumeState)> =
        known.volumes.iter().map(|volume| (volume.id.as_str(), volume.state)).collect();
    assert_eq!(
        states,
        [
            ("vol-1", VolumeState::Attached),
            ("vol-2", VolumeState::Attaching { since_ms: NOW - 90_000 }),
            ("vol-3", VolumeState::Available),
            ("vol-4", VolumeState::Elsewhere),
            ("vol-6", VolumeState::Detaching),
        ]
    );
    let [first, second, third, ..] = known.volumes.as_slice() else { panic!("five") };
    assert_eq!(first.modification, Some(Modification::Optimizing));
    assert_eq!(first.modified_ms, [NOW - HOUR_MS / 2]);
    assert_eq!((first.exceeded_s, first.used_mibps), (Some(900), Some(3)));
    assert_eq!(second.made_by.as_deref(), Some("0b8e-7.0"));
    assert_eq!(third.retired_ms, Some(1_795_633_100_000));
    let instance = known.instance.unwrap();
    // Four volumes of 27 are attached to the host; one of them is of no file system here.
    assert_eq!(instance.free_slots, 27 - 4);
    assert_eq!((instance.other_iops, instance.other_mibps), (3_000, 125));
    // 0.08 USD a GiB and month: five volumes of the file system and one more of the group.
    let ten_gib = 800_000;
    assert_eq!(known.account.fleet_volumes, 6);
    assert_eq!(known.account.group_monthly_micro, 6 * ten_gib);
    // One was modified, and one retired, in the last hour. A new one is no change.
    assert_eq!(known.account.fleet_changed_last_hour, 2);
    assert_eq!(known.unix_ms, Some(NOW - 5));
}

#[test]
fn device_without_the_tag_gets_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory {
        volumes: vec![
            described("vol-1", "attached", HOST, &[]),
            described("vol-2", "attached", HOST, &[OWN]),
            described("vol-3", "attached", HOST, &[(FILE_SYSTEM_TAG, "another")]),
            described("vol-4", "attached", HOST, &[]),
        ],
        ..Memory::default()
    };
    let calls = Arc::clone(&memory.calls);
    let mut ec2 = ec2(memory, &folder);
    let untagged = ec2.untagged();
    let devices = ["vol-1", "vol-2", "vol-3"].map(str::to_owned);
    ec2.observe(UUID, &devices).unwrap();
    let found = ["vol-1", "vol-2", "vol-3", "vol-4"].map(|volume| untagged.has(volume));
    assert_eq!(found, [true, false, true, false]);
    ec2.adopt(UUID).unwrap();
    ec2.adopt(UUID).unwrap();
    let calls = calls.lock().unwrap().clone();
    let tagged: Vec<&str> = calls.iter().map(|call| call.fields[0].1.as_str()).collect();
    assert_eq!(tagged, ["vol-1", "vol-3"]);
    assert!(calls.iter().all(|call| call.tags == [(FILE_SYSTEM_TAG.into(), UUID.into())]));
    assert!(!untagged.has("vol-1"));
}

/// Makes a call on an API with these volumes; returns its outcome and the calls that were sent.
fn make(
    volumes: Vec<Described>,
    refusal: Option<&'static str>,
    call: &Call,
) -> (Result<(), Fault>, Vec<Request>) {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory { volumes, refusal, ..Memory::default() };
    let calls = Arc::clone(&memory.calls);
    let outcome = ec2(memory, &folder).execute(UUID, call);
    let calls = calls.lock().unwrap().clone();
    (outcome, calls)
}

#[test]
fn call_that_was_made_has_no_further_effect() {
    let volume = || "vol-1".to_owned();
    let attached = || vec![described("vol-1", "attached", HOST, &[OWN])];
    let detached = || vec![described("vol-1", "", HOST, &[OWN, (RETIRED_TAG, "5")])];
    let operation = "0b8e-7.0".to_owned();
    let made = vec![described("vol-1", "", HOST, &[OWN, (OPERATION_TAG, "0b8e-7.0")])];
    for (volumes, call) in [
        (made, Call::Create { operation, spec: gp3(10) }),
        (attached(), Call::Attach { volume: volume() }),
        (attached(), Call::Modify { volume: volume(), to: gp3(10) }),
        (detached(), Call::Detach { volume: volume() }),
        (Vec::new(), Call::Detach { volume: volume() }),
        (detached(), Call::Retire { volume: volume() }),
        (Vec::new(), Call::Delete { volume: volume() }),
    ] {
        let (outcome, calls) = make(volumes, None, &call);
        assert_eq!((outcome, calls), (Ok(()), Vec::new()), "{call:?}");
    }
}

#[test]
fn new_volume_has_the_tags_of_operation_file_system_and_group() {
    let call = Call::Create { operation: "0b8e-7.0".to_owned(), spec: gp3(8) };
    let (outcome, calls) = make(Vec::new(), None, &call);
    assert_eq!(outcome, Ok(()));
    let [request] = calls.as_slice() else { panic!("one: {calls:?}") };
    let fields: Vec<(&str, &str)> =
        request.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(
        fields,
        [
            ("AvailabilityZone", "local-1a"),
            ("VolumeType", "gp3"),
            ("Size", "8"),
            ("Iops", "3000"),
            ("Throughput", "125"),
            ("ClientToken", "0b8e-7.0"),
        ]
    );
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let expected = [tag("app", "db"), tag(FILE_SYSTEM_TAG, UUID), tag(OPERATION_TAG, "0b8e-7.0")];
    assert_eq!(request.tags, expected);
}

#[test]
fn modification_has_only_what_differs_and_attachment_a_free_name() {
    let to = VolumeSpec { iops: Some(4_000), ..gp3(12) };
    let call = Call::Modify { volume: "vol-1".to_owned(), to };
    let (_, calls) = make(vec![described("vol-1", "attached", HOST, &[OWN])], None, &call);
    let field = |name: &'static str, value: &str| (name, value.to_owned());
    let expected = [field("VolumeId", "vol-1"), field("Size", "12"), field("Iops", "4000")];
    assert_eq!(calls[0].fields, expected);
    let call = Call::Attach { volume: "vol-2".to_owned() };
    let volumes =
        vec![described("vol-1", "attached", HOST, &[OWN]), described("vol-2", "", HOST, &[OWN])];
    let (_, calls) = make(volumes, None, &call);
    let expected =
        [field("VolumeId", "vol-2"), field("InstanceId", HOST), field("Device", "/dev/sdg")];
    assert_eq!((calls[0].action, calls[0].fields.as_slice()), ("AttachVolume", &expected[..]));
}

#[test]
fn volume_of_another_file_system_is_neither_attached_retired_nor_deleted() {
    let other = (FILE_SYSTEM_TAG, "another");
    let volume = || "vol-1".to_owned();
    let retired = (RETIRED_TAG, "5");
    for (tags, call) in [
        (vec![other], Call::Attach { volume: volume() }),
        (vec![], Call::Attach { volume: volume() }),
        (vec![other], Call::Retire { volume: volume() }),
        (vec![other, retired], Call::Delete { volume: volume() }),
        (vec![OWN], Call::Delete { volume: volume() }),
        (vec![retired], Call::Delete { volume: volume() }),
    ] {
        let (outcome, calls) = make(vec![described("vol-1", "", HOST, &tags)], None, &call);
        assert!(matches!(outcome, Err(Fault::Refused(_))), "{call:?}: {outcome:?}");
        assert_eq!(calls, [], "{call:?}");
    }
    let attached = vec![described("vol-1", "attached", HOST, &[OWN, retired])];
    let (outcome, calls) = make(attached, None, &Call::Delete { volume: volume() });
    assert!(matches!(outcome, Err(Fault::Later(_))), "{outcome:?}");
    assert_eq!(calls, []);
}

#[test]
fn refusal_names_the_missing_right_and_a_busy_volume_is_tried_again() {
    let volumes = || vec![described("vol-1", "attached", HOST, &[OWN])];
    let call = Call::Detach { volume: "vol-1".to_owned() };
    let (outcome, _) = make(volumes(), Some("UnauthorizedOperation"), &call);
    let Err(Fault::Refused(text)) = outcome else { panic!("{outcome:?}") };
    assert!(text.ends_with("the credentials need the right ec2:DetachVolume"), "{text}");
    let (outcome, _) = make(volumes(), Some("IncorrectState"), &call);
    assert!(matches!(outcome, Err(Fault::Later(_))), "{outcome:?}");
}

#[test]
fn new_volume_is_encrypted_as_the_file_system_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = described("vol-1", "attached", HOST, &[OWN]);
    first.encrypted = true;
    first.kms_key = Some("arn:k".to_owned());
    let memory = Memory { volumes: vec![first], ..Memory::default() };
    let calls = Arc::clone(&memory.calls);
    let mut ec2 = ec2(memory, &folder);
    ec2.observe(UUID, &["vol-1".to_owned()]).unwrap();
    ec2.execute(UUID, &Call::Create { operation: "o".to_owned(), spec: gp3(8) }).unwrap();
    let fields = calls.lock().unwrap()[0].fields.clone();
    assert!(fields.contains(&("Encrypted", "true".to_owned())), "{fields:?}");
    assert!(fields.contains(&("KmsKeyId", "arn:k".to_owned())), "{fields:?}");
}
