//! The program that is packaged.

use super::tools::CARGO_AUDITABLE;
use super::{Options, create_empty, tools};
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
    built(root, root, "release", &Origin { commit: commit(root), epoch: epoch(root) })
}

/// The sources of a program, as it names them.
struct Origin {
    commit: String,
    /// The time of the commit, in seconds.
    epoch: String,
}

/// Builds the program of the sources in `folder` as it is released, and returns its path.
fn built(root: &Path, folder: &Path, profile: &str, origin: &Origin) -> Result<PathBuf, String> {
    let auditable = CARGO_AUDITABLE.path(root)?;
    let mut build = run::cargo(folder, &["auditable", "build", "--locked", "--bin", "evenkeel"]);
    build.args(["--profile", profile]).env("PATH", with_folder_of(&auditable));
    build.env("CARGO_TARGET_DIR", folder.join("target"));
    build.env("SOURCE_DATE_EPOCH", &origin.epoch).env("EVENKEEL_COMMIT", &origin.commit);
    remap_paths(folder, &mut build);
    run::status(&mut build)?;
    Ok(folder.join("target").join(profile).join("evenkeel"))
}

/// Makes the bytes of a build of the sources in `folder` independent of that folder and of the
/// user.
fn remap_paths(folder: &Path, build: &mut Command) {
    let home = tools::cargo_home();
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    // Of SQLite, and of ring.
    let mut of_c = std::env::var("CFLAGS").unwrap_or_default();
    for (from, to) in [(folder, "/evenkeel"), (&home, "/cargo")] {
        flags += &format!(" --remap-path-prefix={}={to}", from.display());
        of_c += &format!(" -ffile-prefix-map={}={to}", from.display());
    }
    build.env("RUSTFLAGS", flags.trim()).env("CFLAGS", of_c.trim());
}

/// Builds the committed sources in two folders, and compares the programs.
///
/// # Errors
/// If a build fails, or the programs differ.
pub fn check_reproducible(root: &Path, profile: &str) -> Result<(), String> {
    let folders = ["a", "another-folder"].map(|name| root.join("target/reproducible").join(name));
    let missing = || "package reproducible: no commit: it needs a checkout with git".to_owned();
    // Another commit may be made meanwhile.
    let commit = of_git(root, &["rev-parse", "--short=12", "HEAD"]).ok_or_else(missing)?;
    let origin = Origin { commit, epoch: epoch(root) };
    let mut programs = Vec::new();
    for folder in &folders {
        create_empty(folder)?;
        let archive = folder.with_extension("tar");
        let mut git = Command::new("git");
        git.current_dir(root).args(["archive", "--output"]).arg(&archive).arg(&origin.commit);
        run::status(&mut git)?;
        run::status(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(folder))?;
        let program = built(root, folder, profile, &origin)?;
        let bytes = std::fs::read(&program);
        programs.push(bytes.map_err(|error| format!("{}: {error}", program.display()))?);
    }
    let [first, second] = folders.map(|folder| folder.display().to_string());
    match difference(&programs[0], &programs[1]) {
        None => {
            let bytes = programs[0].len();
            println!("two builds of the profile {profile} have the same {bytes} bytes");
            // Each folder has some GiB. They stay if the programs differ.
            create_empty(&root.join("target/reproducible"))
        }
        Some(place) => Err(format!("the builds in {first} and {second} differ: {place}")),
    }
}

/// Returns where two programs differ; `None` if they do not.
fn difference(first: &[u8], second: &[u8]) -> Option<String> {
    if first == second {
        return None;
    }
    let same = first.iter().zip(second).take_while(|(one, other)| one == other).count();
    Some(format!("{} and {} bytes, the first {same} are the same", first.len(), second.len()))
}

/// Returns the commit of the sources as `evenkeel --version` prints it; `unknown` without git.
pub fn commit(root: &Path) -> String {
    if let Ok(given) = std::env::var("EVENKEEL_COMMIT") {
        return given;
    }
    let describe = ["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=-modified"];
    of_git(root, &describe).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the time of the commit in seconds, which is that of the packages; 0 without git.
pub fn epoch(root: &Path) -> String {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given;
    }
    let show = ["log", "--max-count=1", "--format=%ct"];
    of_git(root, &show).unwrap_or_else(|| "0".to_owned())
}

/// Returns the output of git; `None` if it fails.
fn of_git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}

/// Returns `PATH` with the folder of a tool before the others.
pub fn with_folder_of(tool: &Path) -> std::ffi::OsString {
    let mut path = tool.parent().unwrap_or(tool).as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_differ_are_found_with_the_place() {
        assert_eq!(difference(b"abc", b"abc"), None);
        let place = "3 and 4 bytes, the first 2 are the same";
        assert_eq!(difference(b"abc", b"abd!"), Some(place.to_owned()));
        assert!(difference(b"abc", b"abcd").is_some());
    }
}
