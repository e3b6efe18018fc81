//! Copies of volumes and snapshots, and encryption, over HTTP, on a data plane in a map.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Client, FakeAgent, Server, config_with, create, text};
use evenkeel_control::{Settings, StoreKey};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_wire::agent::{Bytes, Command, Failed, FailedKind, Reply, StoredSnapshot, UNIT_BYTES};
use evenkeel_wire::aws::xml::Element;

const KEY: &str = "01234567-89ab-cdef-0123-456789abcdef";

struct Fixture {
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

fn key() -> Option<StoreKey> {
    Some(StoreKey { id: KEY.into() })
}

fn fixture(key: Option<StoreKey>) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let config = config_with(folder.path(), Settings { key, ..Settings::default() });
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    Fixture { server, client, folder }
}

impl Fixture {
    /// Stops the server and starts one on the same folder.
    fn restart(self, key: Option<StoreKey>) -> Self {
        let Self { server, folder, .. } = self;
        let agent = Arc::clone(&server.agent);
        server.stop().unwrap();
        let config = config_with(folder.path(), Settings { key, ..Settings::default() });
        let server = Server::start_with(config, agent).unwrap();
        Self { client: server.client(), server, folder }
    }

    fn volume(&self, id: &str) -> Option<Element> {
        let reply = self.client.call("DescribeVolumes", &[("VolumeId.1", id)]).ok()?;
        reply.items("volumeSet").first().cloned()
    }

    fn snapshot(&self, id: &str) -> Element {
        let reply = self.client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
        reply.items("snapshotSet")[0].clone()
    }

    fn copy(&self, source: &str, more: &[(&str, &str)]) -> Element {
        let params = [&[("SourceVolumeId", source)], more].concat();
        let reply = self.client.call("CopyVolumes", &params).unwrap();
        reply.items("volumeSet")[0].clone()
    }

    /// Waits until the server's own work, which it does once a second, has a result.
    #[track_caller]
    fn comes(&self, is: impl Fn() -> bool) {
        // Each attempt sends a request, which takes a while.
        let is_so = |_| self.client.call("DescribeRegions", &[]).is_ok() && is();
        assert!((0..20_000).any(is_so), "it does not come");
    }

    /// Returns the snapshots that the data plane has.
    fn stored(&self) -> Vec<SnapshotId> {
        self.server.agent.with(|state| state.snapshots.keys().copied().collect())
    }
}

#[test]
fn volume_copy_begins_as_a_hidden_snapshot() {
    let fixture = fixture(None);
    let source = create(&fixture.client, &[("Size", "10"), ("VolumeType", "gp3")]);
    let copy = fixture.copy(&source, &[("VolumeType", "gp3"), ("ClientToken", "t")]);
    let id = text(&copy, "volumeId").to_owned();
    assert_eq!(text(&copy, "sourceVolumeId"), source);
    assert_eq!((text(&copy, "size"), text(&copy, "snapshotId")), ("10", ""));
    assert_eq!(text(&copy, "status"), "available");
    let log = fixture.server.agent.with(|state| state.log.clone());
    let made = log.iter().find_map(|command| match command {
        Command::Snapshot(of, made) if of.to_string() == source => Some(*made),
        _ => None,
    });
    let made = made.unwrap();
    let begun = |command: &Command| match command {
        Command::CreateFrom(state, of) => state.id.to_string() == id && *of == made,
        _ => false,
    };
    assert!(log.iter().any(begun), "{log:?}");
    assert!(fixture.client.call("DescribeSnapshots", &[]).unwrap().items("snapshotSet").is_empty());
    fixture.comes(|| fixture.stored().is_empty());
    let again = fixture.copy(&source, &[("VolumeType", "gp3"), ("ClientToken", "t")]);
    assert_eq!(text(&again, "volumeId"), id, "the same request makes nothing new");
    // The source may be deleted.
    fixture.client.call("DeleteVolume", &[("VolumeId", &source)]).unwrap();
    assert_eq!(text(&fixture.volume(&id).unwrap(), "sourceVolumeId"), source);
    let filter = [("Filter.1.Name", "source-volume-id"), ("Filter.1.Value.1", source.as_str())];
    assert_eq!(
        fixture.client.call("DescribeVolumes", &filter).unwrap().items("volumeSet").len(),
        1
    );
}

