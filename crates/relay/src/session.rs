//! One client, from its acceptance to its end.

use crate::client_stream::ClientStream;
use crate::clients::Socket;
use crate::connection_limits::Place;
use crate::forward::{Common, End, HAS_GAP, Ready, Traffic};
use crate::front::Shared;
use crate::handshake::{Agreed, agree, keeps_terms, longer, rest, target};
use crate::lease::Lease;
use crate::lending::{Lender, Loan, Returned};
use crate::memory::Share;
use crate::notices::Notice;
use crate::pulse::Watch;
use crate::upstream::{Caller, Target, Trouble, Upstream};
use crate::visitor::Visitor;
use crate::{Home, Peer};
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::nbd::handshake::{ClientPlan, ClientStep, RemoteExport};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// A client's volume and the terms of its connection, wherever it is served.
struct Bond {
    volume: VolumeId,
    plan: ClientPlan,
    /// The export as the client got it in its handshake.
    export: RemoteExport,
}

/// Serves a client until it disconnects.
pub(crate) async fn serve(
    shared: Rc<Shared>,
    mut client: ClientStream,
    (peer, address): (Peer, SocketAddr),
    (place, visitor): (Place, Visitor),
) {
    let watch = Watch::new(&shared.pulse);
    let mut caller = Caller::new((peer, shared.next_session()), &shared.clients);
    let agreed = tokio::select! {
        agreed = agree(&shared, &mut client, &mut caller, &visitor) => agreed,
        () = place.evicted() => Err("its handshake makes room for others".to_owned()),
    };
    place.settle();
    let Agreed { volume, negotiated, plan, export, target, upstream, rest } = match agreed {
        Ok(agreed) => agreed,
        Err(why) => return tracing::debug!(%address, "a handshake ended: {why}"),
    };
    let _connected = visitor.connected(volume);
    let share = Share::new(&shared.memory, peer);
    let scratch = Rc::clone(&shared.scratch);
    let common = Common { share, scratch, watch };
    let socket = Socket::new(client);
    caller.speaks_for(&socket);
    let mut traffic = Traffic::new(socket, negotiated.terms(), common, rest);
    traffic.connect(upstream);
    let bond = Bond { volume, plan, export };
    let why = carry(&shared, &mut caller, &mut traffic, &bond, target).await;
    match why {
        None => traffic.take_leave().await,
        Some(why) => {
            let unanswered = traffic.unanswered();
            tracing::debug!(%address, %volume, unanswered, "a connection ended: {why}");
        }
    }
}

/// Carries requests and replies from home to home. Returns `None` if the client has disconnected as
/// the protocol requires, and otherwise the reason of the end.
async fn carry(
    shared: &Shared,
    caller: &mut Caller,
    traffic: &mut Traffic,
    bond: &Bond,
    mut at: Target,
) -> Option<String> {
    let volume = bond.volume;
    loop {
        let lost = match flow(shared, traffic, volume, at).await {
            End::Done => return None,
            End::Client(why) => return Some(why),
            End::Upstream(why) => why,
            End::Idle => match lend(shared, traffic, (volume, at)).await {
                Ok(why) => why,
                Err(why) => return Some(why),
            },
        };
        traffic.disconnect();
        let what = "a volume's connection is lost, and made anew";
        shared.notices.tell(Notice::Home, what, &volume, &format!("{at}: {lost}"));
        let again = tokio::select! {
            again = reconnect(shared, caller, bond) => again,
            end = poll_fn(|cx| traffic.poll(cx)) => match end {
                End::Done => return None,
                End::Client(why) | End::Upstream(why) => return Some(why),
                End::Idle => return Some("no data plane takes the connection".to_owned()),
            },
        };
        match again {
            Ok((target, upstream)) => {
                shared.figures.reconnected.fetch_add(1, Ordering::Relaxed);
                traffic.connect(upstream);
                at = target;
            }
            Err(why) => {
                let what = "a client's connection is closed";
                shared.notices.tell(Notice::Client, what, &volume, &why);
                return Some(why);
            }
        }
    }
}

/// Lends a client to this node's data plane until that returns it, and returns the reason. When the
/// volume has another home, recalls the client, as the front itself would disconnect.
///
/// # Errors
/// The reason why the client's connection has ended.
async fn lend(
    shared: &Shared,
    traffic: &mut Traffic,
    (volume, at): (VolumeId, Target),
) -> Result<String, String> {
    let Some(Ready { client, unread, lender, upstream }) = traffic.lend() else {
        return Err("there is nothing to lend".to_owned());
    };
    let client = client.into_std().and_then(|client| {
        client.set_nonblocking(false)?;
        Ok(client)
    });
    let client = client.map_err(|error| error.to_string())?.into();
    let (back, returned) = oneshot::channel::<Returned>();
    // If the front has ended, no task receives it, and the client's connection ends, too.
    let back = Box::new(move |returned| drop(back.send(returned)));
    lender.lend(Loan { client, unread, back });
    drop(upstream);
    shared.figures.lent.fetch_add(1, Ordering::Relaxed);
    let watch = traffic.watch();
    let lent = &shared.figures.lent;
    let mut lent = Lent { lender, returned, has_ended: false, watch, lent };
    let returned = lent.until_returned(shared, (volume, at)).await?;
    traffic.take_back(returned).map_err(|error| error.to_string())?;
    Ok("the data plane gives its client back".to_owned())
}

