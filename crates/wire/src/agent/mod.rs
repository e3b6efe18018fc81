//! The messages between the control plane and the data plane. The two do not depend on each other
//! and communicate through this module only, so the data plane keeps its promise while the control
//! plane is down.
//!
//! The control plane sends desired state as complete, idempotent commands, never as differences. So
//! after a restart of either side it is enough to send everything again. Every command gets one
//! [`Reply`]; [`Reply::Failed`] means that it had no effect or has not been answered yet.
//!
//! Both ends are in one process in `evenkeel serve` and pass these types. Between processes each
//! message is one frame of bytes ([`Command::encode`], [`Reply::encode`]), whose version both ends
//! check, within a [`session`].

mod bytes;
mod conflict_keys;
mod fields;
mod frame;
pub mod proof;
pub mod session;
pub mod visit;

pub use bytes::{Malformed, Problem};
pub use conflict_keys::Touched;
pub use frame::{HEAD_BYTES, TooLong, frame_bytes};

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::{DeviceFloor, DomainFloor, Reserved, Strain};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::qos::sharing::{DeviceModel, InstanceCounters, InstancePacing};
use evenkeel_core::units::ByteCount;

/// Version of the byte form, in every frame. After the first release, any change of a message's
/// fields needs a new version: docs/internals/journal.md.
pub const VERSION: u16 = 1;

/// The address from which a host may access its volumes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HostAddress {
    /// This machine: 127.0.0.1, `::1` and the unix socket.
    Local,
    /// A host identified by its address. Another loopback address is another host on this machine.
    Remote(IpAddr),
}

impl HostAddress {
    /// The host address of a peer's IP address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST) => Self::Local,
            ip => Self::Remote(ip),
        }
    }
}

/// A host that may access a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Attachment {
    /// The host whose limits the volume's requests share. It has no limits unless the data plane
    /// has received it ([`Command::ApplyHost`]).
    pub host: InstanceId,
    /// The address from which it connects. One volume is not attached to two hosts with the same
    /// address. If that was done by a version that allowed it, a connection from there counts as
    /// the first host's.
    pub address: HostAddress,
}

/// The complete desired state of one host: the client instance that volumes are attached to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostState {
    /// Which host.
    pub id: InstanceId,
    /// The limits of all its volumes together. A change takes effect at once and never refills a
    /// bucket.
    pub pacing: InstancePacing,
    /// Initial credit balances. Used only if the data plane does not know the host yet; `None` in a
    /// dimension that has credits means a full bucket.
    pub balances: Balances,
    /// The part of them that must not be spent until [`Command::Lease`] allows it; `None` means
    /// nothing. Used only together with the balances.
    pub unleased: Balances,
}

/// The complete desired state of one volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeState {
    /// Which volume.
    pub id: VolumeId,
    /// Its size. Stored bytes of another number are an error ([`FailedKind::Damaged`]): only
    /// [`Command::Create`] and [`Command::CreateFrom`] create bytes, and only [`Command::Grow`]
    /// adds some.
    pub size: ByteCount,
    /// Its limits. A change takes effect at once and never refills a bucket.
    pub pacing: Pacing,
    /// Initial credit balances. Used only if the data plane does not hold the volume yet; `None` in
    /// a dimension that has credits means a full bucket.
    pub balances: Balances,
    /// The part of them that must not be spent until [`Command::Lease`] allows it; `None` means
    /// nothing. Used only together with the balances.
    pub unleased: Balances,
    /// The device time that it is guaranteed, whatever others do. Of the remaining time it gets a
    /// share by its limit in I/Os. No effect while the device is not calibrated.
    pub reserved: Reserved,
    /// Hosts that may connect; empty while the volume is not attached.
    pub attachments: Vec<Attachment>,
    /// Whether its bytes are encrypted. Used only by [`Command::Create`]: bytes that are there
    /// stay as they are, and a volume of a snapshot is encrypted as that is.
    pub is_encrypted: bool,
}

/// A volume that has stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredVolume {
    /// Which volume.
    pub id: VolumeId,
    /// Its bytes.
    pub size: ByteCount,
    /// Whether they are encrypted.
    pub is_encrypted: bool,
}

