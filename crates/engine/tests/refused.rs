//! A volume that is refused leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::Pool;
use evenkeel_store::local::device::FileDevice;
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::volume::Bounds;
use evenkeel_wire::agent::{Command, Reply};
use std::sync::Arc;
use support::{Served, unlimited};

const SIZE: u64 = 1 << 20;

/// Each volume has a chunk of its own once it is opened: the pool is full when all chunks are
/// taken.
#[test]
fn volume_refused_by_a_full_pool_leaves_no_unowned_bytes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = FileDevice::open(file.path(), false).unwrap();
    // The number of chunks that one sector of owners describes.
    LocalPool::init(&device, &Layout { identity: 7, chunks_max: 62, nodes: 90 }).unwrap();
    let pool = LocalPool::open(Arc::new(device), Bounds::default()).unwrap();
    let kept = VolumeId::from_bits(1_000);
    pool.create(kept, ByteCount(SIZE)).unwrap();
    let served = Served::new(IoMode::Auto, Arc::new(pool));
    let create = |id| served.call(Command::Create(unlimited(id, SIZE)));
    let ids: Vec<VolumeId> = (1..).map(VolumeId::from_bits).take(62).collect();
    let made: Vec<VolumeId> =
        ids.iter().copied().take_while(|id| create(*id) == Reply::Done).collect();
    let refused = ids[made.len()];
    for id in [refused, kept] {
        for _ in 0..2 {
            let reply = create(id);
            assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
        }
    }
    let Reply::Stored(stored) = served.call(Command::Stored) else { panic!("it lists them") };
    let found: Vec<VolumeId> = stored.iter().map(|volume| volume.id).collect();
    assert_eq!(found, [made, vec![kept]].concat(), "what was there before stays");
}
