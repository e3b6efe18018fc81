//! The handshake with a client. The export is described by the data plane of its home.

use crate::Home;
use crate::client_stream::ClientStream;
use crate::front::Shared;
use crate::upstream::{Caller, Target, Trouble, Upstream};
use crate::visitor::Visitor;
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::constants::base_allocation::CONTEXT_ID;
use evenkeel_wire::nbd::constants::transmission_flag as flag;
use evenkeel_wire::nbd::handshake::{
    Choice, ClientGoal, ClientPlan, ClientStep, Listed, Negotiated, RemoteExport, Server,
    ServerStep, transmission_flags,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

const READ_BYTES: usize = 4 << 10;
/// Reason of a refusal in reports, as the data plane has it.
const NO_SUCH_VOLUME: &str = "no such volume is attached to it";

/// Result of a client's handshake.
pub(crate) struct Agreed {
    pub volume: VolumeId,
    pub negotiated: Negotiated,
    /// How the same is negotiated with another data plane.
    pub plan: ClientPlan,
    pub export: RemoteExport,
    pub target: Target,
    pub upstream: Upstream,
    /// Bytes that the client has sent after the handshake.
    pub rest: Vec<u8>,
}

/// A data plane that serves the export.
struct Opened {
    volume: VolumeId,
    plan: ClientPlan,
    export: RemoteExport,
    target: Target,
    upstream: Upstream,
}

/// Negotiates an export with a client.
///
/// # Errors
/// The reason why the connection ends.
pub(crate) async fn agree(
    shared: &Shared,
    client: &mut ClientStream,
    caller: &mut Caller,
    visitor: &Visitor,
) -> Result<Agreed, String> {
    let mut server = Server::new();
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut opened = None;
    let patience = shared.config.timing.handshake;
    let mut deadline = std::pin::pin!(sleep(patience));
    loop {
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => tokio::select! {
                sent = client.bytes.write_all(&bytes) => sent.map_err(|error| error.to_string())?,
                () = &mut deadline => return Err("its handshake takes too long".to_owned()),
            },
            Some(ServerStep::WantList) => {
                let names = list(shared, caller).await;
                let line = |name| Listed { name, description: "" };
                server.list(&names.iter().map(|name| line(name)).collect::<Vec<_>>());
            }
            Some(ServerStep::WantExport(name)) => {
                opened = answer(shared, caller, (&mut server, visitor), name).await;
                // The time that the front itself has taken is not charged to the client.
                deadline.set(sleep(patience));
            }
            Some(ServerStep::Ready(negotiated)) => {
                let Some(opened) = opened else { return Err("nothing was chosen".to_owned()) };
                let Opened { volume, plan, export, target, upstream } = opened;
                let rest = input;
                return Ok(Agreed { volume, negotiated, plan, export, target, upstream, rest });
            }
            Some(ServerStep::Close(reason)) => return Err(reason.to_string()),
            Some(ServerStep::StartTls) => return Err("there is no TLS here".to_owned()),
            None => {
                if input.is_empty() {
                    let read = tokio::select! {
                        read = client.bytes.read_buf(&mut input) => read,
                        () = &mut deadline => return Err("its handshake takes too long".to_owned()),
                    };
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Err("it has gone".to_owned());
                    }
                }
                let taken = server.handle(&input);
                input.drain(..taken);
            }
        }
    }
}

/// Returns the exports that this node's data plane shows to the client.
async fn list(shared: &Shared, caller: &mut Caller) -> Vec<String> {
    let goal = ClientGoal::List;
    let export = String::new();
    let plan = ClientPlan { export, goal, structured_replies: false, base_allocation: false };
    match caller.call(shared, Target::Local, plan).await {
        Ok((_, ClientStep::Listed(names))) => names.into_iter().map(|line| line.name).collect(),
        _ => Vec::new(),
    }
}

/// Answers the client's request for an export. Returns the data plane that serves it if the client
/// has chosen it.
async fn answer(
    shared: &Shared,
    caller: &mut Caller,
    (server, visitor): (&mut Server, &Visitor),
    name: String,
) -> Option<Opened> {
    let choice = server.choice();
    // Only volumes have exports.
    let Ok(volume) = name.parse::<VolumeId>() else {
        visitor.refused(None, NO_SUCH_VOLUME);
        server.export(None);
        return None;
    };
    let plan = plan(name, choice);
    let found = find(shared, caller, volume, &plan).await.and_then(|(target, upstream, export)| {
        let info = info(&export, &plan)?;
        Ok((Opened { volume, plan, export, target, upstream }, info))
    });
    match found {
        Ok((opened, info)) => {
            server.export(Some(info));
            choice.is_some().then_some(opened)
        }
        Err(Trouble::Unknown) => {
            visitor.refused(Some(volume), NO_SUCH_VOLUME);
            server.export(None);
            None
        }
        Err(Trouble::Denied(why) | Trouble::Passing(why)) => {
            visitor.refused(Some(volume), &why);
            server.deny(&why);
            None
        }
    }
}

