//! What holds of the state in memory between any two changes.
//!
//! The model's own rules are in [`Model::invariants`]. Here are those that need the writer, which
//! has the rows of the journal.

use super::Plane;
use super::writer::Writer;
use crate::model::Model;

impl Plane {
    /// Asserts that the state in memory is consistent. For tests: debug builds check parts of it
    /// with every change.
    ///
    /// # Panics
    /// If it is not.
    pub fn invariants(&self) {
        if let Ok(writer) = self.writer() {
            let model = self.model();
            model.invariants();
            writer.invariants(&model);
        }
        self.check_fillings();
    }

    /// Asserts in debug builds that the writer's state fits the model. It examines all volumes, so
    /// it does so once in as many revisions as there are volumes.
    pub(super) fn check(&self, writer: &Writer) {
        let model = self.model();
        let every = (model.volumes.len() as u64).max(1);
        if cfg!(debug_assertions) && writer.revision.0.is_multiple_of(every) {
            writer.invariants(&model);
        }
    }
}

impl Writer {
    /// Asserts that this state fits the model.
    fn invariants(&self, model: &Model) {
        let Self { revision, stored, born, is_settled, .. } = self;
        for id in stored.volumes.keys() {
            assert!(model.volumes.contains_key(id), "balances of {id} are stored, which is gone");
        }
        for id in stored.hosts.keys() {
            assert!(model.hosts.contains_key(id), "balances of {id} are stored, which is gone");
        }
        for (id, at) in born {
            assert!(model.volumes.contains_key(id), "{id} has a first revision, and is gone");
            assert!(at <= revision, "{id} begins at revision {at}, after {revision}");
        }
        let unsettled = model.unsettled().next();
        assert!(!is_settled || unsettled.is_none(), "{unsettled:?} is not settled");
    }
}
