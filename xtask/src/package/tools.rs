//! The programs that make and check packages, at fixed versions, in `target/tools`.

use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program from crates.io or PyPI, at a fixed version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
    pub from: Registry,
}

/// Where a tool is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registry {
    Crates,
    Python,
}

/// Makes Debian packages of the metadata in Cargo.toml.
pub const CARGO_DEB: Tool = Tool { name: "cargo-deb", version: "3.8.0", from: Registry::Crates };
/// Adds the list of dependencies to a program, where scanners read it.
pub const CARGO_AUDITABLE: Tool =
    Tool { name: "cargo-auditable", version: "0.7.7", from: Registry::Crates };
/// Checks licences, sources and duplicate versions of dependencies.
pub const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", from: Registry::Crates };
/// Makes wheels of programs.
pub const MATURIN: Tool = Tool { name: "maturin", version: "1.16.0", from: Registry::Python };

/// The folder of the tools, relative to the workspace's.
const FOLDER: &str = "target/tools";

/// Returns the folder of cargo's downloads.
pub fn cargo_home() -> PathBuf {
    std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    )
}

impl Tool {
    /// Returns the tool's path if it is installed.
    fn installed(&self, root: &Path) -> Option<PathBuf> {
        Some(self.folder(root).join("bin").join(self.name)).filter(|program| program.is_file())
    }

    /// Returns the folder of this version: one that this file does not name is another tool.
    fn folder(&self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(format!("{}-{}", self.name, self.version))
    }

    /// Returns the tool's path, and installs it first if it is missing.
    pub fn path(&self, root: &Path) -> Result<PathBuf, String> {
        if let Some(program) = self.installed(root) {
            return Ok(program);
        }
        let folder = self.folder(root);
        println!("installing {} {} in {}", self.name, self.version, folder.display());
        match self.from {
            Registry::Crates => self.install_crate(root, &folder)?,
            Registry::Python => self.install_wheel(&folder)?,
        }
        let missing = || format!("{}: installed, yet it is not there", folder.display());
        self.installed(root).ok_or_else(missing)
    }

    /// Builds without optimization: the tools run for seconds, and optimization takes minutes.
    fn install_crate(&self, root: &Path, folder: &Path) -> Result<(), String> {
        let words = ["install", "--debug", "--locked", "--quiet", self.name];
        let mut install = run::cargo(root, &words);
        install.args(["--version", self.version, "--root"]).arg(folder);
        // The profile of this workspace is not that of a tool.
        install.env("CARGO_TARGET_DIR", root.join("target/tools/build"));
        install.env("CARGO_PROFILE_DEV_DEBUG", "none");
        run::status(&mut install)
    }

    fn install_wheel(&self, folder: &Path) -> Result<(), String> {
        run::status(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        run::status(pip.arg(format!("{}=={}", self.name, self.version)))
    }
}
