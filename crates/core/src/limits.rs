//! Every bound of the system, with the reason for its size, checked against its neighbours at
//! compile time.

use crate::units::{KIB, MIB};

/// Requests a volume may have waiting for its tokens. Beyond it the sockets are not read:
/// back-pressure, never growth. 1,024 is the queue depth of an NVMe queue pair as Linux opens it.
pub const VOLUME_QUEUED_REQUESTS_MAX: usize = 1_024;

/// Payload bytes a volume may have waiting for its tokens.
pub const VOLUME_QUEUED_BYTES_MAX: u64 = 32 * MIB;

/// The largest request a client may send: NBD's own default limit for clients that negotiate no
/// block size.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// The largest piece that is scheduled and charged on its own, so that one 32 MiB request does not
/// hold up a neighbour: the unit in which EBS counts I/O on SSD types.
pub const QUANTUM_BYTES_MAX: u32 = 256 << 10;

/// The largest piece of a discard or a write of zeroes that is scheduled and charged on its own. It
/// moves no bytes, so it may be much longer than a quantum; it is what a store in memory drops in
/// less than half a millisecond.
pub const CLEARED_BYTES_MAX: u32 = 64 << 20;

/// Pieces of discards and writes of zeroes that the stores of one core work on at a time. A file
/// system carries them out in a worker of the kernel, and none may be left for anybody else: a
/// quarter of [`DISK_WORKERS_MAX`].
pub const CLEARS_IN_FLIGHT_MAX: u32 = 4;

/// Pieces of long discards and writes of zeroes that one volume has in its queue or at its store.
pub const VOLUME_CLEARS_MAX: u32 = 16;

/// Threads of a core that wait for the disk behind system calls that block, the kernel's included.
pub const DISK_WORKERS_MAX: u32 = 16;

/// Volumes one scheduler (one core) carries at most. 10,000 idle volumes are promised; this leaves
/// room.
pub const VOLUMES_PER_CORE_MAX: usize = 65_536;

/// Instances one core knows at most: one for every sixteenth volume.
pub const INSTANCES_PER_CORE_MAX: usize = 4_096;

/// Devices one core shares out at most.
pub const DEVICES_PER_CORE_MAX: usize = 64;

/// Connections the server serves at most, for each of its cores; how they are dealt out to cores
/// does not matter. A host may hold no more of them than it leaves free, less what is set aside for
/// handshakes: alone it may hold some 3,500 of one core, and beside others there is always room.
pub const CONNECTIONS_PER_CORE_MAX: usize = 8_192;

/// Connections of one host to one volume. Beside it a volume may hold no more of what its host may
/// have than it leaves free. A client opens about as many as it has cores.
pub const CONNECTIONS_PER_VOLUME_MAX: usize = 1_024;

/// Clients that have not agreed on an export yet. Beyond it the oldest of the host with the most of
/// them makes room: an honest handshake takes milliseconds.
pub const HANDSHAKES_MAX: usize = 1_024;

/// The same of one host: beyond it, its own oldest makes room.
pub const HANDSHAKES_PER_PEER_MAX: usize = 256;

/// Lines of one kind that clients can make one core write to the log in
/// [`LOG_WINDOW_SECONDS`]. What is beyond is counted, and the count is logged.
pub const LOG_LINES_MAX: u32 = 5;

/// The time that [`LOG_LINES_MAX`] counts for.
pub const LOG_WINDOW_SECONDS: u64 = 10;

/// Requests of one connection that are parsed and not yet fully replied to.
pub const CONNECTION_REQUESTS_MAX: usize = 1_024;

/// Payload bytes of one connection in the server: arriving, waiting, at the store, or on their way
/// back. A client that does not read its replies cannot hold more.
pub const CONNECTION_BYTES_MAX: u32 = 32 << 20;

/// What a client may have sent that nobody has served when it is lent to the data plane.
pub const LENT_UNREAD_BYTES_MAX: usize = 32 << 10;

/// Payload memory of one core. A volume may hold no more of it than it leaves free: seven of its
/// connections may each hold all they may before one waits.
pub const CORE_PAYLOAD_BYTES_MAX: u32 = 512 << 20;

/// Permits for work that no client asked for that are granted or waited for at once, and its reads
/// of volumes.
pub const BACKGROUND_PERMITS_MAX: u32 = 64;

/// What such work may move in a second unless it is told otherwise: 256 MiB.
pub const BACKGROUND_BYTES_PER_SECOND: u64 = 256 << 20;

/// The longest message between control plane and data plane, in bytes of its byte form: a report of
/// 131,072 volumes has 20 MiB.
pub const AGENT_FRAME_BYTES_MAX: u32 = 64 << 20;

/// Commands of one control plane that a node may have under way at once, over TCP.
pub const AGENT_COMMANDS_MAX: u32 = 64;

/// Commands that a node executes at once for all control planes that it has heard: those of the
/// present one, and what hangs of former ones.
pub const AGENT_RUNNING_MAX: usize = 128;

/// Bytes of commands that a node has read from control and not executed: further ones are not read
/// until some are.
pub const AGENT_BUFFERED_BYTES_MAX: usize = 128 << 20;

/// Connections to a node's agent port that have not proved yet to be control's.
pub const AGENT_HANDSHAKES_MAX: usize = 8;

/// Things of which control remembers that a command about them may or may not have had an effect.
/// Beyond, it takes that to be so of everything.
pub const AGENT_UNKNOWN_MAX: usize = 65_536;

/// The smallest block a client may address: what EBS shows to its guests.
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
