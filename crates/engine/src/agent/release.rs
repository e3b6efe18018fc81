//! Volumes that are given up, so that another data plane can serve them.

use super::{EngineAgent, failed, refused};
use crate::reactor::Message;
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::{CreditReport, Failed, FailedKind};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{MutexGuard, PoisonError};

/// Progress of giving a volume up.
pub(super) enum Release {
    /// Its home was asked, and has not answered in time.
    Asked(Receiver<Option<CreditReport>>),
    /// Its home has removed it; its store may not be closed yet.
    GivenUp(CreditReport),
}

impl EngineAgent {
    /// Gives a volume up. Returns its remaining credits, once another data plane can open it.
    pub(super) fn release(&self, id: VolumeId) -> Result<CreditReport, Failed> {
        let _turn = self.turns.take(id);
        self.hear_of(id)?;
        let given_up = match self.releases().get(&id) {
            Some(Release::GivenUp(report)) => Some(report.clone()),
            _ => None,
        };
        if given_up.is_none() {
            self.keep_failed(id)?;
        }
        let report = given_up.map_or_else(|| self.give_up(id), Ok)?;
        self.pool.wait_closed(id).map_err(failed)?;
        // A mark that is written later could outlast the time in which another data plane removes
        // it.
        if !self.flush_marks.leave(id, self.answer_max) {
            return Err(self.no_answer());
        }
        self.releases().remove(&id);
        Ok(report)
    }

    /// Returns an error if the volume is attached and a flush of it has failed. Its mark may not be
    /// written; another data plane would report flushes as successful again.
    fn keep_failed(&self, id: VolumeId) -> Result<(), Failed> {
        let entry = self.directory.get(id);
        if entry.is_none_or(|entry| entry.attachments.is_empty()) {
            return Ok(());
        }
        let report = self.report_of(&[id])?;
        if report.volumes.iter().any(|volume| volume.errors.flush_failed) {
            return Err(refused(format!(
                "{id} stays where it is: a flush of it has failed, and what was acknowledged since \
                 the last one may be lost; detach it from all its hosts, then move it"
            )));
        }
        Ok(())
    }

    fn give_up(&self, id: VolumeId) -> Result<CreditReport, Failed> {
        let answer = {
            // Not while the volume moves from one core to another. Without attachments it stays on
            // its core, so the lock is not held while its store finishes.
            let _guard = self.placement();
            let Some(mut entry) = self.directory.get(id) else {
                return Ok(CreditReport::default());
            };
            entry.attachments.clear();
            let home = entry.home;
            self.directory.insert(id, entry);
            self.post(home, |ack| Message::GiveUp(id, ack))
        };
        match self.wait(&answer) {
            Ok(report) => Ok(self.forget(id, report)),
            Err(failed) => {
                if failed.kind == FailedKind::Unanswered {
                    self.releases().insert(id, Release::Asked(answer));
                }
                Err(failed)
            }
        }
    }

    /// Returns an error while the home of a volume that is given up has not answered. Until then
    /// the home receives no new command for the volume, and no other thread waits for it.
    pub(super) fn hear_of_release(&self, id: VolumeId) -> Result<(), Failed> {
        let answer = match self.releases().get(&id) {
            Some(Release::Asked(answer)) => answer.try_recv(),
            _ => return Ok(()),
        };
        match answer {
            Ok(report) => _ = self.forget(id, report),
            Err(TryRecvError::Empty) => return Err(self.no_answer()),
            // The reactor has ended.
            Err(TryRecvError::Disconnected) => _ = self.releases().remove(&id),
        }
        Ok(())
    }

    /// Removes a volume that its home has given up from the directory. Keeps its remaining credits
    /// until they are returned.
    fn forget(&self, id: VolumeId, report: Option<CreditReport>) -> CreditReport {
        self.directory.remove(id);
        let mut report = report.unwrap_or_default();
        // Hosts that still have volumes here keep their credits.
        report.hosts.retain(|(host, _)| !self.directory.is_attached(*host));
        self.releases().insert(id, Release::GivenUp(report.clone()));
        report
    }

    /// Drops the remaining credits of a volume that was given up: it is applied again, or deleted.
    pub(super) fn forget_release(&self, id: VolumeId) {
        self.releases().remove(&id);
    }

