//! A wall clock that a test sets: of one server, and of nobody else. Needs `faketime`.

use super::process::run;
use super::server::Server;
use super::tools::tool;
use std::path::PathBuf;

/// The wall clock of a server, and of nobody else.
pub struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// Starts the server anew with a clock of its own, which is the real one so far.
    #[track_caller]
    pub fn of(server: &mut Server) -> Self {
        let clock = Self { file: server.folder().join("wall-clock") };
        clock.jump("+0d");
        let library = run(tool("faketime", "-f +0d sh -c").arg("echo $LD_PRELOAD")).ok();
        let file = clock.file.display().to_string();
        server.environment(vec![
            ("LD_PRELOAD", library.trim().to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]);
        server.stop();
        server.restart();
        clock
    }

    /// From now on it is so far from the real one.
    pub fn jump(&self, offset: &str) {
        // The file is read at any time, and must be whole then.
        let new = self.file.with_extension("new");
        std::fs::write(&new, offset).expect("written");
        std::fs::rename(&new, &self.file).expect("in place");
    }
}