#[test]
fn volume_copy_is_creating_until_its_snapshot_is_complete() {
    let fixture = fixture(None);
    let source = create(&fixture.client, &[("Size", "10")]);
    fixture.server.agent.with(|state| state.snapshots_pend = true);
    let copy = fixture.copy(&source, &[("Size", "12")]);
    let id = text(&copy, "volumeId").to_owned();
    assert_eq!((text(&copy, "status"), text(&copy, "size")), ("creating", "12"));
    let again = fixture.client.call("CopyVolumes", &[("SourceVolumeId", &source)]).unwrap_err();
    assert_eq!(again.code, "IncorrectState");
    assert!(again.message.contains(&id), "{}", again.message);
    let fixture = fixture.restart(None);
    assert_eq!(text(&fixture.volume(&id).unwrap(), "status"), "creating");
    fixture.server.agent.with(|state| {
        state.snapshots_pend = false;
        state.snapshots.values_mut().for_each(|snapshot| snapshot.is_complete = true);
    });
    fixture.comes(|| text(&fixture.volume(&id).unwrap(), "status") == "available");
    fixture.comes(|| fixture.stored().is_empty());
}

#[test]
fn a_copy_whose_beginning_is_lost_is_given_up() {
    let fixture = fixture(None);
    let source = create(&fixture.client, &[]);
    fixture.server.agent.with(|state| state.snapshots_pend = true);
    let copy = fixture.copy(&source, &[("ClientToken", "t")]);
    let id = text(&copy, "volumeId").to_owned();
    // A crash that the snapshot has not survived.
    fixture.server.agent.with(|state| {
        state.snapshots.clear();
        state.snapshots_pend = false;
    });
    let fixture = fixture.restart(None);
    fixture.comes(|| fixture.volume(&id).is_none());
    // The token can be used again.
    let again = fixture.copy(&source, &[("ClientToken", "t")]);
    assert_ne!(text(&again, "volumeId"), id);
    assert_eq!(text(&again, "status"), "available");
}

#[test]
fn refused_copy_leaves_no_volume() {
    let fixture = fixture(None);
    let source = create(&fixture.client, &[]);
    let source_of = [("SourceVolumeId", source.as_str())];
    fixture.server.agent.with(|state| state.fail_next = Some(FailedKind::NoSpace));
    let code = fixture.client.code("CopyVolumes", &source_of);
    assert_eq!(code, "InsufficientVolumeCapacity");
    let all = fixture.client.call("DescribeVolumes", &[]).unwrap();
    assert_eq!(all.items("volumeSet").len(), 1);
    fixture.copy(&source, &[]);
    for (params, code) in [
        (vec![("SourceVolumeId", "vol-00000000000000001")], "InvalidVolume.NotFound"),
        (vec![("SourceVolumeId", "vol-x")], "InvalidVolumeID.Malformed"),
        (vec![source_of[0], ("Size", "9")], "InvalidParameterValue"),
        (vec![source_of[0], ("VolumeType", "io1")], "InvalidParameterCombination"),
        (vec![source_of[0], ("Encrypted", "true")], "UnsupportedOperation"),
        (vec![], "MissingParameter"),
    ] {
        assert_eq!(fixture.client.code("CopyVolumes", &params), code, "{params:?}");
    }
}

