//! The programs as they are released: without symbols, and the symbols in files beside them.

use crate::run;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The programs that are released.
const PROGRAMS: [&str; 2] = ["evenkeel", "evenkeel-bench"];

/// Folder of the released files, relative to the workspace's.
const FOLDER: &str = "target/dist";

/// Builds the programs with `--release`, and writes each without symbols to `target/dist`.
///
/// `NAME.debug` beside it has the symbols and lines. The program names that file, so that gdb, perf
/// and the backtrace of a panic find them.
pub fn run(root: &Path) -> Result<(), String> {
    let objcopy = run::find("objcopy")
        .ok_or("release: objcopy is missing: install it (Debian: apt-get install binutils)")?;
    run::status(&mut run::cargo(root, &["build", "--release", "--workspace", "--bins"]))?;
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for program in PROGRAMS {
        let built = root.join("target/release").join(program);
        let stripped = folder.join(program);
        let symbols = format!("{program}.debug");
        // The name of the file with the symbols is relative to the folder of the program.
        let copy = |flags: &[&str], from: &Path, to: &Path| {
            let files: [OsString; 2] = [from.into(), to.into()];
            run::status(Command::new(&objcopy).current_dir(&folder).args(flags).args(files))
        };
        copy(&["--only-keep-debug"], &built, &folder.join(&symbols))?;
        let link = format!("--add-gnu-debuglink={symbols}");
        copy(&["--strip-all", &link], &built, &stripped)?;
        // A program that does not start is not released.
        let version = run::output(Command::new(&stripped).arg("--version"))?;
        println!(
            "{FOLDER}/{program}: {}, {} MiB, symbols in {symbols}: {} MiB",
            version.trim(),
            mebibytes(&stripped)?,
            mebibytes(&folder.join(&symbols))?
        );
    }
    Ok(())
}

fn mebibytes(file: &Path) -> Result<u64, String> {
    let metadata = std::fs::metadata(file);
    let metadata = metadata.map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(metadata.len().div_ceil(1 << 20))
}