/// A request of the control plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Creates a volume that has never been in force: creates its bytes, which read as zeroes, and
    /// does everything that [`Command::Apply`] does. Existing bytes of the same number stay as they
    /// are.
    Create(VolumeState),
    /// Creates a volume as [`Command::Create`] does, with the content of a snapshot, which must not
    /// be larger than the volume.
    CreateFrom(VolumeState, SnapshotId),
    /// Applies a volume's state: opens its existing bytes, changes limits, grants or removes
    /// access. When it returns, the change is in force, and connections of hosts no longer listed
    /// are closed.
    Apply(VolumeState),
    /// Applies a volume's state with a larger size than before; the new bytes read as zeroes. A
    /// repeated call keeps later writes.
    Grow(VolumeState, ByteCount),
    /// Removes the volume and deletes its bytes. Succeeds if there is none.
    Delete(VolumeId),
    /// Repairs the stored bytes of a volume that cannot be opened because they are damaged, so that
    /// it can be opened with the bytes that can still be read. Does nothing if it can be opened.
    /// Fails if the volume is held.
    Salvage(VolumeId),
    /// Gives a volume up, so that another data plane can serve it. No further request of it is
    /// begun. Requests in the store are completed and answered; other requests get no reply. Then
    /// its connections and its store are closed, so that another data plane can open it. Its bytes
    /// stay. It is unknown here until it is applied again. Succeeds if it is not held; then the
    /// reply has no balances of it.
    Release(VolumeId),
    /// Applies a host's state. Sent before volumes are attached to it.
    ApplyHost(HostState),
    /// Removes a host. Fails while volumes are attached to it; succeeds if there is none.
    DeleteHost(InstanceId),
    /// Sets the properties of the device below the store: from now on volumes share it by their
    /// reservations.
    Calibrated(DeviceModel),
    /// Sets which part of the device is this node's; `None` leaves it as it is. Returns the node's
    /// use of the device since the last call. Before the first part is set, the node has the whole
    /// device.
    Divide(Option<NodePart>),
    /// Sets credit balances; a dimension that is `None` stays. Values above the capacity are
    /// reduced to it.
    SetBalances(VolumeId, Balances),
    /// Leases the credits of volumes and hosts: from now on everything but this part of each
    /// balance may be spent. A dimension that is `None` stays. The unleased part never exceeds the
    /// balance.
    Lease(CreditReport),
    /// Returns the state of all volumes and hosts.
    Report,
    /// Returns the state of those of these volumes that are applied, and of no host.
    ReportOf(Vec<VolumeId>),
    /// Returns the credit balances that may have changed since the last call; an idle volume with
    /// full balances costs nothing. A volume that was just applied is included.
    Balances,
    /// Returns the time that requests spent, by place, of all volumes or of one.
    Latencies(Option<VolumeId>),
    /// Returns the volumes that have stored bytes, applied or not.
    Stored,
    /// Returns the space for stored bytes. Reads the size of every volume's file.
    Space,
    /// Returns the capacity that may be sold. Called before every decision about it, so answered
    /// from memory.
    Capacity,
    /// Makes a snapshot of a volume under an id that was never used: it holds at least everything
    /// that was answered to clients before the call. When it is answered, the snapshot survives a
    /// crash; it is complete when [`Command::Snapshots`] returns it as complete. Not idempotent: a
    /// second call fails, because a snapshot of a later moment would be another one.
    Snapshot(VolumeId, SnapshotId),
    /// Deletes a snapshot. Succeeds if there is none. Volumes made of it keep their bytes.
    DeleteSnapshot(SnapshotId),
    /// Returns all snapshots that are stored.
    Snapshots,
    /// Returns those of these snapshots that are stored. Its cost does not depend on other
    /// snapshots.
    SnapshotsOf(Vec<SnapshotId>),
    /// Makes snapshots of several volumes at one moment, each under an id that was never used: none
    /// holds a write that began after one was answered that another of them lacks. Otherwise as
    /// [`Command::Snapshot`]. If one fails, none is left.
    SnapshotSet(Vec<(VolumeId, SnapshotId)>),
    /// Returns units of a snapshot in which it differs from another.
    SnapshotUnits(UnitsWanted),
    /// Returns the bytes of one unit of a snapshot.
    ReadSnapshot(SnapshotId, u64),
    /// Begins a snapshot that is filled unit by unit. Succeeds if it has begun with this size.
    StartSnapshot(NewSnapshot),
    /// Fills one unit of a snapshot that was begun so. It survives a crash when this is answered.
    PutSnapshot(SnapshotId, u64, Bytes),
    /// Ends the filling of a snapshot. Succeeds if it is complete.
    CompleteSnapshot(SnapshotId),
    /// Limits the bytes that background work may move in a second: verification, and copies of
    /// snapshots. If the device is calibrated, it gets the time that volumes leave, within this
    /// limit.
    SetBackground(ByteCount),
    /// Returns the results of background work.
    Background,
    /// Reads a part of a volume from this byte on, and compares it with its checksums. The volume
    /// must have been applied.
    Verify(VolumeId, u64),
    /// Reads a part of a snapshot from this unit on, and compares it with its checksums.
    VerifySnapshot(SnapshotId, u64),
    /// Verifies a part of the store's metadata: tables, logs, maps. Begins at this place, which is
    /// 0 or [`Verified::next`] of the last reply. Repairs the damage that it can.
    VerifyStore(u64),
    /// Returns the bytes of data in volumes, which is the size of a full snapshot of each.
    Filled(Vec<VolumeId>),
    /// Returns the state of the store itself, beside its volumes. Answered from memory.
    StoreHealth,
}

