//! The program that is packaged.

use super::tools::CARGO_AUDITABLE;
use super::{Options, create_empty};
use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the program to package, and builds it if none is named.
pub fn of(root: &Path, options: &Options) -> Result<PathBuf, String> {
    if let Some(program) = &options.program {
        return program.canonicalize().map_err(|error| format!("{}: {error}", program.display()));
    }
    if options.is_debug {
        // As `cargo x docs` builds it, so that nothing is compiled again.
        let words = ["build", "--workspace", "--bin", "evenkeel", "--bin", "evenkeel-bench"];
        run::status(run::cargo(root, &words).args(["--test", "sim"]))?;
        return Ok(root.join("target/debug/evenkeel"));
    }
    let auditable = CARGO_AUDITABLE.path(root)?;
    let mut build = run::cargo(root, &[]);
    build.args(["auditable", "build", "--release", "--locked", "--bin", "evenkeel"]);
    build.env("PATH", with_folder_of(&auditable));
    reproducible(root, root, &mut build);
    run::status(&mut build)?;
    Ok(root.join("target/release/evenkeel"))
}

/// Makes the bytes of a build of the sources in `folder` independent of that folder, of the user
/// and of the time.
pub fn reproducible(root: &Path, folder: &Path, build: &mut Command) {
    let home = std::env::var("CARGO_HOME").map_or_else(
        |_| PathBuf::from(std::env::var("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    // Of SQLite, and of ring.
    let mut of_c = std::env::var("CFLAGS").unwrap_or_default();
    for (from, to) in [(folder, "/evenkeel"), (&home, "/cargo")] {
        flags += &format!(" --remap-path-prefix={}={to}", from.display());
        of_c += &format!(" -ffile-prefix-map={}={to}", from.display());
    }
    build.env("RUSTFLAGS", flags.trim()).env("CFLAGS", of_c.trim());
    build.env("SOURCE_DATE_EPOCH", epoch(root));
}

/// Builds the committed sources in two folders, and compares the programs. The profile is the one
/// that compiles in the shortest time.
///
/// # Errors
/// If a build fails, or the programs differ.
pub fn check_reproducible(root: &Path) -> Result<(), String> {
    let folders = ["a", "another-folder"].map(|name| root.join("target/reproducible").join(name));
    let mut programs = Vec::new();
    for folder in &folders {
        create_empty(folder)?;
        let archive = folder.with_extension("tar");
        let mut git = Command::new("git");
        git.current_dir(root).args(["archive", "--output"]).arg(&archive).arg("HEAD");
        run::status(&mut git)?;
        run::status(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder))?;
        let mut build = run::cargo(folder, &["build", "--quiet", "--locked"]);
        build.args(["--profile", "quick", "--bin", "evenkeel"]);
        build.env("CARGO_TARGET_DIR", folder.join("target"));
        reproducible(root, folder, &mut build);
        run::status(&mut build)?;
        let program = folder.join("target/quick/evenkeel");
        let bytes = std::fs::read(&program);
        programs.push(bytes.map_err(|error| format!("{}: {error}", program.display()))?);
    }
    match programs.as_slice() {
        [first, second] if first == second => {
            println!("two builds have the same {} bytes", first.len());
            // Each folder has some GiB. They stay if the programs differ.
            create_empty(&root.join("target/reproducible"))
        }
        _ => Err(format!(
            "two builds differ: {}",
            folders.map(|f| f.display().to_string()).join(", ")
        )),
    }
}

/// Returns the time of the commit in seconds, which is that of the packages; 0 without git.
pub fn epoch(root: &Path) -> String {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given;
    }
    let mut git = Command::new("git");
    git.args(["log", "--max-count=1", "--format=%ct"]).current_dir(root);
    let output = git.output().ok().filter(|output| output.status.success());
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| "0".to_owned(), |text| text.trim().to_owned())
}

/// Returns `PATH` with the folder of a tool before the others.
pub fn with_folder_of(tool: &Path) -> std::ffi::OsString {
    let mut path = tool.parent().unwrap_or(tool).as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}
