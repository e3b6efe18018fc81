//! When a blocklist entry may be removed before it expires.

use super::Instance;
use crate::time::Duration;

/// The kernel's name for one boot of a machine (`/proc/sys/kernel/random/boot_id`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

/// Entries of one node up to which none is removed: 43 bytes each in every OSD map.
pub const ENTRIES_KEPT_MAX: usize = 1_000;

/// How old an entry must be. What a dead process has left in the kernel's sockets is sent on by the
/// kernel; TCP gives up within twenty minutes.
pub const SETTLED_AFTER: Duration = Duration::from_secs(3_600);

/// An entry of one of a node's instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whom it fences.
    pub instance: Instance,
    /// Under which boot that instance was registered.
    pub boot: BootId,
    /// For how long it has been there.
    pub age: Duration,
}

/// Whether a process may remove an entry of its own node. `first` is the first instance of this
/// process; it holds the lock of the data folder, so that under the same boot all earlier processes
/// of the node are dead. Under another boot they may not be: a machine restored from a snapshot
/// brings them back. Nor may a process remove an entry of an instance of its own, ever.
#[must_use]
pub fn may_remove(entry: &Entry, first: Instance, boot: BootId, entries: usize) -> bool {
    let is_earlier_process =
        entry.instance.node == first.node && entry.instance.incarnation < first.incarnation;
    entries > ENTRIES_KEPT_MAX
        && is_earlier_process
        && entry.boot == boot
        && entry.age >= SETTLED_AFTER
}
