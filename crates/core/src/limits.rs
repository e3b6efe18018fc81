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

/// Volumes one scheduler (one core) carries at most. 10,000 idle volumes are promised; this leaves
/// room.
pub const VOLUMES_PER_CORE_MAX: usize = 65_536;

/// Instances one core knows at most: one for every sixteenth volume.
pub const INSTANCES_PER_CORE_MAX: usize = 4_096;

/// Devices one core shares out at most.
pub const DEVICES_PER_CORE_MAX: usize = 64;

/// Connections one core serves at most, over all its volumes.
pub const CONNECTIONS_PER_CORE_MAX: usize = 4_096;

/// Requests of one connection that are parsed and not yet fully replied to.
pub const CONNECTION_REQUESTS_MAX: usize = 1_024;

/// Payload bytes of one connection in the server: arriving, waiting, at the store, or on their way
/// back. A client that does not read its replies cannot hold more.
pub const CONNECTION_BYTES_MAX: u32 = 32 << 20;

/// Payload memory of one core. A volume may hold no more of it than it leaves free: seven of its
/// connections may each hold all they may before one waits.
pub const CORE_PAYLOAD_BYTES_MAX: u32 = 512 << 20;

/// The smallest block a client may address: what EBS shows to its guests.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// The block size that clients are told to prefer: one page, the unit of the local store.
pub const BLOCK_BYTES_PREFERRED: u32 = 4_096;

const _: () = assert!(REQUEST_BYTES_MAX.is_multiple_of(QUANTUM_BYTES_MAX));
const _: () = assert!(CONNECTION_BYTES_MAX >= REQUEST_BYTES_MAX);
const _: () = assert!(CORE_PAYLOAD_BYTES_MAX >= 2 * CONNECTION_BYTES_MAX);
const _: () = assert!(VOLUME_QUEUED_BYTES_MAX == 32 * 1024 * KIB);
const _: () = assert!(BLOCK_BYTES_PREFERRED.is_multiple_of(BLOCK_BYTES_MIN));
