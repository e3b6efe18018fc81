//! The test client that is written in Go, with the AWS SDK for Go. Its test is skipped where no Go
//! is that can build it: Debian 12's is too old.

use crate::run;
use std::path::Path;
use std::process::Command;

/// Its sources, and the modules they need at fixed versions.
const SOURCES: &str = "tests/go";
const FILES: [&str; 3] = ["main.go", "go.mod", "go.sum"];

/// Where it is built: the program, and what it was built of.
const FOLDER: &str = "target/go";
const PROGRAM: &str = "smoke";
const STAMP: &str = "built.txt";

/// Builds the client, unless it is there. Downloads its modules (50 MB) once for each user.
pub fn client(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let mut wanted = String::new();
    for file in FILES.map(|file| root.join(SOURCES).join(file)) {
        let text = std::fs::read_to_string(&file);
        wanted += &text.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    // Written last, so that a build that was interrupted half-way is made again.
    let stamp = folder.join(STAMP);
    if std::fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    if run::find("go").is_none() {
        println!("setup: there is no Go here: the test of its SDK is skipped");
        return Ok(());
    }
    let program = folder.join(PROGRAM);
    // One of other sources would be tested as if it were of these.
    let _ = std::fs::remove_file(&program);
    println!("setup: building {}", program.display());
    let built = run::status(&mut build(root, &program));
    if let Err(error) = built {
        println!("setup: {error}: the test of Go's SDK is skipped");
        return Ok(());
    }
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Without optimization: the service's package is large, and takes most of the time.
fn build(root: &Path, program: &Path) -> Command {
    let mut go = Command::new("go");
    go.args(["build", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o"]).arg(program).arg(".");
    // The Go that is there, and the versions of go.sum.
    go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
    go.current_dir(root.join(SOURCES));
    go
}
