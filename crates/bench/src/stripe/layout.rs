//! RAID 0: which bytes of a stripe lie where on its volumes.

use evenkeel_core::convert::saturating;

/// Chunk after chunk on volume after volume, round and round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    volumes: u64,
    chunk_bytes: u64,
}

/// Bytes of a request that lie in a row on one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Number of the volume.
    pub volume: usize,
    /// Position on the volume, in bytes.
    pub offset: u64,
    /// Position in the request, in bytes.
    pub at: usize,
    /// Length in bytes.
    pub bytes: u32,
}

impl Layout {
    /// Creates a layout over this number of volumes, at least one, with chunks of at least one
    /// byte.
    pub fn new(volumes: usize, chunk_bytes: u32) -> Self {
        Self { volumes: (volumes as u64).max(1), chunk_bytes: u64::from(chunk_bytes).max(1) }
    }

    /// Returns the size of a stripe over volumes of at least `volume_bytes` each: whole chunks of
    /// all of them.
    pub fn size_bytes(self, volume_bytes: u64) -> u64 {
        volume_bytes / self.chunk_bytes * self.chunk_bytes * self.volumes
    }

    /// Returns the pieces of a request in the order of its bytes.
    pub fn pieces(self, offset: u64, bytes: u32) -> impl Iterator<Item = Piece> {
        let mut at = 0_u32;
        std::iter::from_fn(move || {
            let left = bytes.checked_sub(at).filter(|left| *left > 0)?;
            let byte = offset + u64::from(at);
            let chunk = byte / self.chunk_bytes;
            let within = byte % self.chunk_bytes;
            let room = saturating::<_, u32>(self.chunk_bytes - within);
            let piece = Piece {
                volume: usize::try_from(chunk % self.volumes).unwrap_or_default(),
                offset: chunk / self.volumes * self.chunk_bytes + within,
                at: at as usize,
                bytes: left.min(room),
            };
            at += piece.bytes;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_go_round_the_volumes() {
        let layout = Layout::new(3, 64 << 10);
        let pieces: Vec<Piece> = layout.pieces((3 * 64 + 60) << 10, 72 << 10).collect();
        let piece = |volume, offset_kib: u64, at_kib: usize, kib: u32| Piece {
            volume,
            offset: offset_kib << 10,
            at: at_kib << 10,
            bytes: kib << 10,
        };
        assert_eq!(pieces, [piece(0, 124, 0, 4), piece(1, 64, 4, 64), piece(2, 64, 68, 4)]);
        assert_eq!(layout.size_bytes(200 << 10), (3 * 192) << 10);
        assert_eq!(layout.pieces(5, 0).count(), 0);
    }

    proptest! {
        /// Every byte of a request is in one piece, and no two bytes of a stripe lie in one place.
        #[test]
        fn pieces_are_the_request_and_never_overlap(
            volumes in 1_usize..12,
            chunk in 1_u32..9,
            offset in 0_u64..300,
            bytes in 0_u32..100,
        ) {
            let layout = Layout::new(volumes, chunk);
            let mut next = 0;
            for piece in layout.pieces(offset, bytes) {
                prop_assert_eq!(piece.at, next);
                prop_assert!(piece.bytes > 0 && piece.volume < volumes);
                next += piece.bytes as usize;
            }
            prop_assert_eq!(next, bytes as usize);
            let place = |byte: u64| {
                layout.pieces(byte, 1).next().map(|piece| (piece.volume, piece.offset))
            };
            let mut places: Vec<_> = (0..400).map(place).collect();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), 400);
        }
    }
}
