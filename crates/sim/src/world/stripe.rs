//! Splits a request to a RAID 0 set into parts: one for each chunk that it touches.

use crate::scenario::setup::StripeSetup;
use crate::world::client::Wanted;
use evenkeel_core::convert::exact;

impl StripeSetup {
    /// Returns the first part of a request and its volume, and removes the part from `rest`.
    pub fn first_part(&self, rest: &mut Wanted) -> Option<(u32, Wanted)> {
        if rest.length == 0 {
            return None;
        }
        let chunk = u64::from(self.chunk_bytes);
        let volumes = self.volumes.len() as u64;
        let chunk_number = rest.offset / chunk;
        let within = rest.offset % chunk;
        let length = rest.length.min(exact(chunk - within, "at most a chunk"));
        let offset = chunk_number / volumes * chunk + within;
        let part = Wanted { operation: rest.operation, offset, length };
        rest.offset += u64::from(length);
        rest.length -= length;
        Some((self.volumes[(chunk_number % volumes) as usize], part))
    }

    /// Returns all parts of a request.
    pub fn parts(&self, wanted: &Wanted) -> impl Iterator<Item = (u32, Wanted)> {
        let mut rest = *wanted;
        std::iter::from_fn(move || self.first_part(&mut rest))
    }
}
