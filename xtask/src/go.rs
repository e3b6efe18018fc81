//! The test client in Go, with the AWS SDK for Go. Its test is skipped if the installed Go cannot
//! build it: Debian 12's is too old.

use crate::run;
use std::path::Path;
use std::process::Command;

/// Its sources, and its modules at fixed versions.
const SOURCES: &str = "tests/go";
const FILES: [&str; 3] = ["main.go", "go.mod", "go.sum"];

/// The folder of the program, and of a stamp with the sources that it was built from.
const FOLDER: &str = "target/go";
const PROGRAM: &str = "smoke";
const STAMP: &str = "built.txt";

/// Builds the client, unless it is up to date. Downloads its modules (50 MB) once for each user.
pub fn client(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let mut wanted = String::new();
    for file in FILES.map(|file| root.join(SOURCES).join(file)) {
        let text = std::fs::read_to_string(&file);
        wanted += &text.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    // Written last, so that an interrupted build is repeated.
    let stamp = folder.join(STAMP);
    if std::fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    if run::find("go").is_none() {
        println!("setup: there is no Go here: the test of its SDK is skipped");
        return Ok(());
    }
    let program = folder.join(PROGRAM);
    // A program of older sources would be tested as if it were of these.
    let _ = std::fs::remove_file(&program);
    println!("setup: building {}", program.display());
    let built = run::status(&mut build(root, &program));
    if let Err(error) = built {
        println!("setup: {error}: the test of Go's SDK is skipped");
        return Ok(());
    }
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Returns the command of a build without optimization: the service's package is large, and takes
/// most of the time.
fn build(root: &Path, program: &Path) -> Command {
    let mut go = Command::new("go");
    go.args(["build", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o"]).arg(program).arg(".");
    // The installed Go, and the versions of go.sum.
    go.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
    go.current_dir(root.join(SOURCES));
    go
}
