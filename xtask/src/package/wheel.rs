//! The wheel for PyPI: the program, and the Python package `evenkeel.testing`.

use super::tools::MATURIN;
use super::{Options, create_empty, files_with_ending, program, write};
use crate::run;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the Python package, relative to the workspace's.
const SOURCES: &str = "packaging/python";

/// Makes the wheel with maturin, and returns its file. Its platform tag names the oldest glibc that
/// has all symbols of the program.
pub fn make(root: &Path, options: &Options) -> Result<Vec<PathBuf>, String> {
    let tool = MATURIN.path(root)?;
    let program = program::of(root, options)?;
    let folder = root.join("target/package/wheel");
    create_empty(&folder)?;
    let stripped = folder.join("evenkeel");
    let mut strip = Command::new("objcopy");
    run::status(strip.arg("--strip-debug").arg(&program).arg(&stripped))?;
    let cargo = built_already(root, &folder, &stripped)?;
    let mut maturin = Command::new(tool);
    maturin.current_dir(root.join(SOURCES)).args(["build", "--release", "--locked", "--out"]);
    maturin.arg(folder.join("out"));
    maturin.env("CARGO", &cargo).env("PATH", program::with_folder_of(&cargo));
    maturin.env("SOURCE_DATE_EPOCH", program::epoch(root));
    run::status(&mut maturin)?;
    let made = files_with_ending(&folder.join("out"), ".whl")?;
    made.iter().map(|file| copied(file, &options.into)).collect()
}

fn copied(file: &Path, into: &Path) -> Result<PathBuf, String> {
    let path = into.join(file.file_name().unwrap_or_default());
    std::fs::copy(file, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Writes a script that maturin runs as cargo, and returns its path. It reports the program as just
/// built, so that all packages of a release have the same bytes; other verbs are those of cargo.
fn built_already(root: &Path, folder: &Path, program: &Path) -> Result<PathBuf, String> {
    let id = run::output(run::cargo(root, &["pkgid", "--package", "evenkeel"]).arg("--offline"))?;
    let message = json!({
        "reason": "compiler-artifact",
        "package_id": id.trim(),
        "manifest_path": root.join("Cargo.toml"),
        "target": {
            "kind": ["bin"],
            "crate_types": ["bin"],
            "name": "evenkeel",
            "src_path": root.join("src/main.rs"),
            "edition": "2024",
        },
        "profile": {
            "opt_level": "3",
            "debuginfo": 0,
            "debug_assertions": false,
            "overflow_checks": false,
            "test": false,
        },
        "features": [],
        "filenames": [program],
        "executable": program,
        "fresh": true,
    });
    let reported = folder.join("message.json");
    write(&reported, &format!("{message}\n"))?;
    // By its path: the script itself is the first cargo on maturin's PATH.
    let cargo = std::env::var_os("CARGO").map(PathBuf::from).or_else(|| run::find("cargo"));
    let cargo = cargo.ok_or("package: there is no cargo on PATH")?;
    let bin = folder.join("bin");
    create_empty(&bin)?;
    let script = bin.join("cargo");
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in\nrustc | build) exec cat '{}' ;;\n*) exec '{cargo}' \"$@\" ;;\n\
         esac\n",
        reported.display(),
        cargo = cargo.display()
    );
    write(&script, &text)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, executable)
        .map_err(|error| format!("{}: {error}", script.display()))?;
    Ok(script)
}
