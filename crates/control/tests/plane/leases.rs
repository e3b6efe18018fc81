//! Credits are leased in advance: the disk always has a lower bound of the credits left.

use std::path::Path;

use crate::support::{FakeAgent, gp2, plane};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_wire::agent::FailedKind;
use proptest::prelude::*;

/// Checks the volume's credits on disk, as a start after a crash finds them.
fn check(agent: &FakeAgent, database: &Path, volume: VolumeId) {
    let Some(held) = agent.with(|state| state.volumes.get(&volume).cloned()) else { return };
    let database = rusqlite::Connection::open(database).unwrap();
    let row = "SELECT operations FROM credits WHERE id = ?";
    let found = database.query_row(row, [volume.to_string()], |row| row.get::<_, i64>(0));
    let disk = found.ok().map_or(0, i64::unsigned_abs);
    let unleased = held.unleased.operations.unwrap();
    assert!(disk <= unleased, "{disk} is on disk, and all but {unleased} may be spent");
    assert!(unleased <= held.balances.operations.unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(16)))]

    /// For any spending of leased credits, any refill or setting, and any failure of calls to the
    /// data plane: the disk always has a lower bound of the credits left.
    #[test]
    fn stored_credits_never_exceed_those_that_are_left(
        steps in proptest::collection::vec((0_u32..5, 0_u64..60_000), 1..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("control.db");
        let volume = VolumeId::from_bits(7);
        let inner = FakeAgent::scripted(move |agent, command| {
            check(agent, &database, volume);
            let reply = agent.execute(command);
            check(agent, &database, volume);
            reply
        });
        let plane = plane(folder.path(), &inner);
        gp2(&plane);
        let change = |change: &dyn Fn(u64, u64) -> u64| inner.with(|state| {
            let held = state.volumes.get_mut(&volume).unwrap();
            let balance = held.balances.operations.unwrap();
            let unleased = held.unleased.operations;
            held.balances.operations = Some(change(balance, unleased.unwrap()));
        });
        for (step, amount) in steps {
            match step {
                0 => change(&|balance, unleased| balance.saturating_sub(amount).max(unleased)),
                1 => change(&|balance, _| (balance + amount).min(5_400_000)),
                2 => {
                    let operations = Some(amount * 100 % 5_400_000);
                    let _ = plane.set_balances(volume, Balances { operations, bytes: None });
                }
                3 => inner.with(|state| state.fail_next = Some(FailedKind::Internal)),
                _ => plane.tick(),
            }
        }
        plane.tick();
        plane.tick();
        // At least 7/8 of a lease can be spent, so no more than necessary is held back.
        let held = inner.with(|state| state.volumes[&volume].clone());
        let balance = held.balances.operations.unwrap();
        let unleased = held.unleased.operations.unwrap();
        prop_assert!(unleased <= balance.saturating_sub(24_150 / 8 * 7), "{held:?}");
    }
}