    fn releases(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Release>> {
        // Changed by single insertions and removals, so a panicked holder left it whole.
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Directory, Entry};
    use crate::reactor::Inbox;
    use crate::shared_device::SharedDevice;
    use evenkeel_core::qos::admission::Reserved;
    use evenkeel_core::qos::pacing::{Balances, Pacing};
    use evenkeel_core::units::ByteCount;
    use evenkeel_os::clock::Clock;
    use evenkeel_store::forwarding::ForwardingPool;
    use evenkeel_store::memory::MemoryPool;
    use evenkeel_store::{Geometry, Pool, StoreError};
    use evenkeel_wire::agent::{Agent, Command, Reply, VolumeState};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::SyncSender;
    use std::time::Duration;

    const ID: VolumeId = VolumeId::from_bits(1);
    const SIZE: ByteCount = ByteCount(1 << 20);

    /// A pool in memory that reports volumes as closed once the test sets `is_closed`.
    #[derive(Default)]
    struct Closing {
        memory: MemoryPool,
        is_closed: AtomicBool,
    }

    impl ForwardingPool for Closing {
        fn below(&self) -> &dyn Pool {
            &self.memory
        }

        fn wait_closed(&self, id: VolumeId) -> Result<(), StoreError> {
            if self.is_closed.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(StoreError::Closing { id })
            }
        }
    }

    /// Creates an agent whose only core answers when the test does.
    fn agent(pool: Arc<Closing>) -> (EngineAgent, Arc<[Inbox]>, Arc<Directory>) {
        let inboxes: Arc<[Inbox]> = [Inbox::new().unwrap()].into();
        let directory = Arc::new(Directory::default());
        let geometry = Geometry { size: SIZE, block_bytes_min: 512, block_bytes_preferred: 4_096 };
        directory.insert(ID, Entry { home: 0, geometry, attachments: Vec::new() });
        let shared = (Arc::new(SharedDevice::new(1)), Arc::default());
        let messages = Arc::clone(&inboxes);
        let lines = Arc::clone(&directory);
        let mut agent = EngineAgent::new(pool, inboxes, directory, shared, Clock::start());
        agent.answer_max = Duration::from_millis(1);
        (agent, messages, lines)
    }

    fn kind(reply: Reply) -> FailedKind {
        match reply {
            Reply::Failed(failed) => failed.kind,
            other => panic!("{other:?}"),
        }
    }

    fn applied() -> Command {
        Command::Apply(VolumeState {
            id: ID,
            size: SIZE,
            pacing: Pacing::UNLIMITED,
            balances: Balances::default(),
            unleased: Balances::default(),
            reserved: Reserved::NOTHING,
            attachments: Vec::new(),
            is_encrypted: false,
        })
    }

    fn asked(inboxes: &[Inbox]) -> SyncSender<Option<CreditReport>> {
        let mut messages = inboxes[0].take();
        assert_eq!(messages.len(), 1, "told once");
        let Some(Message::GiveUp(ID, ack)) = messages.pop() else { panic!("something else") };
        ack
    }

    /// A release is repeated while the core or the pool takes long, and returns the remaining
    /// credits once the volume is closed.
    #[test]
    fn a_release_that_takes_long_is_repeated_until_the_volume_is_closed() {
        let pool = Arc::new(Closing::default());
        let (agent, inboxes, directory) = agent(Arc::clone(&pool));
        for _ in 0..3 {
            assert_eq!(kind(agent.call(Command::Release(ID))), FailedKind::Unanswered);
            assert_eq!(kind(agent.call(applied())), FailedKind::Unanswered);
            assert_eq!(kind(agent.call(Command::Delete(ID))), FailedKind::Unanswered);
        }
        let ack = asked(&inboxes);
        let balances = Balances { operations: Some(5), bytes: None };
        let report = CreditReport { volumes: vec![(ID, balances)], hosts: Vec::new() };
        ack.send(Some(report.clone())).unwrap();
        for _ in 0..3 {
            assert_eq!(kind(agent.call(Command::Release(ID))), FailedKind::Unanswered);
            assert!(directory.get(ID).is_none(), "it is forgotten");
        }
        pool.is_closed.store(true, Ordering::Relaxed);
        assert_eq!(agent.call(Command::Release(ID)), Reply::Balances(report));
        let nothing = Reply::Balances(CreditReport::default());
        assert_eq!(agent.call(Command::Release(ID)), nothing, "it is not held");
        assert!(inboxes[0].take().is_empty(), "nobody was told anything else");
    }

    #[test]
    fn a_volume_that_is_applied_again_was_never_released() {
        let pool = Arc::new(Closing::default());
        let (agent, inboxes, _) = agent(Arc::clone(&pool));
        assert_eq!(kind(agent.call(Command::Release(ID))), FailedKind::Unanswered);
        let report = CreditReport { volumes: vec![(ID, Balances::default())], hosts: Vec::new() };
        asked(&inboxes).send(Some(report)).unwrap();
        assert_eq!(kind(agent.call(applied())), FailedKind::Damaged, "this pool opens none");
        pool.is_closed.store(true, Ordering::Relaxed);
        let nothing = Reply::Balances(CreditReport::default());
        assert_eq!(agent.call(Command::Release(ID)), nothing, "it is of the past");
    }
}
