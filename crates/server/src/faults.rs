//! Faults of I/O: the control plane decides them, and the store in front of the others executes
//! them.

use evenkeel_control::faults::IoFaults;
use evenkeel_core::io_fault::IoFault;
use evenkeel_store::injected::Injector;
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

/// Returns the faults that the stores with this injector execute.
pub fn executed_by(injector: Injector) -> Arc<dyn IoFaults> {
    Arc::new(Executed(injector))
}
