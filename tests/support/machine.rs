//! Locks for the use of the machine. A test that is close to its limits runs alone, tests of low
//! rates run beside each other, and tests of mounts run one after the other. The locks are files,
//! since test binaries and work trees run at the same time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;

/// A turn on the machine. It ends when it is dropped, or with this process.
#[derive(Debug)]
pub struct Turn {
    _room: File,
}

/// Waits for a turn without others: for tests that are close to the limit of two cores, or that are
/// not judged when other programs use them.
pub fn alone() -> Turn {
    turn(File::lock)
}

/// Waits for a turn beside others like it, but not beside one that is [`alone`].
pub fn beside_others() -> Turn {
    turn(File::lock_shared)
}

/// Locks the machine's mounts and loop devices: those of another test look like leftovers.
pub fn mounts() -> File {
    let mounts = file("mounts");
    mounts.lock().expect("a file of our own");
    mounts
}

fn turn(lock: impl Fn(&File) -> std::io::Result<()>) -> Turn {
    // Held during the wait for the room: otherwise tests that share it could keep one that needs it
    // alone waiting forever.
    let door = file("door");
    door.lock().expect("a file of our own");
    let room = file("room");
    lock(&room).expect("a file of our own");
    Turn { _room: room }
}

/// Opens a lock's file. Each opening has locks of its own, even in one process.
fn file(name: &str) -> File {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("evenkeel-tests-{user}"));
    let mut new = std::fs::DirBuilder::new();
    new.recursive(true).mode(0o700).create(&folder).expect("a folder of our own");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(folder.join(name)).expect("a file of our own")
}
