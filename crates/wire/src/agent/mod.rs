//! What the control plane tells the data plane, and what comes back. The two never see each other:
//! they meet here, so the data plane keeps its promise while the control plane is down.
//!
//! Desired state goes down as whole, idempotent statements ("this volume looks like this"), never
//! as differences, so that a restart of either side is repaired by saying everything again.
//!
//! Both ends are in one process today and pass these types; between processes each message is one
//! frame of bytes ([`Command::encode`], [`Reply::encode`]), of a version that both compare.

mod bytes;
mod fields;
mod frame;

pub use bytes::{Malformed, Problem};
pub use frame::{HEAD_BYTES, TooLong, frame_bytes};

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::admission::{DeviceFloor, DomainFloor};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::sharing::{DeviceModel, InstanceCounters, InstancePacing};
use evenkeel_core::units::ByteCount;

/// Version of the byte form, in every frame. Any change of a message's fields is a new one.
pub const VERSION: u16 = 1;

/// From where a host may reach a volume it is attached to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HostAddress {
    /// This machine: 127.0.0.1, `::1` and the unix socket.
    Local,
    /// A host known by its address. Another loopback address is another host on this machine.
    Remote(IpAddr),
}

impl HostAddress {
    /// Who comes from an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST) => Self::Local,
            ip => Self::Remote(ip),
        }
    }
}

/// A host that may reach a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attachment {
    /// Which host, and so whose limits the volume's requests share. Without limits if the data
    /// plane was never told of it ([`Command::ApplyHost`]).
    pub host: InstanceId,
    /// Where it connects from. One volume is not attached to two hosts with one address; where that
    /// was done before it was refused, a connection from there counts as the first one's.
    pub address: HostAddress,
}

/// The desired state of one host, whole: the client instance that volumes are attached to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostState {
    /// Which host.
    pub id: InstanceId,
    /// What all its volumes may do together. A change acts at once and never refills a bucket.
    pub pacing: InstancePacing,
    /// Credit balances to start from. Read only when the data plane does not know the host yet;
    /// `None` in a dimension that has credits means a full bucket.
    pub balances: Balances,
    /// What of them may not be spent until [`Command::Lease`] says so; `None` is nothing. Read only
    /// with the balances.
    pub unleased: Balances,
}

/// The desired state of one volume, whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeState {
    /// Which volume.
    pub id: VolumeId,
    /// Its size. Bytes at rest that are fewer or more are refused ([`FailedKind::Damaged`]):
    /// [`Command::Create`] makes them, [`Command::Grow`] adds to them, and nothing else does.
    pub size: ByteCount,
    /// Its limits. A change acts at once and never refills a bucket.
    pub pacing: Pacing,
    /// Credit balances to start from. Read only when the data plane does not hold the volume yet;
    /// `None` in a dimension that has credits means a full bucket.
    pub balances: Balances,
    /// What of them may not be spent until [`Command::Lease`] says so; `None` is nothing. Read only
    /// with the balances.
    pub unleased: Balances,
    /// What it is sure of at the device, whatever others do; of what is left it gets a part by its
    /// limit in I/Os. Without effect while the device is not calibrated.
    pub reserved: Reserved,
    /// Hosts that may connect; empty while the volume is not attached.
    pub attachments: Vec<Attachment>,
}

/// What the control plane asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Make a volume that has never been in force: its bytes, which read as zeroes, and all that
    /// [`Command::Apply`] does. Bytes that are there already, and as many, stay as they are.
    Create(VolumeState),
    /// Make it so: opens the bytes there are, changes limits, opens or closes access. When it
    /// returns, the change is in force; connections of hosts no longer listed are closed.
    Apply(VolumeState),
    /// The same for a volume that had so many bytes and is to have those of its state, which are
    /// more; the new ones read as zeroes. Said again, it leaves what has been written since.
    Grow(VolumeState, ByteCount),
    /// Forget the volume and delete its bytes. Done if there is none.
    Delete(VolumeId),
    /// Make a host so, before volumes are attached to it.
    ApplyHost(HostState),
    /// Forget a host. Refused while volumes are attached to it; done if there is none.
    DeleteHost(InstanceId),
    /// The device below the store is like this: from now on volumes share it by their claims.
    Calibrated(DeviceModel),
    /// Set credit balances; a dimension that is `None` stays. Values above the capacity are
    /// clamped.
    SetBalances(VolumeId, Balances),
    /// Lease the credits of volumes and hosts: from now on all but so much of each balance may be
    /// spent. A dimension that is `None` stays; never is more unleased than there is.
    Lease(CreditReport),
    /// Tell how all volumes and hosts are.
    Report,
    /// Tell the credit balances that may have changed since this was asked last: a volume that
    /// rests with full balances costs nothing. One that was just applied is told of.
    Balances,
    /// Tell where requests spent their time, of all volumes or of one.
    Latencies(Option<VolumeId>),
    /// Tell which volumes have bytes at rest, applied or not.
    Stored,
    /// Tell how much room there is for bytes at rest. Looks at every volume's file.
    Space,
    /// Tell what may be sold. Asked before every decision about it, so answered from memory.
    Capacity,
}

/// Room for bytes at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What volumes could fill together: what they have filled, and what is free.
    pub total: ByteCount,
    /// What is free.
    pub free: ByteCount,
}

