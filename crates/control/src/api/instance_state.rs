//! StartInstances, StopInstances, TerminateInstances. A client host is a record: nothing is booted
//! and nothing is stopped. A terminated host loses its volumes first.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, HostState, Refusal, Volume};

pub const START: Action = Action { name: "StartInstances", mutates: true, run: start };
pub const STOP: Action = Action { name: "StopInstances", mutates: true, run: stop };
pub const TERMINATE: Action = Action { name: "TerminateInstances", mutates: true, run: terminate };

fn start(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = ids(call)?;
    call.args.text("AdditionalInfo");
    call.args.done()?;
    change(call, &ids, HostState::Running)
}

fn stop(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = ids(call)?;
    for ignored in ["Force", "SkipOsShutdown"] {
        call.args.boolean(ignored)?;
    }
    if call.args.boolean("Hibernate")? == Some(true) {
        return Err(ApiError::unsupported("Hibernate is not supported: nothing runs here"));
    }
    call.args.done()?;
    change(call, &ids, HostState::Stopped)
}

fn terminate(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = ids(call)?;
    for ignored in ["Force", "SkipOsShutdown"] {
        call.args.boolean(ignored)?;
    }
    call.args.done()?;
    let local = call.plane.model().local_host().map(|host| host.id);
    if let Some(local) = local.filter(|local| ids.contains(local)) {
        return Err(Refusal::HostIsLocal(local).into());
    }
    if call.dry_run {
        // A dry run does not detach the present volumes, so it ends here.
        return Ok(vec![]);
    }
    for id in &ids {
        release(call, *id)?;
    }
    change(call, &ids, HostState::Terminated { at: call.now })
}

/// Detaches all volumes of a host, and deletes those that are marked for it. Can be repeated after
/// an interruption: no marked volume is detached and not deleted.
pub(super) fn release(call: &Call<'_>, instance: InstanceId) -> Result<(), ApiError> {
    let attached: Vec<VolumeId> = {
        let model = call.plane.model();
        model.attachments_of(instance).map(|(volume, _)| volume.id).collect()
    };
    for id in attached {
        let Err(error) = call.execute(&Command::DeleteWithHost { id, host: instance }) else {
            continue;
        };
        let model = call.plane.model();
        let is_here = |volume: &Volume| {
            volume.attachments.iter().any(|attachment| attachment.instance == instance)
        };
        // A client may have detached or deleted it meanwhile.
        if model.volumes.get(&id).is_some_and(is_here) {
            return Err(error);
        }
    }
    Ok(())
}

fn ids(call: &mut Call<'_>) -> Result<Vec<InstanceId>, ApiError> {
    let mut ids = call.args.instance_ids("InstanceId")?;
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Err(ApiError::missing("InstanceId"));
    }
    call.plane.model().check_hosts(&ids, call.now)?;
    Ok(ids)
}

fn change(call: &Call<'_>, ids: &[InstanceId], state: HostState) -> Result<Vec<Element>, ApiError> {
    let before: Vec<HostState> = {
        let model = call.plane.model();
        ids.iter().map(|id| Ok(model.host(*id)?.state)).collect::<Result<_, Refusal>>()?
    };
    call.execute(&Command::SetHostState { ids: ids.to_vec(), state })?;
    let items = ids.iter().zip(before).map(|(id, before)| {
        Element::list(
            "item",
            [
                Element::text("instanceId", id),
                view::host_state("currentState", state),
                view::host_state("previousState", before),
            ],
        )
    });
    Ok(vec![Element::list("instancesSet", items)])
}
