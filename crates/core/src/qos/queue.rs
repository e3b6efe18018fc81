//! Bounded first-in, first-out queues of requests, one per volume, over one shared slab of nodes.
//!
//! An empty queue is 16 bytes. The slab grows to the largest number of requests that ever waited at
//! once and is then reused: the steady state allocates nothing.

use super::cost::Portion;
use super::phase::Phase;
use super::scheduler::Io;
use super::slots::{NodeSlot, Slot, Table};
use crate::convert::index;
use crate::limits::{VOLUME_QUEUED_BYTES_MAX, VOLUME_QUEUED_REQUESTS_MAX, VOLUMES_PER_CORE_MAX};
use crate::request::Operation;

/// Maximum number of nodes: the queues of all volumes and of all attachments are full. So a node's
/// number always fits in a `u32`, and is never that of none.
const NODES_MAX: usize = 2 * VOLUMES_PER_CORE_MAX * VOLUME_QUEUED_REQUESTS_MAX;

const _: () = assert!(NODES_MAX < 1 << 31);

/// One waiting request: half a cache line, never in two lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Node {
    io: Io,
    /// Bytes of it that have been dispatched.
    done_bytes: u32,
    next: NodeSlot,
}

const _: () = assert!(size_of::<Node>() == 32);

/// The nodes of all queues of a scheduler.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Table<NodeSlot, Node>,
    /// First of the unused nodes, the most recently used one, which is in the cache.
    free: NodeSlot,
}

impl Nodes {
    pub const fn new() -> Self {
        Self { nodes: Table::new(), free: NodeSlot::NONE }
    }

    /// Returns the largest number of nodes that were ever in use at once.
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Counts the nodes that are not in use, by following their list.
    ///
    /// # Panics
    /// If the list is circular.
    pub fn count_free(&self) -> usize {
        self.follow(self.free).count()
    }

    /// Returns the nodes of a list, from one of them on.
    ///
    /// # Panics
    /// If the list is circular: it has more entries than there are nodes.
    fn follow(&self, first: NodeSlot) -> impl Iterator<Item = (NodeSlot, &Node)> {
        let mut slot = first;
        let mut passed = 0;
        core::iter::from_fn(move || {
            let node = self.nodes.get(slot)?;
            passed += 1;
            assert!(passed <= self.nodes.len(), "a list of requests comes back to itself");
            Some((core::mem::replace(&mut slot, node.next), node))
        })
    }

    fn take(&mut self, io: Io) -> NodeSlot {
        let node = Node { io, done_bytes: 0, next: NodeSlot::NONE };
        if self.free.is_none() {
            debug_assert!(self.nodes.len() < NODES_MAX, "{} nodes", self.nodes.len());
            return self.nodes.push(node);
        }
        let slot = self.free;
        self.free = self.at(slot).next;
        *self.at(slot) = node;
        slot
    }

    fn give_back(&mut self, at: NodeSlot) {
        self.at(at).next = self.free;
        self.free = at;
    }

    fn at(&mut self, at: NodeSlot) -> &mut Node {
        &mut self.nodes[at]
    }
}

/// Requests in order of arrival, without their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    head: NodeSlot,
    tail: NodeSlot,
}

/// The first request of a queue: the part that is left, and its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub portion: Portion,
    pub handle: u32,
}

impl Fifo {
    pub const EMPTY: Self = Self { head: NodeSlot::NONE, tail: NodeSlot::NONE };

    pub const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    #[inline]
    pub fn append(&mut self, nodes: &mut Nodes, io: Io) {
        let slot = nodes.take(io);
        self.append_nodes(nodes, Self { head: slot, tail: slot });
    }

    /// Counts the waiting requests, one by one.
    ///
    /// # Panics
    /// If the tail is not the last of them, or one was dispatched to its end.
    pub fn count(&self, nodes: &Nodes) -> Waiting {
        let mut waiting = Waiting::NOTHING;
        let mut last = NodeSlot::NONE;
        for (at, Node { io, done_bytes, .. }) in nodes.follow(self.head) {
            assert!(*done_bytes < io.length || *done_bytes == 0, "{io:?}: {done_bytes} are done");
            waiting.requests += 1;
            waiting.bytes += io.payload_bytes().saturating_sub(*done_bytes);
            last = at;
        }
        assert_eq!(last, self.tail, "the last of a queue");
        waiting
    }