#[test]
fn a_snapshot_is_copied_with_its_blocks() {
    let fixture = fixture(None);
    let volume = create(&fixture.client, &[]);
    let made = fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
    let of = text(&made, "snapshotId");
    let base = [("SourceSnapshotId", of), ("SourceRegion", "local-1")];
    let tag = [
        ("TagSpecification.1.ResourceType", "snapshot"),
        ("TagSpecification.1.Tag.1.Key", "k"),
        ("Description", "a copy"),
    ];
    let copy = fixture.client.call("CopySnapshot", &[&base[..], &tag].concat()).unwrap();
    let id = text(&copy, "snapshotId").to_owned();
    assert_eq!(copy.items("tagSet").len(), 1);
    let copy = fixture.snapshot(&id);
    assert_eq!((text(&copy, "status"), text(&copy, "progress")), ("completed", "100%"));
    assert_eq!(text(&copy, "description"), "a copy");
    assert_eq!(text(&copy, "volumeId"), VolumeId::from_bits(u128::MAX).to_string());
    for (params, code) in [
        (vec![base[0], ("SourceRegion", "us-east-1")], "InvalidParameterValue"),
        (vec![base[0]], "MissingParameter"),
        (vec![base[0], base[1], ("Encrypted", "false")], "InvalidParameterValue"),
        (vec![base[0], base[1], ("Encrypted", "true")], "UnsupportedOperation"),
        (vec![base[0], base[1], ("KmsKeyId", "x")], "InvalidParameterDependency"),
        (vec![base[0], base[1], ("CompletionDurationMinutes", "20")], "InvalidParameterValue"),
        (vec![base[0], base[1], ("DestinationOutpostArn", "x")], "UnsupportedOperation"),
        (vec![("SourceSnapshotId", "snap-1"), base[1]], "InvalidSnapshotID.Malformed"),
        (vec![("SourceSnapshotId", "snap-00000000000000001"), base[1]], "InvalidSnapshot.NotFound"),
    ] {
        assert_eq!(fixture.client.code("CopySnapshot", &params), code, "{params:?}");
    }
}

/// Puts some units into a snapshot of the data plane.
fn fill(fixture: &Fixture, id: &str, units: &[u64]) {
    let id: SnapshotId = id.parse().unwrap();
    fixture.server.agent.with(|state| {
        let bytes = |unit: &u64| (*unit, vec![*unit as u8; UNIT_BYTES as usize]);
        state.units.insert(id, units.iter().map(bytes).collect());
    });
}