/// A client that is lent.
struct Lent<'a> {
    lender: Arc<dyn Lender>,
    returned: oneshot::Receiver<Returned>,
    has_ended: bool,
    watch: Watch,
    lent: &'a AtomicU64,
}

impl Lent<'_> {
    async fn until_returned(
        &mut self,
        shared: &Shared,
        (volume, at): (VolumeId, Target),
    ) -> Result<Returned, &'static str> {
        let mut look = interval(shared.config.timing.look.max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                returned = &mut self.returned => {
                    self.has_ended = true;
                    // Requests that the data plane has not begun may have been sent before the gap.
                    if self.watch.has_gap() {
                        return Err(HAS_GAP);
                    }
                    return returned.map_err(|_| "its connection to the data plane ended");
                }
                _ = look.tick() => {}
            }
            if self.watch.has_gap() {
                return Err(HAS_GAP);
            }
            match shared.config.homes.home(volume) {
                Home::Unsettled | Home::Nowhere => {}
                home if target(shared, home) == at => {}
                _ => self.lender.recall(),
            }
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
        if !self.has_ended {
            // The front stops, and its clients' connections end with it.
            self.lender.recall();
        }
    }
}

/// Carries requests and replies as long as the volume's home is `at`.
async fn flow(shared: &Shared, traffic: &mut Traffic, volume: VolumeId, at: Target) -> End {
    let timing = &shared.config.timing;
    let mut look = interval(timing.look.max(Duration::from_millis(1)));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let lease = traffic.lease();
    let mut over = std::pin::pin!(over(lease.as_deref()));
    loop {
        tokio::select! {
            biased;
            () = &mut over => return End::Upstream("it has ended this node's lease".to_owned()),
            end = poll_fn(|cx| traffic.poll(cx)) => return end,
            _ = look.tick() => {}
        }
        if traffic.is_stalled(timing.look, timing.stall) {
            return End::Client("it stopped in the middle".to_owned());
        }
        match shared.config.homes.home(volume) {
            // A node that gives a volume up closes its connections; until then it may answer.
            Home::Unsettled | Home::Nowhere => {}
            home if target(shared, home) == at => {}
            home => {
                let other = target(shared, home);
                return End::Upstream(format!("the volume's home is {other} now"));
            }
        }
    }
}

/// Returns when a lease has ended.
async fn over(lease: Option<&Lease>) {
    match lease {
        Some(lease) => lease.over().await,
        None => std::future::pending().await,
    }
}

/// Finds the current home and negotiates the same terms with it.
async fn reconnect(
    shared: &Shared,
    caller: &mut Caller,
    bond: &Bond,
) -> Result<(Target, Upstream), String> {
    let timing = &shared.config.timing;
    let mut last = "no node serves the volume".to_owned();
    let attempts = timeout(timing.reconnect, async {
        let mut pause = timing.retry_first;
        let mut unknown = Duration::ZERO;
        loop {
            let target = match shared.config.homes.home(bond.volume) {
                Home::Nowhere => return Err("there is no such volume any more".to_owned()),
                Home::Unsettled => {
                    (pause, unknown) = (timing.retry_first, Duration::ZERO);
                    sleep(timing.look_waiting).await;
                    continue;
                }
                home => target(shared, home),
            };
            match caller.call(shared, target, bond.plan.clone()).await {
                Ok((upstream, ClientStep::Ready(export))) => {
                    return bond.fits(&export).map(|()| (target, upstream));
                }
                Ok(_) => unknown = Duration::ZERO,
                Err(Trouble::Unknown) if unknown > timing.unknown => {
                    return Err(format!("{target} shows the client no such volume"));
                }
                Err(Trouble::Unknown) => {
                    unknown += pause;
                    last = format!("{target} shows the client no such volume");
                }
                Err(Trouble::Denied(why) | Trouble::Passing(why)) => {
                    unknown = Duration::ZERO;
                    last = format!("{target}: {why}");
                }
            }
            rest(shared, bond.volume, target, pause).await;
            pause = longer(pause, timing.retry_longest);
        }
    })
    .await;
    attempts.unwrap_or_else(|_| Err(format!("no home for {:?}: {last}", timing.reconnect)))
}

impl Bond {
    /// Returns an error if a client that got `self.export` cannot continue with `now`.
    fn fits(&self, now: &RemoteExport) -> Result<(), String> {
        let told = &self.export;
        if !keeps_terms(now, &self.plan)
            || now.transmission_flags != told.transmission_flags
            || now.block_sizes != told.block_sizes
        {
            return Err(format!("the volume's new home has other features: {now:?}"));
        }
        if now.size_bytes < told.size_bytes {
            let now = now.size_bytes;
            let told = told.size_bytes;
            return Err(format!("the volume has {now} bytes now, and had {told}"));
        }
        Ok(())
    }
}
