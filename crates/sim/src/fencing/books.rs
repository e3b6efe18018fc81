//! etcd, as far as ownership needs it: records that are changed by comparing their revision. A
//! transaction whose answer is lost may have been applied, may be applied later, or never.

use evenkeel_core::fencing::{Cas, Ownership, Record, Revision};

/// A transaction that is on its way yet.
#[derive(Clone)]
pub struct Delayed {
    pub volume: usize,
    pub expected: Option<Revision>,
    pub next: Ownership,
}

/// The records.
#[derive(Default)]
pub struct Books {
    records: [Option<Record>; 2],
    revision: u64,
    pub delayed: Vec<Delayed>,
}

impl Books {
    pub fn record(&self, volume: usize) -> Option<&Record> {
        self.records[volume].as_ref()
    }

    pub fn write(&mut self, volume: usize, expected: Option<Revision>, next: Ownership) -> Cas {
        let record = &mut self.records[volume];
        if record.as_ref().map(|record| record.revision) != expected {
            return Cas::Lost(record.clone());
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        *record = Some(Record { ownership: next, revision });
        Cas::Won(revision)
    }
}
