//! A disk's head: a request near its position takes less time, because the head need not move far.
//!
//! Each volume has a head of its own. On real disks that many volumes share one head serves all of
//! them, and each request moves it; a sequence there is sequential only without other requests in
//! between. This model does not include that: other volumes only occupy channels.

use super::ServiceTime;

/// A request that begins within this distance of the end of the volume's last request is near: it
/// is on the same or the next track, or in the disk's read-ahead. In bytes.
pub const NEAR_BYTES: u64 = 1 << 20;

/// Position of a volume's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    at: u64,
}

impl Head {
    /// Moves the head behind a range. Returns the service time of the request: `time`, with
    /// `near_ns` as its base if the range is near and that is less. Without `near_ns` the head has
    /// no effect.
    #[inline]
    pub fn time(
        &mut self,
        near_ns: Option<u64>,
        time: ServiceTime,
        (offset, length): (u64, u32),
    ) -> ServiceTime {
        let Some(near_ns) = near_ns else { return time };
        let is_near = offset.abs_diff(self.at) <= NEAR_BYTES;
        self.at = offset.saturating_add(length.into());
        let base_ns = if is_near { time.base_ns.min(near_ns) } else { time.base_ns };
        ServiceTime { base_ns, ..time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: ServiceTime = ServiceTime { base_ns: 8_000, ns_per_kib: 3 };

    #[test]
    fn sequential_offset_is_near_and_a_jump_is_not() {
        let mut head = Head::default();
        let mut base = |offset| head.time(Some(100), FAR, (offset, 4_096)).base_ns;
        assert_eq!(base(0), 100);
        assert_eq!(base(8_192), 100, "a little ahead: another thread of the same sequence");
        assert_eq!(base(4_096), 100, "and a little behind");
        assert_eq!(base(8_193 + NEAR_BYTES), 8_000);
        assert_eq!(base(8_193 + NEAR_BYTES + 4_096), 100);
        assert_eq!(base(0), 8_000);
        assert_eq!(base(u64::MAX), 8_000, "the end of the range does not overflow");
    }

    #[test]
    fn request_takes_the_same_anywhere_without_a_head_and_near_is_no_slower() {
        let mut head = Head::default();
        assert_eq!(head.time(None, FAR, (0, 4_096)), FAR);
        assert_eq!(head.time(Some(9_000), FAR, (0, 4_096)), FAR);
    }
}
