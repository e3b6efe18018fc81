//! A wall clock that a test sets for one server only. It needs `faketime`.

use super::process::run;
use super::server::Server;
use super::tools::tool;
use std::path::PathBuf;

/// The wall clock of one server.
pub struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// Restarts the server with a clock of its own, which shows the real time at first.
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

    /// Sets the clock to this offset from the real time.
    pub fn jump(&self, offset: &str) {
        // The file may be read at any time, so it is replaced as a whole.
        let new = self.file.with_extension("new");
        std::fs::write(&new, offset).expect("written");
        std::fs::rename(&new, &self.file).expect("in place");
    }
}
