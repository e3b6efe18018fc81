//! The Debian packages: the program, and its symbols.

use super::tools::CARGO_DEB;
use super::{Options, create_empty, files_with_ending, program, write};
use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The completions that the metadata in Cargo.toml names: shell, and file.
const SHELLS: [(&str, &str); 3] =
    [("bash", "evenkeel.bash"), ("zsh", "evenkeel.zsh"), ("fish", "evenkeel.fish")];

/// Makes both packages with cargo-deb, and returns their files.
pub fn make(root: &Path, options: &Options) -> Result<Vec<PathBuf>, String> {
    let tool = CARGO_DEB.path(root)?;
    let program = program::of(root, options)?;
    completions(root, &program)?;
    // cargo-deb takes the program from a target folder. One of its own lets it package any program.
    let target = root.join("target/package/built");
    create_empty(&target.join("release"))?;
    create_empty(&target.join("debian"))?;
    let copy = target.join("release/evenkeel");
    std::fs::copy(&program, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    let mut deb = Command::new(tool);
    deb.current_dir(root).args(["--no-build", "--dbgsym", "--output"]).arg(target.join("debian"));
    // The tool is not optimized, and would compress for minutes.
    deb.arg("--compress-system");
    if options.is_debug || options.program.is_some() {
        // Symbols of a debug build are large.
        deb.args(["--fast", "-Zgz"]);
    }
    deb.env("CARGO_TARGET_DIR", &target).env("SOURCE_DATE_EPOCH", program::epoch(root));
    run::status(&mut deb)?;
    let mut made = Vec::new();
    for ending in [".deb", ".ddeb"] {
        made.extend(files_with_ending(&target.join("debian"), ending)?);
    }
    made.iter().map(|file| moved(file, &options.into)).collect()
}

/// Moves a package into a folder, with Debian's ending.
fn moved(file: &Path, into: &Path) -> Result<PathBuf, String> {
    let name = file.with_extension("deb");
    let path = into.join(name.file_name().unwrap_or_default());
    // Not renamed: the folder may be on another file system.
    std::fs::copy(file, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Writes the completion scripts that the program prints.
fn completions(root: &Path, program: &Path) -> Result<(), String> {
    let folder = root.join("target/package/completions");
    create_empty(&folder)?;
    for (shell, file) in SHELLS {
        let mut print = Command::new(program);
        // A configuration file of the user's folder has no part in a package.
        print.args(["completions", shell]).current_dir(&folder).env_remove("EVENKEEL_CONFIG");
        write(&folder.join(file), &run::output(&mut print)?)?;
    }
    Ok(())
}
