//! What the models of schedulers share: a queue a volume, and so many requests in the device.
//!
//! An [`Order`] says whose request is next; [`Windowed`] makes a [`Policy`] of it that gives the
//! device at most a number of requests at a time. Requests of a volume leave in the order they
//! came.

use std::collections::VecDeque;

use evenkeel_core::time::{Duration, Instant};

use super::limited::{QUEUE_REQUESTS_MAX, whole};
use crate::world::policy::{Dispatch, Policy, Request};

/// What a request costs the device, in nanoseconds of one of its channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCost {
    /// Of any request.
    pub request_ns: u64,
    /// Of each byte.
    pub byte_ns: u64,
}

impl DeviceCost {
    /// The cost of a request of this length.
    #[must_use]
    pub const fn of(&self, length: u32) -> u64 {
        self.request_ns + self.byte_ns * length as u64
    }
}

/// What a volume is entitled to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Share of what is left beside the reservations, in proportion to the others'. At least 1.
    pub weight: u32,
    /// Requests per second at the reference cost that are served first; 0 for none.
    pub reservation: u64,
    /// Requests per second at the reference cost at most; 0 for no limit.
    pub limit: u64,
}

impl Share {
    /// No reservation and no limit.
    #[must_use]
    pub const fn weight(weight: u32) -> Self {
        Self { weight, reservation: 0, limit: 0 }
    }
}

/// The request, or piece of one, at the head of a volume's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// When the request arrived.
    pub arrived: Instant,
    /// Bytes that would go to the device.
    pub length: u32,
}

/// In which order volumes are served.
pub trait Order {
    /// A request of this volume arrived; `head` is it if the volume had none waiting.
    fn arrive(&mut self, volume: u32, head: Option<Head>);

    /// The volume whose first request goes now. `None` if none may.
    fn next(&mut self, now: Instant) -> Option<u32>;

    /// So many bytes of the volume that [`Order::next`] named have left; `following` is its queue's
    /// head now.
    fn served(&mut self, volume: u32, length: u32, following: Option<Head>);

    /// When a volume may go that may not yet.
    fn timer(&self) -> Option<Instant> {
        None
    }
}

/// Volumes on one device. Volumes are numbered from 0.
#[derive(Debug)]
pub struct Windowed<O> {
    order: O,
    queues: Vec<VecDeque<(Instant, Request)>>,
    in_flight: u32,
    in_flight_max: u32,
    /// Requests are given to the device in pieces of at most this many bytes.
    piece_bytes: u32,
    output: VecDeque<Dispatch>,
    timer: Option<Instant>,
}

impl<O: Order> Windowed<O> {
    /// So many volumes, with at most `in_flight_max` requests in the device at a time.
    #[must_use]
    pub fn new(order: O, volumes: u32, in_flight_max: u32) -> Self {
        Self {
            order,
            queues: (0..volumes).map(|_| VecDeque::new()).collect(),
            in_flight: 0,
            in_flight_max: in_flight_max.max(1),
            piece_bytes: u32::MAX,
            output: VecDeque::new(),
            timer: None,
        }
    }

    /// Cuts requests into pieces, each of which counts as a request of its own.
    #[must_use]
    pub fn cut(mut self, piece_bytes: u32) -> Self {
        self.piece_bytes = piece_bytes.max(1);
        self
    }

    fn fill(&mut self, now: Instant) {
        self.timer = None;
        while self.in_flight < self.in_flight_max {
            let Some(volume) = self.order.next(now) else {
                self.timer = self.order.timer();
                return;
            };
            let queue = &mut self.queues[volume as usize];
            let Some((_, head)) = queue.front_mut() else { return };
            let mut piece = whole(head);
            piece.length = head.length.min(self.piece_bytes);
            piece.last = piece.length == head.length;
            head.length -= piece.length;
            head.offset += u64::from(piece.length);
            if piece.last {
                queue.pop_front();
            }
            let following = head_of(queue, self.piece_bytes);
            self.order.served(volume, piece.length, following);
            self.in_flight += 1;
            self.output.push_back(piece);
        }
    }
}

fn head_of(queue: &VecDeque<(Instant, Request)>, piece_bytes: u32) -> Option<Head> {
    let (arrived, request) = queue.front()?;
    Some(Head { arrived: *arrived, length: request.length.min(piece_bytes) })
}

impl<O: Order> Policy for Windowed<O> {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let Some(queue) = self.queues.get_mut(request.volume as usize) else { return false };
        if queue.len() >= QUEUE_REQUESTS_MAX {
            return false;
        }
        let first = queue.is_empty();
        queue.push_back((now, *request));
        let head = head_of(queue, self.piece_bytes).filter(|_| first);
        self.order.arrive(request.volume, head);
        self.fill(now);
        true
    }

    fn poll(&mut self, now: Instant) {
        self.fill(now);
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        self.output.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timer
    }

    fn complete(&mut self, now: Instant, _: &Dispatch, _: Duration) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.fill(now);
    }
}