/// Returns the plan by which a data plane is asked for the client's choice.
fn plan(export: String, choice: Option<Choice>) -> ClientPlan {
    let Some(choice) = choice else {
        let goal = ClientGoal::Describe;
        let base_allocation = false;
        return ClientPlan { export, goal, structured_replies: true, base_allocation };
    };
    let goal = if choice.block_size_requested {
        ClientGoal::Transmit
    } else {
        ClientGoal::TransmitAnySize
    };
    let Choice { structured_replies, base_allocation, .. } = choice;
    ClientPlan { export, goal, structured_replies, base_allocation }
}

/// Finds the home of a volume and what it offers. If no home is found in `first_contact`, this
/// node's data plane answers.
async fn find(
    shared: &Shared,
    caller: &mut Caller,
    volume: VolumeId,
    plan: &ClientPlan,
) -> Result<(Target, Upstream, RemoteExport), Trouble> {
    let timing = &shared.config.timing;
    let mut why = None;
    let searched = timeout(timing.first_contact, async {
        let mut pause = timing.retry_first;
        let mut unheard = Duration::ZERO;
        let mut unknown = Duration::ZERO;
        loop {
            let target = match shared.config.homes.home(volume) {
                Home::Unsettled => {
                    sleep(timing.look_waiting).await;
                    continue;
                }
                Home::Nowhere if unheard < timing.word => {
                    sleep(timing.look_waiting).await;
                    unheard += timing.look_waiting;
                    continue;
                }
                home => target(shared, home),
            };
            match caller.call(shared, target, plan.clone()).await {
                Ok((stream, step)) => {
                    return export_of(step).map(|export| (target, stream, export));
                }
                Err(Trouble::Passing(what)) => {
                    why = Some(format!("{target} does not serve it now: {what}; try again"));
                }
                // It may have released the volume, which has another home in a moment.
                Err(Trouble::Unknown) if unknown < timing.word => unknown += pause,
                Err(trouble) => return Err(trouble),
            }
            rest(shared, volume, target, pause).await;
            pause = longer(pause, timing.retry_longest);
        }
    })
    .await;
    match (searched, why) {
        (Ok(found), _) => found,
        (Err(_), Some(why)) => Err(Trouble::Passing(why)),
        (Err(_), None) => {
            let (upstream, step) = caller.call(shared, Target::Local, plan.clone()).await?;
            Ok((Target::Local, upstream, export_of(step)?))
        }
    }
}

/// Waits after a failure, until `pause` is over or the volume gets another home.
pub(crate) async fn rest(shared: &Shared, volume: VolumeId, failed: Target, pause: Duration) {
    let look = shared.config.timing.look_waiting.max(Duration::from_millis(1));
    let is_elsewhere = || match shared.config.homes.home(volume) {
        Home::Unsettled => false,
        home => target(shared, home) != failed,
    };
    let changes = async {
        while !is_elsewhere() {
            sleep(look).await;
        }
    };
    // Both are reasons to ask again.
    let _ = timeout(pause, changes).await;
}

/// Returns the pause after the next failure.
pub(crate) fn longer(pause: Duration, longest: Duration) -> Duration {
    pause.saturating_mul(2).min(longest)
}

/// Returns the data plane of a home. If there is no home, this node's data plane answers.
pub(crate) fn target(shared: &Shared, home: Home) -> Target {
    match home {
        Home::At { node, address } if node != shared.config.node => Target::Node(node, address),
        _ => Target::Local,
    }
}

fn export_of(step: ClientStep) -> Result<RemoteExport, Trouble> {
    match step {
        ClientStep::Ready(export) | ClientStep::Described(export) => Ok(export),
        _ => Err(Trouble::Passing("it answers something else".to_owned())),
    }
}

/// Converts a data plane's export to the one that the client gets. Returns an error if that would
/// promise more than the data plane offers.
fn info(export: &RemoteExport, plan: &ClientPlan) -> Result<ExportInfo, Trouble> {
    let mut info = ExportInfo::new(plan.export.clone(), export.size_bytes);
    if let Some(sizes) = export.block_sizes {
        info.block_bytes_min = sizes.bytes_min;
        info.block_bytes_preferred = sizes.bytes_preferred;
        info.payload_bytes_max = sizes.payload_bytes_max;
    }
    info.description = export.description.clone().unwrap_or_default();
    let has = |flag| export.transmission_flags & flag != 0;
    info.read_only = has(flag::READ_ONLY);
    info.can_multi_conn = has(flag::CAN_MULTI_CONN);
    info.rotational = has(flag::ROTATIONAL);
    let chosen = plan.goal != ClientGoal::Describe;
    let told = transmission_flags(&info, chosen && plan.structured_replies);
    let lacks = told & !export.transmission_flags;
    if lacks != 0 || !keeps_terms(export, plan) {
        return Err(Trouble::Passing(format!(
            "the volume's home lacks features of this node (flags {lacks:#x}); run the same version"
        )));
    }
    Ok(info)
}

/// Returns whether all terms of a plan were agreed on.
pub(crate) fn keeps_terms(export: &RemoteExport, plan: &ClientPlan) -> bool {
    let context = plan.base_allocation.then_some(CONTEXT_ID);
    export.structured_replies == plan.structured_replies && export.base_allocation == context
}