    /// Asserts in debug builds that both ends exist, or neither, and that no request is behind the
    /// tail.
    #[inline]
    fn check(&self, nodes: &Nodes) {
        if cfg!(debug_assertions) {
            assert_eq!(self.head.is_none(), self.tail.is_none(), "a queue with one end: {self:?}");
            let tail = nodes.nodes.get(self.tail);
            assert!(
                tail.is_none_or(|tail| tail.next.is_none()),
                "more behind the tail of {self:?}"
            );
        }
    }

    /// Appends all requests of another queue, which must not be empty.
    fn append_nodes(&mut self, nodes: &mut Nodes, other: Self) {
        debug_assert!(!other.is_empty(), "nothing to append");
        if self.tail.is_none() {
            self.head = other.head;
        } else {
            nodes.at(self.tail).next = other.head;
        }
        self.tail = other.tail;
        self.check(nodes);
    }

    #[inline]
    pub fn head(&self, nodes: &Nodes) -> Option<Head> {
        let node = nodes.nodes.get(self.head)?;
        let portion = Portion {
            operation: node.io.operation,
            offset: node.io.offset.saturating_add(u64::from(node.done_bytes)),
            length: node.io.length - node.done_bytes,
            started: node.done_bytes > 0,
            whole_length: node.io.length,
        };
        Some(Head { portion, handle: node.io.handle })
    }

    /// Writes the lengths and handles of the waiting requests. Returns `None` if one of them is
    /// neither a read nor a write, whose cost depends on the length only.
    pub fn tell(&self, nodes: &Nodes, phase: &mut Phase) -> Option<()> {
        let node = |slot| nodes.nodes.get(slot);
        let mut slot = self.head;
        while let Some(Node { io, done_bytes, next }) = node(slot) {
            if !matches!(io.operation, Operation::Read | Operation::Write { .. }) {
                return None;
            }
            phase.words([io.length.into(), u64::from(*done_bytes)]);
            phase.handle(io.handle);
            slot = *next;
        }
        phase.words([u64::MAX]);
        Some(())
    }

    /// Reads the first two requests and the last without any effect, to load them into the cache: a
    /// turn examines the first two, and the reply to one is followed by a new request at the end.
    pub fn warm_up(&self, nodes: &Nodes) -> u32 {
        let node = |slot| nodes.nodes.get(slot);
        let next = |node: &Node| node.next.number();
        let second = node(self.head).and_then(|first| node(first.next));
        second.map_or(0, next) ^ node(self.tail).map_or(0, next)
    }

    /// Counts `bytes` of the first request as dispatched. Removes it once nothing is left.
    #[inline]
    pub fn consume(&mut self, nodes: &mut Nodes, bytes: u32, waiting: &mut Waiting) {
        if self.head.is_none() {
            return;
        }
        let slot = self.head;
        let node = nodes.at(slot);
        debug_assert!(bytes <= node.io.length - node.done_bytes, "{bytes} of {node:?}");
        node.done_bytes += bytes;
        if node.io.payload_bytes() > 0 {
            waiting.bytes -= bytes;
        }
        if node.done_bytes == node.io.length {
            self.head = node.next;
            if self.head.is_none() {
                self.tail = NodeSlot::NONE;
            }
            waiting.requests -= 1;
            nodes.give_back(slot);
            self.check(nodes);
        }
    }

