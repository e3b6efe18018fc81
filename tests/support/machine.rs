//! Who may use the machine: a test that is near what it can carry runs alone, those about rates
//! that ask little of it run beside each other, and tests of mounts one after the other. The locks
//! are files, for test binaries and work trees run at the same time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;

/// A turn on the machine. It ends when it is dropped, or with this process.
#[derive(Debug)]
pub struct Turn {
    _room: File,
}

/// A turn with no other: for what comes near to what two cores can carry, or is not judged when
/// others use them.
pub fn alone() -> Turn {
    turn(File::lock)
}

/// A turn beside others like it, and beside none that is [`alone`].
pub fn beside_others() -> Turn {
    turn(File::lock_shared)
}

/// The lock of what looks at the machine's mounts and loop devices: those of another test look like
/// leftovers.
pub fn mounts() -> File {
    let mounts = file("mounts");
    mounts.lock().expect("a file of our own");
    mounts
}

fn turn(lock: impl Fn(&File) -> std::io::Result<()>) -> Turn {
    // Held while waiting for the room: else those who share it could keep one who needs it alone
    // waiting for ever.
    let door = file("door");
    door.lock().expect("a file of our own");
    let room = file("room");
    lock(&room).expect("a file of our own");
    Turn { _room: room }
}

/// A lock's file. Each opening has locks of its own, in one process, too.
fn file(name: &str) -> File {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("evenkeel-tests-{user}"));
    let mut new = std::fs::DirBuilder::new();
    new.recursive(true).mode(0o700).create(&folder).expect("a folder of our own");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(folder.join(name)).expect("a file of our own")
}
