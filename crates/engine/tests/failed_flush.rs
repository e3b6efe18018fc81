//! A failed flush is known to the next process, whether the last one was stopped or killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_engine::IoMode;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::forwarding::ForwardingPool;
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::{Pool, StoreError};
use evenkeel_wire::agent::{Command, Reply, VolumeState};
use evenkeel_wire::nbd::transmission::ErrorCode;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use support::{ANSWER_MAX, Answer, Nbd, Served, unlimited};

const SIZE: u64 = 1 << 20;
const ID: VolumeId = VolumeId::from_bits(1);
const OTHER: VolumeId = VolumeId::from_bits(2);
const WRITE: Operation = Operation::Write { fua: false };
const DONE: Answer = Answer::Done(Vec::new());
const EIO: Answer = Answer::Failed(ErrorCode::Io);

/// A local pool, behind a device that fails the second flush of each volume after its opening.
///
/// A failed flush is recorded only after the test has sent a message; `noted` then sends one back.
struct Gated {
    below: Box<dyn Pool>,
    may_note: Mutex<Receiver<()>>,
    noted: Sender<()>,
}

impl ForwardingPool for Gated {
    fn below(&self) -> &dyn Pool {
        self.below.as_ref()
    }

    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.may_note.lock().unwrap().recv_timeout(ANSWER_MAX).unwrap();
        self.below.note_failed_flush(id)?;
        // The receiver is gone if the test has ended.
        let _ = self.noted.send(());
        Ok(())
    }
}

/// A data plane that serves a folder's two volumes.
struct Process {
    served: Served,
    let_note: Sender<()>,
    noted: Receiver<()>,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let setup = "channels=4,read_us=1,fail_flush=2".parse().unwrap();
        let local = Arc::new(LocalPool::in_folder(folder, None).unwrap());
        let (let_note, may_note) = channel();
        let (noted_now, noted) = channel();
        let below = Box::new(FaultyPool::new(local, &setup));
        let pool = Gated { below, may_note: Mutex::new(may_note), noted: noted_now };
        let served = Served::new(IoMode::Auto, Arc::new(pool));
        for id in [ID, OTHER] {
            served.apply(unlimited(id, SIZE));
        }
        Self { served, let_note, noted }
    }

    fn ask(&self, id: VolumeId, operation: Operation) -> Answer {
        let payload = if operation == WRITE { &[1; 512][..] } else { &[] };
        let length = if operation == WRITE || operation == Operation::Read { 512 } else { 0 };
        self.served.connect(id).ask(operation, 0, length, payload)
    }

    fn flush(&self, id: VolumeId) -> Answer {
        self.ask(id, Operation::Flush)
    }

    /// Makes a flush fail. Returns before the failure is recorded.
    fn fail_a_flush(&self) {
        let mut client: Nbd = self.served.connect(ID);
        assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), DONE);
        assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), EIO);
        assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), EIO);
        assert_eq!(self.flush(OTHER), DONE);
        assert!(self.noted.try_recv().is_err(), "the test has not let it");
        self.let_note.send(()).unwrap();
    }

    fn stop(mut self) {
        self.served.engine.take().unwrap().shutdown();
    }
}

fn detached() -> VolumeState {
    VolumeState { attachments: Vec::new(), ..unlimited(ID, SIZE) }
}

/// Copies the folder in its present state, as a killed process leaves it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn is_marked(folder: &Path) -> bool {
    LocalPool::in_folder(folder, None).unwrap().has_failed_flush(ID).unwrap()
}

#[test]
fn a_failed_flush_stands_in_the_next_process_until_the_volume_is_attached_anew() {
    let folders = tempfile::tempdir().unwrap();
    let [stopped, killed] = ["stopped", "killed"].map(|name| folders.path().join(name));
    let process = Process::start(&stopped);
    assert_eq!(process.ask(ID, WRITE), DONE);
    process.fail_a_flush();
    process.noted.recv_timeout(ANSWER_MAX).unwrap();
    copy(&stopped, &killed);
    process.stop();
    for folder in [&stopped, &killed] {
        let process = Process::start(folder);
        for _ in 0..2 {
            assert_eq!(process.flush(ID), EIO, "{}", folder.display());
            assert_eq!(process.ask(ID, WRITE), EIO);
        }
        assert_eq!(process.ask(ID, Operation::Read), Answer::Done(vec![1; 512]));
        assert_eq!(process.flush(OTHER), DONE);
        let failed = |id| process.served.report(id).errors.flush_failed;
        assert!(failed(ID) && !failed(OTHER));
        process.stop();
        // A restart does not count as a new attachment of a detached volume.
        let process = Process::start(folder);
        process.served.apply(detached());
        process.stop();
        assert!(is_marked(folder));
        let process = Process::start(folder);
        process.served.apply(detached());
        process.served.apply(unlimited(ID, SIZE));
        assert_eq!(process.flush(ID), DONE, "it begins anew");
        process.stop();
        assert!(!is_marked(folder));
        let process = Process::start(folder);
        assert_eq!(process.flush(ID), DONE, "and has begun anew");
        process.stop();
    }
}

#[test]
fn a_failed_flush_is_noted_before_a_stop_ends() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    process.fail_a_flush();
    process.stop();
    assert!(is_marked(folder.path()));
}

#[test]
fn a_failed_flush_of_a_deleted_volume_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    process.fail_a_flush();
    assert_eq!(process.served.call(Command::Delete(ID)), Reply::Done);
    process.stop();
    assert!(!is_marked(folder.path()));
}
