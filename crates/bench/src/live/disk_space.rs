//! Checks before a suite that the disk has room for fio's logs of every I/O, as hours would be lost
//! otherwise.

use std::path::Path;

use super::{Files, Method};
use evenkeel_lab::LabError;
use evenkeel_lab::fio::Room;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::setup::{Setup, VolumeSetup};

/// Refuses cases whose largest log has no room in memory, or in `folder`.
///
/// # Errors
/// When there is too little of either.
pub(super) fn check(cases: &[Case], folder: &Path) -> Result<(), LabError> {
    fits(cases, &Room::of(folder)?)
}

fn fits(cases: &[Case], room: &Room) -> Result<(), LabError> {
    let of_case = |case: &Case| {
        let name = if case.label.is_empty() { "the run" } else { &case.label };
        Some((ios_max(&case.setup)?, name.to_owned()))
    };
    let logged = cases.iter().filter(|case| Method::of(&case.setup, Files::None).notes_every_io());
    let Some((ios, label)) = logged.filter_map(of_case).max() else { return Ok(()) };
    let Some(short) = room.shortage(ios) else { return Ok(()) };
    let what = format!(
        "fio notes every I/O of \"{label}\", up to {} GiB, and {}: {}, leave it out with --only, \
         or run it shortened, without --full",
        short.needed_gib, short.free, short.next
    );
    Err(LabError::BadWorkload(what))
}

/// Returns the most I/Os that the volumes' limits allow in the duration; `None` if nothing limits
/// them.
fn ios_max(setup: &Setup) -> Option<u64> {
    let seconds = setup.duration_ns / 1_000_000_000;
    let of_volume = |volume: &VolumeSetup| {
        let limit = volume.pacing.operations?;
        let most = limit.per_second.saturating_mul(seconds);
        let credit = limit.credit.map(|credit| {
            let balance = volume.balances.operations.unwrap_or(credit.capacity);
            credit.refill_per_second.saturating_mul(seconds).saturating_add(balance)
        });
        Some(credit.map_or(most, |ios| most.min(ios)))
    };
    let of_volumes: u64 = setup.volumes.iter().map(of_volume).sum::<Option<u64>>()?;
    let is_attached = setup.volumes.iter().all(|volume| volume.instance.is_some());
    let instances = setup.instances.iter().map(|instance| instance.iops_max);
    let of_instances = instances.fold(0, u64::saturating_add).saturating_mul(seconds);
    Some(if is_attached { of_volumes.min(of_instances) } else { of_volumes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::scenario::catalogue;
    use evenkeel_sim::scenario::{self, Source};

    fn cases(name: &str) -> Vec<Case> {
        let text = catalogue::find(name).unwrap();
        scenario::read(&Source::new(name, text)).unwrap().cases
    }

    #[test]
    fn a_case_has_as_many_ios_as_its_limits_and_credits_let_pass() {
        let cases = cases("fio-4000");
        let most = |name: &str| {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            ios_max(&case.setup).unwrap()
        };
        assert_eq!(most("gp2 1 x 500"), 11_400_000);
        assert_eq!(most("gp2 5 x 100"), 33_000_000);
        assert_eq!(most("io1 18,000"), 72_000_000);
        assert_eq!(most("io1 18,000 behind 8,000"), 32_000_000);
    }

    #[test]
    fn case_without_enough_space_is_refused_before_it_runs() {
        let cases = cases("fio-4000");
        let folder = Path::new("/tmp/x");
        let large = 72_000_000 * 40;
        let with = |disk, memory| fits(&cases, &Room::with(folder, disk, memory));
        assert!(with(large, large).is_ok());
        let error = |disk, memory| with(disk, memory).unwrap_err().to_string();
        let text = error(1 << 30, u64::MAX);
        assert!(text.contains("\"io1 18,000\", up to 2.7 GiB, and 1 GiB are free on"), "{text}");
        assert!(text.contains("the disk of /tmp/x: let TMPDIR"), "{text}");
        assert!(
            error(large, large - 1).contains("free of memory: let it last less long, leave it")
        );
        assert!(check(&self::cases("fio-40")[..1], Path::new("/")).is_ok());
        assert!(check(&cases, Path::new("/no/such/folder")).is_err());
    }
}
