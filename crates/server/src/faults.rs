//! Faults of I/O and the feel of volumes: the control plane decides them, and the store in front of
//! the others executes them.

use evenkeel_control::TestIo;
use evenkeel_control::faults::IoFaults;
use evenkeel_control::feel::IoFeel;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::io_fault::IoFault;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeType;
use evenkeel_store::injected::{Feel, Injector};
use std::sync::Arc;

#[derive(Debug)]
struct Executed(Injector);

impl IoFaults for Executed {
    fn set(&self, faults: Vec<IoFault>) {
        self.0.set(faults);
    }

    fn hits(&self) -> Vec<(u64, u64)> {
        self.0.hits()
    }
}

#[derive(Debug)]
struct Felt(Feel);

impl IoFeel for Felt {
    fn set(&self, id: VolumeId, volume_type: VolumeType, cold: ByteCount) -> bool {
        self.0.set(id, volume_type, cold)
    }

    fn forget(&self, id: VolumeId) {
        self.0.forget(id);
    }

    fn fetched_until(&self, id: VolumeId, bytes: ByteCount) {
        self.0.fetched_until(id, bytes);
    }

    fn percent_fetched(&self, id: VolumeId) -> Option<u32> {
        self.0.percent_fetched(id)
    }
}

/// Returns the parts that the stores with this injector and this feel execute.
pub fn executed_by(injector: Injector, feel: Option<Feel>) -> TestIo {
    let feel = feel.map(|feel| Arc::new(Felt(feel)) as Arc<dyn IoFeel>);
    TestIo { faults: Arc::new(Executed(injector)), feel }
}
