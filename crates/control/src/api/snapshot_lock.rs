//! LockSnapshot, UnlockSnapshot, DescribeLockedSnapshots.

use evenkeel_core::convert::saturating;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::filter::Values;
use super::{Action, Call, view};
use crate::model::locks::{COOL_OFF_HOURS_MAX, LOCK_DAYS_MAX};
use crate::model::{Command, Lock, LockMode, Snapshot};

pub const LOCK: Action = Action { name: "LockSnapshot", mutates: true, run: lock };
pub const UNLOCK: Action = Action { name: "UnlockSnapshot", mutates: true, run: unlock };
pub const DESCRIBE: Action =
    Action { name: "DescribeLockedSnapshots", mutates: false, run: describe };

const DAY_MS: u64 = 24 * 3_600_000;

fn lock(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let now = call.now;
    let id = call.args.snapshot_id("SnapshotId")?;
    let lock = wanted(&mut call.args, now)?;
    call.args.done()?;
    call.execute(&Command::LockSnapshot { id, lock })?;
    let model = call.plane.model();
    Ok(fields(model.snapshot(id)?, now))
}

fn wanted(args: &mut Args, now: UnixMs) -> Result<Lock, ApiError> {
    let mode = match args.required("LockMode")?.as_str() {
        "governance" => LockMode::Governance,
        "compliance" => LockMode::Compliance,
        other => {
            return Err(ApiError::value(format!(
                "Value ({other}) for parameter lockMode is invalid. Must be governance or \
                 compliance."
            )));
        }
    };
    let cool_off_hours: u32 = args.number("CoolOffPeriod")?.unwrap_or(0);
    let days: Option<u32> = args.number("LockDuration")?;
    let date = args.text("ExpirationDate");
    if cool_off_hours > COOL_OFF_HOURS_MAX {
        return Err(ApiError::value(format!(
            "Value ({cool_off_hours}) for parameter coolOffPeriod is invalid. Must be at most \
             {COOL_OFF_HOURS_MAX} hours."
        )));
    }
    if cool_off_hours > 0 && mode == LockMode::Governance {
        let text = "The parameter CoolOffPeriod cannot be used with the lock mode governance";
        return Err(ApiError::new("InvalidParameterCombination", text));
    }
    let (days, until) = match (days, date) {
        (Some(days), None) => (days, None),
        (None, Some(date)) => {
            let until = timestamp::parse_extended(&date).map(UnixMs).filter(|until| *until > now);
            let until = until.ok_or_else(|| {
                ApiError::value(format!(
                    "Value ({date}) for parameter expirationDate is invalid. Must be a time in the \
                     future, such as 2030-01-31T00:00:00.000Z."
                ))
            })?;
            let days = until.ms_since(now).div_ceil(DAY_MS);
            (saturating(days), Some(until))
        }
        (None, None) => return Err(ApiError::missing("LockDuration")),
        (Some(_), Some(_)) => {
            return Err(ApiError::new(
                "InvalidParameterCombination",
                "The parameters LockDuration and ExpirationDate cannot be used together",
            ));
        }
    };
    if !(1..=LOCK_DAYS_MAX).contains(&days) {
        return Err(ApiError::value(format!(
            "Value ({days}) for parameter lockDuration is invalid. Must be 1 to {LOCK_DAYS_MAX} \
             days."
        )));
    }
    Ok(Lock { mode, created: now, cool_off_hours, days, until })
}

fn unlock(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    call.args.done()?;
    call.execute(&Command::UnlockSnapshot { id })?;
    Ok(vec![Element::text("snapshotId", id)])
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let now = call.now;
    let args = &mut call.args;
    let ids = args.snapshot_ids("SnapshotId")?;
    let filters = args.filters(&["lock-state"])?;
    let page = args.page(5, 1_000)?;
    args.done()?;
    let model = call.plane.model();
    model.check_snapshots(&ids)?;
    let state = |snapshot: &Snapshot| snapshot.lock_view(now).map(|(_, view)| view.state);
    let wanted = page
        .of(&model.snapshots, &ids)
        .filter(|snapshot| snapshot.is_shown() && snapshot.lock.is_some())
        .filter(|it| filters.pass(|_| Values::One(state(it).map(Into::into))));
    let (found, token) = page.cut(wanted, |snapshot| snapshot.id.to_string());
    let item = |snapshot: &Snapshot| {
        let owner = Element::text("ownerId", &call.plane.settings.account);
        Element::list("item", fields(snapshot, now).into_iter().chain([owner]))
    };
    Ok(view::paged("snapshotSet", found.into_iter().map(item).collect(), token))
}

/// Returns the lock of a snapshot.
fn fields(snapshot: &Snapshot, now: UnixMs) -> Vec<Element> {
    let mut fields = vec![Element::text("snapshotId", snapshot.id)];
    let Some((lock, view)) = snapshot.lock_view(now) else { return fields };
    fields.push(Element::text("lockState", view.state));
    fields.push(Element::text("lockDuration", lock.days));
    if lock.cool_off_hours > 0 {
        fields.push(Element::text("coolOffPeriod", lock.cool_off_hours));
    }
    fields.extend(view.cools_off.map(|cools_off| view::time("coolOffPeriodExpiresOn", cools_off)));
    fields.push(view::time("lockCreatedOn", lock.created));
    fields.extend(view.starts.map(|start| view::time("lockDurationStartTime", start)));
    fields.extend(view.expires.map(|expire| view::time("lockExpiresOn", expire)));
    fields
}
