//! All limits of the system, with the reason for their size, checked against each other at compile
//! time.

use crate::units::{KIB, MIB};

/// Requests of a volume that may wait for its tokens. Beyond it the sockets are not read, which
/// pushes back on the clients. 1,024 is the queue depth of an NVMe queue pair as Linux opens it.
pub const VOLUME_QUEUED_REQUESTS_MAX: usize = 1_024;

/// Payload bytes of a volume that may wait for its tokens.
pub const VOLUME_QUEUED_BYTES_MAX: u64 = 32 * MIB;

/// The largest request a client may send: NBD's own default limit for clients that negotiate no
/// block size.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// The largest piece that is scheduled and charged on its own, so that one 32 MiB request does not
/// delay a neighbour: the unit in which EBS counts I/O on SSD types.
pub const QUANTUM_BYTES_MAX: u32 = 256 << 10;

/// The largest piece of a discard or a write of zeroes that is scheduled and charged on its own. It
/// moves no bytes, so it may be much longer than a quantum; a store in memory drops this length in
/// less than half a millisecond.
pub const CLEARED_BYTES_MAX: u32 = 64 << 20;

/// Maximum number of pieces of discards and writes of zeroes in the stores of one core. A file
/// system carries them out in a worker of the kernel, and they must leave workers for other
/// requests: a quarter of [`DISK_WORKERS_MAX`].
pub const CLEARS_IN_FLIGHT_MAX: u32 = 4;

/// Maximum number of pieces of long discards and writes of zeroes of one volume in its queue or its
/// store.
pub const VOLUME_CLEARS_MAX: u32 = 16;

/// Threads of a core that wait for the disk in system calls that block, including the kernel's.
pub const DISK_WORKERS_MAX: u32 = 16;

/// Maximum number of volumes of one scheduler (one core). 10,000 idle volumes are promised; this
/// leaves room.
pub const VOLUMES_PER_CORE_MAX: usize = 65_536;

/// Maximum number of instances of one core: one for each sixteenth volume.
pub const INSTANCES_PER_CORE_MAX: usize = 4_096;

/// Maximum number of devices that one core shares among volumes.
pub const DEVICES_PER_CORE_MAX: usize = 64;

/// Maximum number of the server's connections, for each of its cores; their distribution among
/// cores does not matter. A host may hold no more of them than it leaves free, without those
/// reserved for handshakes: alone it may hold some 3,500 of one core, and beside others there is
/// always room.
pub const CONNECTIONS_PER_CORE_MAX: usize = 8_192;

/// Connections of one host to one volume. In addition, a volume may hold no more of its host's
/// connections than it leaves free. A client opens about as many as it has cores.
pub const CONNECTIONS_PER_VOLUME_MAX: usize = 1_024;

/// Clients in a handshake. Beyond it, the oldest one of the host with most of them makes room: a
/// normal handshake takes milliseconds.
pub const HANDSHAKES_MAX: usize = 1_024;

/// Clients of one host in a handshake. Beyond it, the host's oldest one makes room.
pub const HANDSHAKES_PER_PEER_MAX: usize = 256;

/// Log lines of one kind that clients can cause on one core in [`LOG_WINDOW_SECONDS`]. Further ones
/// are counted, and the count is logged.
pub const LOG_LINES_MAX: u32 = 5;

/// The time to which [`LOG_LINES_MAX`] applies.
pub const LOG_WINDOW_SECONDS: u64 = 10;

/// Requests of one connection that are parsed and not yet fully replied to.
pub const CONNECTION_REQUESTS_MAX: usize = 1_024;

/// Payload bytes of one connection in the server: arriving, waiting, at the store, or on their way
/// back. A client that does not read its replies cannot hold more.
pub const CONNECTION_BYTES_MAX: u32 = 32 << 20;

/// Maximum length of a lent client's input that is not served yet, in bytes.
pub const LENT_UNREAD_BYTES_MAX: usize = 32 << 10;

/// Payload memory of one core. A volume may hold no more of it than it leaves free: seven of its
/// connections may each hold their maximum before one waits.
pub const CORE_PAYLOAD_BYTES_MAX: u32 = 512 << 20;

/// Maximum number of permits for background work that are granted or wait, and of its reads of
/// volumes.
pub const BACKGROUND_PERMITS_MAX: u32 = 64;

/// Default rate of background work, in bytes per second: 256 MiB.
pub const BACKGROUND_BYTES_PER_SECOND: u64 = 256 << 20;

/// The longest message between control plane and data plane, in bytes of its byte form: a report of
/// 131,072 volumes has 20 MiB.
pub const AGENT_FRAME_BYTES_MAX: u32 = 64 << 20;

/// Commands of one control plane that a node may have in progress at once, over TCP.
pub const AGENT_COMMANDS_MAX: u32 = 64;

/// Commands that a node executes at once for all control planes: those of the present one, and
/// those of former ones that hang.
pub const AGENT_RUNNING_MAX: usize = 128;

/// Bytes of commands that a node has read from the control plane and not executed: further ones are
/// not read until some are.
pub const AGENT_BUFFERED_BYTES_MAX: usize = 128 << 20;

/// Connections to a node's agent port that have not yet proved to be the control plane's.
pub const AGENT_HANDSHAKES_MAX: usize = 8;

/// Entries of which the control plane remembers that a command about them may or may not have had
/// an effect. Beyond it, it assumes so for all entries.
pub const AGENT_UNKNOWN_MAX: usize = 65_536;

/// The smallest block that a client may address: as EBS volumes have.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// The block size that the server asks clients to prefer: one page, the unit of the local store.
pub const BLOCK_BYTES_PREFERRED: u32 = 4_096;

const _: () = assert!(REQUEST_BYTES_MAX.is_multiple_of(QUANTUM_BYTES_MAX));
const _: () = assert!(CLEARED_BYTES_MAX.is_multiple_of(QUANTUM_BYTES_MAX));
const _: () = assert!(4 * CLEARS_IN_FLIGHT_MAX <= DISK_WORKERS_MAX);
const _: () = assert!(CONNECTION_BYTES_MAX >= REQUEST_BYTES_MAX);
const _: () = assert!(CORE_PAYLOAD_BYTES_MAX >= 2 * CONNECTION_BYTES_MAX);
const _: () = assert!(HANDSHAKES_PER_PEER_MAX < HANDSHAKES_MAX);
const _: () = assert!(4 * HANDSHAKES_MAX < CONNECTIONS_PER_CORE_MAX);
const _: () = assert!(CONNECTIONS_PER_VOLUME_MAX < CONNECTIONS_PER_CORE_MAX / 4);
const _: () = assert!(VOLUME_QUEUED_BYTES_MAX == 32 * 1024 * KIB);
const _: () = assert!(BLOCK_BYTES_PREFERRED.is_multiple_of(BLOCK_BYTES_MIN));
