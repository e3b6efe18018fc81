//! The scrub: order, rate, findings, and that it resumes at its place.
use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::{FakeAgent, plane};
use evenkeel_control::model::Command as Change;
use evenkeel_control::model::Tags;
use evenkeel_control::plane::Plane;
use evenkeel_control::scrub::{Scrub, ScrubState};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::FailedKind;

fn create(plane: &Plane, bits: u128) -> VolumeId {
    support::planned(plane, bits, VolumeType::Gp3, 1)
}

fn snapshot(plane: &Plane, volume: VolumeId, bits: u128) -> SnapshotId {
    let id = SnapshotId::from_bits(bits);
    let description = String::new();
    let tags = Tags::new();
    plane.execute(&Change::CreateSnapshot { id, volume, description, tags }, false).unwrap();
    id
}

fn serve(folder: &Path, agent: &Arc<FakeAgent>) -> Plane {
    plane(folder, agent).with_scrub_in(folder.to_owned())
}

fn seen(agent: &FakeAgent) -> Vec<(String, u64)> {
    agent.with(|state| std::mem::take(&mut state.verified))
}

/// Returns the parts of the store, then of volumes and snapshots.
fn parts(ids: &[&dyn ToString]) -> Vec<(String, u64)> {
    let ids = std::iter::once("pool".to_owned()).chain(ids.iter().map(|id| id.to_string()));
    ids.flat_map(|id| (0..3).map(move |part| (id.clone(), part))).collect()
}

#[test]
fn scrub_reads_all_data_once_at_its_rate_and_reports_rot() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let plane = serve(folder.path(), &agent);
    plane.scrub_on();
    assert_eq!((plane.scrub(), seen(&agent)), (None, vec![]), "nobody has asked for one");
    let [a, b] = [1, 2].map(|bits| create(&plane, bits));
    let taken = snapshot(&plane, a, 3);
    agent.with(|state| state.rotten = Some((b.to_string(), 1)));
    plane.start_scrub(20);
    // Parts of 10 MiB, two per second.
    for _ in 0..2 {
        plane.scrub_on();
    }
    assert_eq!(seen(&agent), parts(&[&a, &b])[..4]);
    // A stopped scrub does not read, and resumes at its place, at another rate.
    assert_eq!(plane.stop_scrub().unwrap().state, ScrubState::Stopped);
    plane.scrub_on();
    assert_eq!(seen(&agent), []);
    let going_on = plane.start_scrub(5);
    assert_eq!((going_on.state, going_on.verified_bytes), (ScrubState::Running, 40 << 20));
    // Bytes read beyond the rate are subtracted later: 10 MiB take two seconds.
    for part in &parts(&[&a, &b, &taken])[4..] {
        plane.scrub_on();
        assert_eq!(seen(&agent), std::slice::from_ref(part));
        plane.scrub_on();
        assert_eq!(seen(&agent), []);
    }
    plane.scrub_on();
    let done = plane.scrub().unwrap();
    assert_eq!((done.state, done.verified_bytes), (ScrubState::Completed, 120 << 20));
    assert!(done.ended_ms.is_some());
    assert_eq!((done.rotten_places, done.unread), (2, 0));
    let offsets: Vec<_> =
        done.rotten.iter().map(|rotten| (rotten.id.clone(), rotten.offset)).collect();
    assert_eq!(offsets, [(b.to_string(), 4_096), (b.to_string(), 77 * 4_096)]);
    // The next scrub begins at the start.
    let next = plane.start_scrub(1_000);
    assert_eq!((next.verified_bytes, next.rotten_places), (0, 0));
    plane.scrub_on();
    assert_eq!(seen(&agent), parts(&[&a, &b, &taken]));
}

#[test]
fn scrub_resumes_after_a_restart_and_skips_deleted_volumes() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let plane = serve(folder.path(), &agent);
    let [a, b, c] = [1, 2, 3].map(|bits| create(&plane, bits));
    plane.start_scrub(30);
    plane.scrub_on();
    assert_eq!(seen(&agent), parts(&[]));
    plane.start_scrub(20);
    plane.scrub_on();
    assert_eq!(seen(&agent), parts(&[&a])[3..5]);
    // Killed: parts that were read since the file was written are read again.
    drop(plane);
    let plane = serve(folder.path(), &agent);
    assert_eq!(plane.scrub().unwrap().state, ScrubState::Running);
    plane.stop_scrub();
    plane.start_scrub(20);
    plane.scrub_on();
    assert_eq!(seen(&agent), parts(&[&a])[3..5]);
    plane.stop_scrub();
    drop(plane);
    let plane = serve(folder.path(), &agent);
    assert_eq!(plane.scrub().unwrap().next, 2);
    plane.start_scrub(20);
    // The volume that is being read is deleted.
    plane.execute(&Change::DeleteVolume { id: a }, false).unwrap();
    plane.scrub_on();
    assert_eq!(seen(&agent), parts(&[&b])[3..5]);
    // While the data plane does not answer, no part is skipped; an unreadable part is.
    agent.with(|state| state.fail_always = Some(FailedKind::Unanswered));
    plane.scrub_on();
    agent.with(|state| state.fail_always = Some(FailedKind::Internal));
    plane.scrub_on();
    let scrub = plane.scrub().unwrap();
    assert_eq!((scrub.state, scrub.unread), (ScrubState::Completed, 2));
    assert_eq!(scrub.at, Some(c.to_string()));
    assert_eq!(Scrub::load(folder.path()), Ok(Some(scrub)));
}

#[test]
fn invalid_scrub_file_does_not_prevent_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    std::fs::write(folder.path().join("scrub.json"), "nonsense").unwrap();
    let plane = serve(folder.path(), &agent);
    assert_eq!(plane.scrub(), None);
    plane.start_scrub(1);
    drop(plane);
    assert_eq!(serve(folder.path(), &agent).scrub().unwrap().rate_mibps, 1);
}