/// State of the store itself, beside its volumes. Counts begin when the data plane starts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StoreHealth {
    /// Copies of data that the store has twice that were damaged and were rewritten.
    pub copies_mended: u64,
    /// Volumes that were salvaged and lost data.
    pub volumes_salvaged: u64,
    /// Volumes that are not open, most of them deleted, with work that fails.
    pub unfinished: u64,
    /// Volumes that are not open with work for which there is no space.
    pub without_space: u64,
    /// Sectors of the store's tables that are damaged in both copies.
    pub damaged_sectors: u64,
}

impl StoreHealth {
    /// Returns the numbers of things that the store cannot do or read at present, by the names in
    /// metrics and events.
    #[must_use]
    pub const fn troubles(&self) -> [(&'static str, u64); 3] {
        [
            ("unfinished", self.unfinished),
            ("no_space", self.without_space),
            ("damaged_sector", self.damaged_sectors),
        ]
    }
}

/// Results of background work since the data plane was started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BackgroundReport {
    /// Its limit.
    pub bytes_per_second: ByteCount,
    /// Pieces of work that wait for the device.
    pub waiting: u32,
    /// Bytes that were read to verify them.
    pub verified: ByteCount,
    /// Bytes of snapshots that were read to be copied.
    pub read: ByteCount,
    /// Bytes of snapshots that were filled.
    pub filled: ByteCount,
}

/// Result of a verification.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Verified {
    /// Place at which the next call must begin: a byte of a volume, a unit of a snapshot. `None` at
    /// the end.
    pub next: Option<u64>,
    /// Bytes that were read.
    pub bytes: ByteCount,
    /// Offsets in bytes of the damaged parts: of a block of a volume, or of a unit of a snapshot.
    pub rotten: Vec<u64>,
}

/// The bytes of a unit, in which snapshots are read, compared and filled.
pub const UNIT_BYTES: u64 = 512 << 10;

/// Payload of a message.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Bytes(pub Vec<u8>);

/// A snapshot that [`Command::StartSnapshot`] begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewSnapshot {
    /// Which snapshot.
    pub id: SnapshotId,
    /// Its size.
    pub size: ByteCount,
    /// The snapshot that it is as where it is not filled; without one, it is zeroes there.
    pub parent: Option<SnapshotId>,
    /// Whether it is encrypted. With a parent it is as that is.
    pub is_encrypted: bool,
}