#[test]
fn server_key_encrypts_new_volumes_and_copies_unencrypted_snapshots() {
    let fixture = fixture(None);
    let plain = create(&fixture.client, &[("Size", "1")]);
    let made = fixture.client.call("CreateSnapshot", &[("VolumeId", &plain)]).unwrap();
    let of = text(&made, "snapshotId").to_owned();
    fixture.comes(|| text(&fixture.snapshot(&of), "status") == "completed");
    fill(&fixture, &of, &[0, 7, 2_047]);
    let fixture = fixture.restart(key());
    let client = &fixture.client;
    let arn = format!("arn:aws:kms:local-1:000000000000:key/{KEY}");
    let is_on = client.call("GetEbsEncryptionByDefault", &[]).unwrap();
    assert_eq!(text(&is_on, "ebsEncryptionByDefault"), "true");
    assert_eq!(text(&client.call("GetEbsDefaultKmsKeyId", &[]).unwrap(), "kmsKeyId"), arn);
    let id = create(client, &[("Encrypted", "false")]);
    let volume = fixture.volume(&id).unwrap();
    assert_eq!((text(&volume, "encrypted"), text(&volume, "kmsKeyId")), ("true", arn.as_str()));
    let was = fixture.volume(&plain).unwrap();
    assert_eq!(text(&was, "encrypted"), "false");
    assert!(was.child("kmsKeyId").is_none());

    // A volume of an unencrypted snapshot begins with an encrypted copy of it.
    let zone = ("AvailabilityZone", "local-1a");
    let made = client.call("CreateVolume", &[zone, ("SnapshotId", &of)]).unwrap();
    assert_eq!((text(&made, "status"), text(&made, "encrypted")), ("creating", "true"));
    let id = text(&made, "volumeId").to_owned();
    let deleted = client.code("DeleteSnapshot", &[("SnapshotId", &of)]);
    assert_eq!(deleted, "InvalidSnapshot.InUse");
    fixture.comes(|| text(&fixture.volume(&id).unwrap(), "status") == "available");
    let put = fixture.server.agent.with(|state| {
        let put = |command: &Command| match command {
            Command::PutSnapshot(id, unit, Bytes(bytes)) => Some((*id, *unit, bytes[0])),
            _ => None,
        };
        state.log.iter().filter_map(put).collect::<Vec<_>>()
    });
    let units: Vec<(u64, u8)> = put.iter().map(|(_, unit, byte)| (*unit, *byte)).collect();
    assert_eq!(units, [(0, 0), (7, 7), (2_047, 255)]);
    fixture.comes(|| fixture.stored() == [of.parse::<SnapshotId>().unwrap()]);

    let copy = [("SourceSnapshotId", of.as_str()), ("SourceRegion", "local-1")];
    let copied = client.call("CopySnapshot", &copy).unwrap();
    let copied = text(&copied, "snapshotId").to_owned();
    fixture.comes(|| text(&fixture.snapshot(&copied), "status") == "completed");
    assert_eq!(text(&fixture.snapshot(&copied), "kmsKeyId"), arn);
    // A copy of an unencrypted volume needs two snapshots.
    let copy = fixture.copy(&plain, &[("Encrypted", "true"), ("KmsKeyId", KEY)]);
    let id = text(&copy, "volumeId").to_owned();
    fixture.comes(|| text(&fixture.volume(&id).unwrap(), "status") == "available");
    assert_eq!(text(&fixture.volume(&id).unwrap(), "encrypted"), "true");
    fixture.comes(|| fixture.stored().len() == 2);

    client.call("DisableEbsEncryptionByDefault", &[]).unwrap();
    let id = create(client, &[]);
    assert_eq!(text(&fixture.volume(&id).unwrap(), "encrypted"), "false");
    let id = create(client, &[("Encrypted", "true"), ("KmsKeyId", "alias/aws/ebs")]);
    assert_eq!(text(&fixture.volume(&id).unwrap(), "encrypted"), "true");
    let filter = [("Filter.1.Name", "encrypted"), ("Filter.1.Value.1", "false")];
    let plain = client.call("DescribeVolumes", &filter).unwrap();
    assert_eq!(plain.items("volumeSet").len(), 2);
    let other = [("Encrypted", "true"), ("KmsKeyId", "another")];
    let code = client.code("CreateVolume", &[&[zone, ("Size", "1")], &other[..]].concat());
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(client.code("ModifyEbsDefaultKmsKeyId", &[other[1]]), "InvalidParameterValue");
    // The setting survives a restart, and the store knows which objects are encrypted.
    let fixture = fixture.restart(key());
    let is_on = fixture.client.call("GetEbsEncryptionByDefault", &[]).unwrap();
    assert_eq!(text(&is_on, "ebsEncryptionByDefault"), "false");
}

#[test]
fn server_without_a_key_encrypts_nothing() {
    let fixture = fixture(None);
    let client = &fixture.client;
    let is_on = client.call("GetEbsEncryptionByDefault", &[]).unwrap();
    assert_eq!(text(&is_on, "ebsEncryptionByDefault"), "false");
    for action in ["EnableEbsEncryptionByDefault", "GetEbsDefaultKmsKeyId"] {
        let refused = client.call(action, &[]).unwrap_err();
        assert_eq!(refused.code, "UnsupportedOperation");
        assert!(refused.message.contains("--key-file"), "{}", refused.message);
    }
    client.call("DisableEbsEncryptionByDefault", &[]).unwrap();
    // A database without the encryption of its objects gets it from the store.
    let id = create(client, &[]);
    fixture.server.agent.with(|state| {
        state.volumes.get_mut(&id.parse().unwrap()).unwrap().is_encrypted = true;
    });
    let fixture = fixture.restart(key());
    fixture.server.agent.with(|state| assert!(!state.volumes.is_empty()));
    assert!(fixture.volume(&id).is_some());
}

