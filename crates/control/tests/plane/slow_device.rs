//! A change that waits for a slow device delays changes of its own volume only.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use crate::support;
use crate::support::{FakeAgent, creation, gp2, plane};
use evenkeel_control::model::{Command as Change, Tagged};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::volume::{VolumeChange, VolumeType};
use evenkeel_wire::agent::Command;

fn create(id: VolumeId) -> Change {
    creation(id, VolumeType::Gp2, 10, None)
}

#[test]
fn slow_creation_delays_no_other_change_and_no_lease_renewal() {
    let folder = tempfile::tempdir().unwrap();
    let slow = VolumeId::from_bits(8);
    let (begun, begins) = channel();
    let (go, let_on) = channel();
    let begun = Mutex::new(begun);
    let let_on = Mutex::new(let_on);
    // Creates the slow volume's bytes only after the test has allowed it.
    let agent = FakeAgent::scripted(move |agent, command| {
        if matches!(&command, Command::Create(state) if state.id == slow) {
            begun.lock().unwrap().send(()).unwrap();
            let_on.lock().unwrap().recv().unwrap();
        }
        agent.execute(command)
    });
    let plane = plane(folder.path(), &agent);
    let other = gp2(&plane);
    let order = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            plane.execute(&create(slow), false).unwrap();
            order.lock().unwrap().push("made");
        });
        begins.recv().unwrap();
        // A second change of the slow volume waits for the first, and is then made.
        scope.spawn(|| {
            let tags = [("k".to_owned(), "v".to_owned())].into();
            let resources = vec![Tagged::Volume(slow)];
            plane.execute(&Change::CreateTags { resources, tags }, false).unwrap();
            assert!(plane.model().volumes[&slow].is_settled());
        });
        let third = VolumeId::from_bits(9);
        plane.execute(&create(third), false).unwrap();
        let change = VolumeChange { size_gib: Some(300), ..VolumeChange::default() };
        plane.execute(&Change::ModifyVolume { id: other, change }, false).unwrap();
        plane.set_balances(other, Balances { operations: Some(1_000_000), bytes: None }).unwrap();
        let instance = *plane.model().hosts.keys().next().unwrap();
        let device = "/dev/sdf".into();
        plane.execute(&Change::AttachVolume { id: other, instance, device }, false).unwrap();
        let before = agent.with(|state| state.volumes[&other].unleased);
        agent.with(|state| {
            state.volumes.get_mut(&other).unwrap().balances.operations = Some(980_000);
        });
        plane.tick();
        let after = agent.with(|state| state.volumes[&other].unleased);
        assert!(after.operations < before.operations, "not renewed: {after:?}");
        plane.execute(&Change::DeleteVolume { id: third }, false).unwrap();
        order.lock().unwrap().push("others");
        go.send(()).unwrap();
    });
    assert_eq!(order.into_inner().unwrap(), ["others", "made"]);
    assert_eq!(plane.model().volumes[&slow].tags.len(), 1);
    let made = |state: &mut support::FakeState| {
        let of = |c: &&Command| matches!(c, Command::Create(state) if state.id == slow);
        state.log.iter().filter(of).count()
    };
    assert_eq!(agent.with(made), 1, "the tick leaves it alone");
}