/// The units that [`Command::SnapshotUnits`] asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitsWanted {
    /// The snapshot.
    pub id: SnapshotId,
    /// The snapshot that it is compared with; without one, with zeroes.
    pub older: Option<SnapshotId>,
    /// The first unit that may be returned.
    pub first: u64,
    /// Maximum number of units.
    pub max: u32,
}

/// Some units of a snapshot, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Units {
    /// Their numbers: unit 0 begins at byte 0.
    pub units: Vec<u64>,
    /// The first unit that was not examined; `None` at the end.
    pub next: Option<u64>,
}

/// A snapshot as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredSnapshot {
    /// Which snapshot.
    pub id: SnapshotId,
    /// The volume that it was made of, unless its bytes are deleted.
    pub volume: Option<VolumeId>,
    /// The size of that volume when the snapshot was made.
    pub size: ByteCount,
    /// The bytes of data in it, in whole blocks: the size of a full copy of it. Known when it is
    /// complete.
    pub data: ByteCount,
    /// Whether it is complete, so that volumes can be made of it.
    pub is_complete: bool,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
}

/// Space for stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The bytes that volumes could fill together: those they have filled plus the free ones.
    pub total: ByteCount,
    /// The free bytes.
    pub free: ByteCount,
}

/// The capacity that may be sold, as far as the data plane knows it. It may change while the server
/// runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Capacity {
    /// Nothing was measured. No volume is refused then, and every list of sold amounts shows that.
    #[default]
    Unknown,
    /// A calibration is in force.
    Measured(Box<Measured>),
}

/// The result of a calibration, and the part of it that is available now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Id of the calibration's record.
    pub calibration: String,
    /// When it was made, in UTC, as in its record.
    pub date: String,
    /// The device under the store, as measured.
    pub device: DeviceFloor,
    /// The capacity that all devices of this data plane share, as measured.
    pub domain: DomainFloor,
    /// Capacity of each machine that shares the device; their sum is `domain`. Empty if one machine
    /// has the device alone.
    pub nodes: Vec<DomainFloor>,
    /// The device as measured in degraded states in which it must still carry the sold volumes,
    /// each at most once. Empty if it was measured only in its whole state.
    pub strained: Vec<(Strain, DeviceFloor)>,
    /// The part of the device's measured capacity that is available now, in millionths: all of it,
    /// unless the device has become slower.
    pub left_ppm: u32,
}

impl Measured {
    /// Returns the device's present capacity.
    #[must_use]
    pub fn device_now(&self) -> DeviceFloor {
        self.device.part(self.left_ppm)
    }
}

/// The state of one volume, as the data plane reports it.
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
    /// Requests that the store works on; `queued` includes them.
    pub in_store: u32,
    /// Counted I/Os dispatched since the server started.
    pub operations: u64,
    /// Bytes read since the server started.
    pub bytes_read: u64,
    /// Bytes written since the server started.
    pub bytes_written: u64,
    /// Flushes dispatched since the server started; they do not count as I/Os.
    pub flushes: u64,
    /// Its reads and writes that were answered.
    pub answered: Answered,
    /// The time for which its requests were delayed, by cause.
    pub exceeded: Exceeded,
    /// Its failed requests.
    pub errors: IoErrors,
    /// Seconds in which it had requests, and those of them in which it did not get its provisioned
    /// performance.
    pub contract: Contract,
}

/// Reads and writes that were answered since the server started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Nanoseconds from arrival to answer, of all reads together.
    pub read_ns: u64,
    /// Nanoseconds from arrival to answer, of all writes together.
    pub write_ns: u64,
}

impl From<&Latencies> for Answered {
    fn from(latencies: &Latencies) -> Self {
        let reads = &latencies.reads.total;
        let writes = &latencies.writes.total;
        Self {
            reads: reads.count(),
            writes: writes.count(),
            read_ns: reads.sum().ns,
            write_ns: writes.sum().ns,
        }
    }
}