#[test]
fn a_copy_that_is_complete_in_the_store_is_taken_as_it_is() {
    let fixture = fixture(None);
    let volume = create(&fixture.client, &[("Size", "1")]);
    let made = fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
    let of = text(&made, "snapshotId").to_owned();
    fixture.comes(|| text(&fixture.snapshot(&of), "status") == "completed");
    let fixture = fixture.restart(key());
    let agent = &fixture.server.agent;
    agent.with(|state| state.fail_always = Some(FailedKind::Internal));
    let copy = [("SourceSnapshotId", of.as_str()), ("SourceRegion", "local-1")];
    let copied = fixture.client.call("CopySnapshot", &copy).unwrap();
    let id = text(&copied, "snapshotId").to_owned();
    assert_eq!(text(&fixture.snapshot(&id), "status"), "pending");
    // An earlier server has completed it, and was killed before it could commit that.
    let key: SnapshotId = id.parse().unwrap();
    agent.with(|state| {
        let source = state.snapshots[&of.parse::<SnapshotId>().unwrap()];
        let complete = StoredSnapshot { id: key, is_complete: true, is_encrypted: true, ..source };
        state.snapshots.insert(key, complete);
        state.units.insert(key, [(0, vec![1; UNIT_BYTES as usize])].into());
        state.fail_always = None;
    });
    fixture.comes(|| text(&fixture.snapshot(&id), "status") == "completed");
    let begun = |command: &Command| matches!(command, Command::StartSnapshot(_));
    assert!(!agent.with(|state| state.log.iter().any(begun)), "it was begun again");
}

#[test]
fn a_volume_that_waits_for_its_copy_can_be_deleted() {
    let fixture = fixture(None);
    let source = create(&fixture.client, &[("Size", "10")]);
    fixture.server.agent.with(|state| state.snapshots_pend = true);
    let copy = fixture.copy(&source, &[("ClientToken", "t")]);
    let id = text(&copy, "volumeId").to_owned();
    assert_eq!(text(&copy, "status"), "creating");
    fixture.client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
    assert!(fixture.volume(&id).is_none());
    fixture.comes(|| fixture.stored().is_empty());
    fixture.server.agent.with(|state| state.snapshots_pend = false);
    let again = fixture.copy(&source, &[("ClientToken", "t")]);
    assert_ne!(text(&again, "volumeId"), id, "its token is free");
}

#[test]
fn a_copy_that_waits_for_space_says_so_and_can_be_deleted() {
    let is_full = Arc::new(AtomicBool::new(false));
    let full = Arc::clone(&is_full);
    let agent = FakeAgent::scripted(move |agent, command| match command {
        Command::CompleteSnapshot(_) if full.load(Ordering::SeqCst) => {
            let message = "no space in the pool".to_owned();
            Reply::Failed(Failed { kind: FailedKind::NoSpace, message })
        }
        command => agent.execute(command),
    });
    let folder = tempfile::tempdir().unwrap();
    let config = config_with(folder.path(), Settings::default());
    let server = Server::start_with(config, Arc::clone(&agent)).unwrap();
    let fixture = Fixture { client: server.client(), server, folder };
    let volume = create(&fixture.client, &[]);
    let made = fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
    let source = text(&made, "snapshotId");
    is_full.store(true, Ordering::SeqCst);
    let copy = || {
        let params = [("SourceSnapshotId", source), ("SourceRegion", "local-1")];
        let copy = fixture.client.call("CopySnapshot", &params).unwrap();
        text(&copy, "snapshotId").to_owned()
    };
    let [kept, deleted] = [copy(), copy()];
    let shown = fixture.snapshot(&deleted);
    assert_eq!(text(&shown, "status"), "pending");
    assert_eq!(text(&shown, "statusMessage"), "no space in the pool");
    fixture.client.call("DeleteSnapshot", &[("SnapshotId", &deleted)]).unwrap();
    let listed = fixture.client.call("DescribeSnapshots", &[]).unwrap();
    let ids: Vec<&str> =
        listed.items("snapshotSet").iter().map(|snapshot| text(snapshot, "snapshotId")).collect();
    assert!(!ids.contains(&&*deleted), "{ids:?}");
    is_full.store(false, Ordering::SeqCst);
    fixture.comes(|| text(&fixture.snapshot(&kept), "status") == "completed");
    assert_eq!(fixture.snapshot(&kept).child_text("statusMessage"), None);
    fixture.client.call("DeleteSnapshot", &[("SnapshotId", source)]).unwrap();
}