    /// Moves the requests whose handle matches to a queue of their own, in their order.
    pub fn extract(
        &mut self,
        nodes: &mut Nodes,
        waiting: &mut Waiting,
        mut matches: impl FnMut(u32) -> bool,
    ) -> Queue {
        let mut kept = Self::EMPTY;
        let mut taken = Queue::new();
        let mut slot = self.head;
        while !slot.is_none() {
            let node = nodes.at(slot);
            let handle = node.io.handle;
            let next = node.next;
            let bytes = node.io.payload_bytes().saturating_sub(node.done_bytes);
            node.next = NodeSlot::NONE;
            let single = Self { head: slot, tail: slot };
            if matches(handle) {
                taken.append_all(
                    nodes,
                    &Queue { class: single, waiting: Waiting { requests: 1, bytes } },
                );
                waiting.requests -= 1;
                waiting.bytes -= bytes;
            } else {
                kept.append_nodes(nodes, single);
            }
            slot = next;
        }
        *self = kept;
        self.check(nodes);
        taken
    }
}

/// The amount of waiting requests: in one queue, or in several with a common limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waiting {
    pub requests: u32,
    /// Payload bytes: of reads and writes only, the others have none.
    pub bytes: u32,
}

impl Waiting {
    pub const NOTHING: Self = Self { requests: 0, bytes: 0 };

    /// Returns whether one more request fits. If none waits, any request does: otherwise one larger
    /// than the limit could never be served.
    #[inline]
    pub fn has_room_for(&self, io: &Io) -> bool {
        let bytes = u64::from(self.bytes) + u64::from(io.payload_bytes());
        let fits = usize::try_from(self.requests).is_ok_and(|n| n < VOLUME_QUEUED_REQUESTS_MAX)
            && bytes <= VOLUME_QUEUED_BYTES_MAX;
        fits || self.requests == 0
    }

    #[inline]
    pub fn add(&mut self, io: &Io) {
        self.requests += 1;
        self.bytes += io.payload_bytes();
    }
}

/// The waiting requests of one volume.
#[derive(Debug)]
pub(crate) struct Queue {
    pub class: Fifo,
    pub waiting: Waiting,
}

impl Queue {
    pub const fn new() -> Self {
        Self { class: Fifo::EMPTY, waiting: Waiting::NOTHING }
    }

    pub const fn is_empty(&self) -> bool {
        self.class.is_empty()
    }

    pub const fn requests(&self) -> u32 {
        self.waiting.requests
    }

    pub const fn bytes(&self) -> u32 {
        self.waiting.bytes
    }

    /// Appends a request. Returns `false` if it does not fit.
    #[must_use]
    pub fn push(&mut self, nodes: &mut Nodes, io: Io) -> bool {
        let fits = self.waiting.has_room_for(&io);
        if fits {
            self.waiting.add(&io);
            self.class.append(nodes, io);
        }
        fits
    }

    /// Returns the first request.
    #[inline]
    pub fn head(&self, nodes: &Nodes) -> Option<Head> {
        self.class.head(nodes)
    }

    /// Counts `bytes` of the first request as dispatched, and removes it once nothing is left.
    #[inline]
    pub fn consume(&mut self, nodes: &mut Nodes, bytes: u32) {
        self.class.consume(nodes, bytes, &mut self.waiting);
    }

    /// Appends all requests of another queue.
    pub fn append_all(&mut self, nodes: &mut Nodes, other: &Self) {
        if !other.is_empty() {
            self.class.append_nodes(nodes, other.class);
            self.waiting.requests += other.waiting.requests;
            self.waiting.bytes += other.waiting.bytes;
        }
    }

    /// Asserts that the sums are those of a count one by one.
    ///
    /// # Panics
    /// If they are not.
    pub fn invariants(&self, nodes: &Nodes) {
        assert_eq!(self.waiting, self.class.count(nodes), "kept, and counted");
    }

    /// Moves the requests whose handle matches to a queue of their own, in their order.
    pub fn extract(&mut self, nodes: &mut Nodes, matches: impl FnMut(u32) -> bool) -> Self {
        self.class.extract(nodes, &mut self.waiting, matches)
    }
}

/// The handles of requests that were removed from a volume's queue, each once, in their order.
///
/// No more quanta of such a request will be dispatched. One longer than a quantum may have been
/// dispatched in part: those quanta complete as usual (none of them has `last` set), and the
/// request fails once they have.
#[derive(Debug)]
#[must_use = "every handle stands for a client that waits for an answer"]
pub struct Cancelled<'a> {
    pub(crate) nodes: &'a mut Nodes,
    pub(crate) queue: Queue,
}