/// The failed requests of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoErrors {
    /// Requests answered with an I/O error since the server started.
    pub device: u64,
    /// Requests answered with "no space left" since the server started.
    pub no_space: u64,
    /// Requests that met data whose checksum does not fit, since the server started.
    pub rotten: u64,
    /// There was such data since the volume was attached.
    pub is_rotten: bool,
    /// A flush failed, so writes acknowledged before it may be lost. Flushes fail until the volume
    /// is attached again.
    pub flush_failed: bool,
}

/// The state of one host, as the data plane reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostReport {
    /// Which host.
    pub id: InstanceId,
    /// Present credit balances.
    pub balances: Balances,
    /// The counters of its volumes together since the server started.
    pub counters: InstanceCounters,
}

/// The state of all volumes and hosts, as the data plane reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// All volumes, by id.
    pub volumes: Vec<VolumeReport>,
    /// All hosts with limits, by id.
    pub hosts: Vec<HostReport>,
}

/// Credit balances, or parts of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CreditReport {
    /// Balances of volumes that have credits.
    pub volumes: Vec<(VolumeId, Balances)>,
    /// Balances of all hosts with limits.
    pub hosts: Vec<(InstanceId, Balances)>,
}

/// The data plane's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The command is in force.
    Done,
    /// Answer to [`Command::Report`].
    Report(Report),
    /// Answer to [`Command::Balances`]; to [`Command::Lease`], with the present unleased amounts of
    /// all volumes and hosts that were named and are known; and to [`Command::Release`], with the
    /// volume's final balances, and those of its hosts with limits to which no other volume here is
    /// attached.
    Balances(CreditReport),
    /// Answer to [`Command::Latencies`], by id; volumes without requests since the server's start
    /// are omitted.
    Latencies(Vec<(VolumeId, Box<Latencies>)>),
    /// Answer to [`Command::Stored`], by id.
    Stored(Vec<StoredVolume>),
    /// Answer to [`Command::Space`]; `None` if the space is unknown.
    Space(Option<Space>),
    /// Answer to [`Command::Capacity`].
    Capacity(Capacity),
    /// Answer to [`Command::Snapshots`] and [`Command::SnapshotsOf`], by id.
    Snapshots(Vec<StoredSnapshot>),
    /// Answer to [`Command::SnapshotUnits`].
    Units(Units),
    /// Answer to [`Command::ReadSnapshot`]: [`UNIT_BYTES`], with zeroes behind the snapshot's end;
    /// `None` if the unit has no data.
    Unit(Option<Bytes>),
    /// Answer to [`Command::Background`].
    Background(BackgroundReport),
    /// Answer to [`Command::Verify`], [`Command::VerifySnapshot`] and [`Command::VerifyStore`].
    Verified(Verified),
    /// Answer to [`Command::Filled`], without volumes of which it is not known.
    Filled(Vec<(VolumeId, ByteCount)>),
    /// Answer to [`Command::Divide`].
    Use(NodeUse),
    /// Answer to [`Command::StoreHealth`].
    StoreHealth(StoreHealth),
    /// The command had no effect.
    Failed(Failed),
}

/// Why a command had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The kind of failure.
    pub kind: FailedKind,
    /// Names the object, the value, the limit and the next step.
    pub message: String,
}

/// The kinds of failure that the control plane treats differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailedKind {
    /// No space for the bytes.
    NoSpace,
    /// The data plane does not hold this volume.
    NotFound,
    /// The stored bytes are missing, or not those of the volume; it is not served. Nothing was
    /// changed, and the command can be repeated once the cause is gone.
    Damaged,
    /// The volume cannot be changed this way (for example made smaller), or not in its present
    /// state. It is unchanged, and a repeated command fails until something else has changed.
    Refused,
    /// The store or the data plane failed.
    Internal,
    /// The command is not completed yet, and may be at any time. Repeat it to get the outcome.
    Unanswered,
    /// The data plane is not running.
    Down,
    /// The store cannot do this, whatever else changes.
    Unsupported,
}

/// The interface of the data plane for the control plane.
pub trait Agent: Send + Sync {
    /// Executes one command and returns when it is in force. May block for as long as the store
    /// takes.
    fn call(&self, command: Command) -> Reply;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_address_is_local_only_for_the_standard_loopback_addresses() {
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
