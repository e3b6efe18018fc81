//! The states in which a pool on several machines is measured. The operator brings the pool into a
//! state; before and after the measurement the monitors are asked whether it is in that state.

use evenkeel_cli::calibrate::As;
use evenkeel_client::output::{Exit, Failure, failed};
use evenkeel_os::clock::Deadline;
use evenkeel_store::Pool;
use evenkeel_store::layout::PoolState;
use std::time::Duration;

/// Maximum time that a pool may be between two states: placement groups peer for seconds, and the
/// monitors learn of it late.
const CHANGES_MAX: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(500);

/// Returns advice on how to bring a pool into a state.
const fn hint(state: As) -> &'static str {
    match state {
        As::Healthy => {
            "wait until `ceph status` shows all placement groups active+clean, or name the state \
             that is to be measured with --as"
        }
        As::Degraded => {
            "`ceph osd set noout`, then stop all OSDs of the largest failure domain, and wait \
             until `ceph status` shows placement groups undersized"
        }
        As::Recovering => {
            "start the stopped OSDs again, or take one out with `ceph osd out`, and measure while \
             `ceph status` shows recovery; if it ends too soon, take --quick, or write more to \
             the pool before"
        }
    }
}

/// A state in words that follow "the pool is".
pub fn words(state: &PoolState) -> String {
    match state {
        PoolState::Healthy => "healthy".to_owned(),
        PoolState::Degraded { lost } => format!("degraded: {lost} lost"),
        PoolState::Recovering => "recovering".to_owned(),
        PoolState::Other(why) => format!("neither healthy, degraded nor recovering: {why}"),
    }
}

/// Checks that the pool is in the state; waits a moment while it is between two states. Returns a
/// description of the loss, if that is known.
///
/// # Errors
/// If it is not, or cannot be asked.
pub fn expect(pool: &dyn Pool, wanted: As, when: When) -> Result<Option<String>, Failure> {
    let deadline = Deadline::after(CHANGES_MAX);
    loop {
        let Some(seen) = pool.look_around().map_err(failed)? else {
            return on_one_machine(pool, wanted).map(|()| None);
        };
        let is_between = matches!(seen.state, PoolState::Other(_));
        let judged = judge(wanted, seen.state, when);
        if judged.is_ok() || !is_between || !deadline.pause(LOOK) {
            return judged;
        }
    }
}

fn on_one_machine(pool: &dyn Pool, wanted: As) -> Result<(), Failure> {
    if wanted == As::Healthy {
        return Ok(());
    }
    let store = pool.describe();
    let message =
        format!("--as {wanted}: the store ({store}) is on one machine, and has no such state");
    Err(Failure::new(message)
        .exit(Exit::Usage)
        .hint("leave out --as, or name a pool of several machines with --store rbd"))
}

fn judge(wanted: As, state: PoolState, when: When) -> Result<Option<String>, Failure> {
    match (wanted, state) {
        (As::Healthy, PoolState::Healthy) | (As::Recovering, PoolState::Recovering) => Ok(None),
        (As::Degraded, PoolState::Degraded { lost }) => Ok(Some(lost)),
        (_, state) => {
            let is = words(&state);
            let message = match when {
                When::Before => format!("--as {wanted}: the pool is {is}"),
                When::After => format!(
                    "--as {wanted}: the pool was {wanted} when the measurement began, and is {is}; \
                     nothing is kept of it"
                ),
            };
            Err(Failure::new(message).hint(hint(wanted)))
        }
    }
}

/// Time at which the pool is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Before the measurement.
    Before,
    /// After it.
    After,
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_store::memory::MemoryPool;

    #[test]
    fn a_store_on_one_machine_is_as_it_is() {
        let pool = MemoryPool::new();
        assert_eq!(expect(&pool, As::Healthy, When::Before).unwrap(), None);
        let failure = expect(&pool, As::Degraded, When::Before).unwrap_err();
        assert!(failure.message.contains("on one machine"), "{}", failure.message);
    }

    #[test]
    fn a_pool_must_be_as_it_is_said_to_be_before_and_after() {
        let lost = || PoolState::Degraded { lost: "host a with osd.0".to_owned() };
        assert_eq!(judge(As::Degraded, lost(), When::After).unwrap().unwrap(), "host a with osd.0");
        let states = [
            (As::Healthy, PoolState::Healthy),
            (As::Degraded, lost()),
            (As::Recovering, PoolState::Recovering),
        ];
        for (wanted, _) in &states {
            for (of, state) in &states {
                let is_kept = judge(*wanted, state.clone(), When::Before).is_ok();
                assert_eq!(is_kept, wanted == of, "{wanted} {of}");
            }
            let odd = PoolState::Other("2 of its placement groups peering".to_owned());
            let failure = judge(*wanted, odd, When::Before).unwrap_err();
            assert!(failure.message.ends_with("2 of its placement groups peering"));
            assert!(failure.hint.is_some());
        }
        let failure = judge(As::Recovering, PoolState::Healthy, When::After).unwrap_err();
        assert_eq!(
            failure.message,
            "--as recovering: the pool was recovering when the measurement began, and is healthy; \
             nothing is kept of it"
        );
    }
}