impl Iterator for Cancelled<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let slot = self.queue.class.head;
        if slot.is_none() {
            return None;
        }
        let node = self.nodes.at(slot);
        let handle = node.io.handle;
        let next = node.next;
        self.queue.class.head = next;
        self.queue.waiting.requests -= 1;
        self.nodes.give_back(slot);
        Some(handle)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = index(self.queue.requests());
        (left, Some(left))
    }
}

impl ExactSizeIterator for Cancelled<'_> {}

impl Drop for Cancelled<'_> {
    /// Frees the nodes, even if the caller does not read the handles.
    fn drop(&mut self) {
        self.by_ref().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REQUEST_BYTES_MAX;
    use std::vec::Vec;

    fn io(handle: u32, length: u32) -> Io {
        Io { operation: Operation::Read, offset: 0, length, handle }
    }

    fn drain(queue: &mut Queue, nodes: &mut Nodes) -> Vec<u32> {
        core::iter::from_fn(|| {
            let head = queue.head(nodes)?;
            queue.consume(nodes, head.portion.length);
            Some(head.handle)
        })
        .collect()
    }

    #[test]
    fn a_queue_is_bounded_in_requests_and_in_bytes() {
        let mut nodes = Nodes::new();
        let mut queue = Queue::new();
        for handle in 0..1_024 {
            assert!(queue.push(&mut nodes, io(handle, 512)));
        }
        assert!(!queue.push(&mut nodes, io(1_024, 512)));
        assert_eq!(drain(&mut queue, &mut nodes), (0..1_024).collect::<Vec<_>>());
        assert_eq!((queue.requests(), queue.bytes()), (0, 0));

        assert!(queue.push(&mut nodes, io(0, REQUEST_BYTES_MAX)));
        assert!(!queue.push(&mut nodes, io(1, 512)));
        let flush = Io { operation: Operation::Flush, offset: 0, length: 0, handle: 2 };
        assert!(queue.push(&mut nodes, flush));
        queue.consume(&mut nodes, 1_024);
        assert!(queue.push(&mut nodes, io(3, 1_024)));
        assert!(!queue.push(&mut nodes, io(4, 1)));
    }

    #[test]
    fn an_empty_queue_takes_a_request_of_any_length() {
        let mut nodes = Nodes::new();
        let mut queue = Queue::new();
        assert!(queue.push(&mut nodes, io(0, u32::MAX)));
        assert!(!queue.push(&mut nodes, io(1, 1)));
    }

    #[test]
    fn extracted_requests_keep_their_order_and_so_do_the_rest() {
        let mut nodes = Nodes::new();
        let mut queue = Queue::new();
        for handle in 0..6 {
            assert!(queue.push(&mut nodes, io(handle, 100)));
        }
        queue.consume(&mut nodes, 40);
        let taken = queue.extract(&mut nodes, |handle| handle % 2 == 0);
        assert_eq!((taken.requests(), taken.bytes()), (3, 260));
        assert_eq!((queue.requests(), queue.bytes()), (3, 300));
        let mut cancelled = Cancelled { nodes: &mut nodes, queue: taken };
        assert_eq!(cancelled.len(), 3);
        assert_eq!(cancelled.next(), Some(0));
        drop(cancelled);
        assert_eq!(drain(&mut queue, &mut nodes), [1, 3, 5]);
        for handle in 0..6 {
            assert!(queue.push(&mut nodes, io(handle, 100)));
        }
        assert_eq!(nodes.len(), 6, "dropped handles must give their nodes back");
    }

    #[test]
    fn all_requests_can_be_extracted() {
        let mut nodes = Nodes::new();
        let mut queue = Queue::new();
        assert!(queue.push(&mut nodes, io(7, 100)));
        let taken = queue.extract(&mut nodes, |_| true);
        assert!(queue.is_empty());
        assert_eq!(Cancelled { nodes: &mut nodes, queue: taken }.collect::<Vec<_>>(), [7]);
        assert!(queue.push(&mut nodes, io(8, 100)));
        assert_eq!(drain(&mut queue, &mut nodes), [8]);
    }
}