/// What may be sold, as far as the data plane knows. It may change while the server runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Capacity {
    /// Nothing was measured. Nothing is refused then, and whoever lists what is sold says so.
    #[default]
    Unknown,
    /// A calibration is in force.
    Measured(Measured),
}

/// What a calibration found, and how much of it is there now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Id of the calibration's record.
    pub calibration: String,
    /// When it was made, in UTC, as its record says it.
    pub date: String,
    /// The device under the store, as measured.
    pub device: DeviceFloor,
    /// What all devices of this data plane share, as measured.
    pub domain: DomainFloor,
    /// How much of what was measured of the device is there now, in millionths: all of it, until
    /// the device turns out to be slower than it was.
    pub left_ppm: u32,
}

impl Measured {
    /// The device as it is now.
    #[must_use]
    pub fn device_now(&self) -> DeviceFloor {
        self.device.part(self.left_ppm)
    }
}

/// How one volume is, as the data plane sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeReport {
    /// Which volume.
    pub id: VolumeId,
    /// Present credit balances.
    pub balances: Balances,
    /// Open connections.
    pub connections: u32,
    /// Requests waiting or in flight.
    pub queued: u32,
    /// Counted I/Os dispatched since the server started.
    pub operations: u64,
    /// Bytes read since the server started.
    pub bytes_read: u64,
    /// Bytes written since the server started.
    pub bytes_written: u64,
    /// Flushes dispatched since the server started; they are no counted I/Os.
    pub flushes: u64,
    /// Time its requests were held up, by what held them up.
    pub exceeded: Exceeded,
    /// What of its requests failed.
    pub errors: IoErrors,
    /// In how many of the seconds in which it was used it got what was sold with it.
    pub contract: Contract,
}

/// What of a volume's requests failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoErrors {
    /// Requests answered with an I/O error since the server started.
    pub device: u64,
    /// Requests answered with "no space left" since the server started.
    pub no_space: u64,
    /// A flush failed, so what was acknowledged before it may be lost: flushes fail until the
    /// volume is attached anew.
    pub flush_failed: bool,
}

/// How one host is, as the data plane sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostReport {
    /// Which host.
    pub id: InstanceId,
    /// Present credit balances.
    pub balances: Balances,
    /// What its volumes have done together since the server started.
    pub counters: InstanceCounters,
}

/// How everything is, as the data plane sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// All volumes, in the order of ids.
    pub volumes: Vec<VolumeReport>,
    /// All hosts with limits, in the order of ids.
    pub hosts: Vec<HostReport>,
}

/// Credit balances, or parts of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CreditReport {
    /// Of volumes that have credits.
    pub volumes: Vec<(VolumeId, Balances)>,
    /// Of all hosts with limits.
    pub hosts: Vec<(InstanceId, Balances)>,
}

/// The data plane's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The command is in force.
    Done,
    /// Answer to [`Command::Report`].
    Report(Report),
    /// Answer to [`Command::Balances`]; and to [`Command::Lease`] with what is unleased now, of all
    /// that were named and are known.
    Balances(CreditReport),
    /// Answer to [`Command::Latencies`], in the order of ids; volumes nobody has used since the
    /// server started are left out.
    Latencies(Vec<(VolumeId, Box<Latencies>)>),
    /// Answer to [`Command::Stored`]: how many bytes each volume has, in the order of ids.
    Stored(Vec<(VolumeId, ByteCount)>),
    /// Answer to [`Command::Space`]; `None` where that is not known.
    Space(Option<Space>),
    /// Answer to [`Command::Capacity`].
    Capacity(Capacity),
    /// The command had no effect.
    Failed(Failed),
}

/// Why a command had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// What kind of failure.
    pub kind: FailedKind,
    /// Names the thing, the value, the limit and the next step.
    pub message: String,
}

/// Kinds of failure the control plane treats differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailedKind {
    /// No room for the bytes.
    NoSpace,
    /// The data plane does not hold this volume.
    NotFound,
    /// The bytes at rest are missing, or not those of the volume; it is not served. Nothing was
    /// changed, and it can be said again once the cause is gone.
    Damaged,
    /// The volume cannot be changed this way (for example made smaller), or not as things are. It
    /// is as it was; said again, it is refused again until something else has changed.
    Refused,
    /// The store or the data plane failed.
    Internal,
    /// It has not been done yet, and may be at any time: say it again to hear.
    Unanswered,
    /// The data plane is not running.
    Down,
}

/// The data plane as the control plane sees it.
pub trait Agent: Send + Sync {
    /// Carries out one command and answers when it is in force. May block for as long as the store
    /// takes.
    fn call(&self, command: Command) -> Reply;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_this_machine_by_any_name_and_other_loopback_addresses_are_others() {
        for (ip, expected) in [
            ("127.0.0.1", HostAddress::Local),
            ("::1", HostAddress::Local),
            ("::ffff:127.0.0.1", HostAddress::Local),
            ("127.0.0.2", HostAddress::Remote([127, 0, 0, 2].into())),
            ("::ffff:127.0.0.2", HostAddress::Remote([127, 0, 0, 2].into())),
            ("::ffff:10.0.0.1", HostAddress::Remote([10, 0, 0, 1].into())),
        ] {
            assert_eq!(HostAddress::of(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
