//! `cargo x package`: the packages of a release.

mod bare;
mod deb;
mod image;
mod program;
mod sbom;
mod tools;
mod wheel;

use std::path::{Path, PathBuf};

/// The packages that the verb makes, and the checks before a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Deb,
    Wheel,
    Image,
    Sbom,
    Deny,
    Reproducible,
}

/// A kind of package, its program and its folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    kind: Kind,
    /// A program that is built; `None` builds it.
    program: Option<PathBuf>,
    /// Whether the program is built without optimization.
    is_debug: bool,
    /// The folder for the packages.
    into: PathBuf,
    /// The profile of builds that are compared.
    profile: String,
}

/// Installs what the tests of packages need with every change.
pub fn install(root: &Path) -> Result<(), String> {
    tools::CARGO_DEB.path(root).map(drop)
}

/// Installs what only their tests in `cargo x ci --full` need.
pub fn install_for_full(root: &Path) -> Result<(), String> {
    tools::MATURIN.path(root)?;
    bare::debian(root)
}

const USAGE: &str = "package: expected deb, wheel, image or sbom, then perhaps --debug, or \
                     --program FILE for a program that is built, and --into FOLDER; or deny; or \
                     reproducible, then perhaps --profile NAME";

/// The profile of compared builds, unless another one is named: the one that compiles in the
/// shortest time.
const PROFILE: &str = "quick";

/// The folder of packages, relative to the workspace's.
const FOLDER: &str = "target/package";

/// Makes a package, and prints its files.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let options = parsed(root, words)?;
    create(&options.into)?;
    let files = match options.kind {
        Kind::Deb => deb::make(root, &options)?,
        Kind::Wheel => wheel::make(root, &options)?,
        Kind::Image => image::make(root, &options)?,
        Kind::Sbom => sbom::make(root, &options)?,
        Kind::Deny => return check_dependencies(root),
        Kind::Reproducible => return program::check_reproducible(root, &options.profile),
    };
    for file in files {
        let bytes = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?.len();
        println!("{} ({} KiB)", file.display(), bytes.div_ceil(1 << 10));
    }
    Ok(())
}

/// Checks that two builds in different folders have the same bytes, in the default profile.
pub fn check_reproducible(root: &Path) -> Result<(), String> {
    program::check_reproducible(root, PROFILE)
}

/// Checks licences, duplicate versions and sources of dependencies, and whether an advisory names
/// one of them, if the data of advisories is on this machine. It installs cargo-deny.
pub fn check_dependencies(root: &Path) -> Result<(), String> {
    let mut check = std::process::Command::new(tools::CARGO_DENY.path(root)?);
    check.current_dir(root).args(["--offline", "check", "--deny", "warnings"]);
    check.args(["licenses", "bans", "sources"]);
    if tools::cargo_home().join("advisory-dbs").is_dir() {
        check.arg("advisories");
    } else {
        println!("no data of advisories on this machine: `cargo deny fetch` downloads it");
    }
    crate::run::status(&mut check)
}

fn parsed(root: &Path, words: &[&str]) -> Result<Options, String> {
    let (first, rest) = words.split_first().ok_or(USAGE)?;
    let kind = match *first {
        "deb" => Kind::Deb,
        "wheel" => Kind::Wheel,
        "image" => Kind::Image,
        "sbom" => Kind::Sbom,
        "deny" => Kind::Deny,
        "reproducible" => Kind::Reproducible,
        _ => return Err(USAGE.to_owned()),
    };
    let mut options = Options {
        kind,
        program: None,
        is_debug: false,
        into: root.join(FOLDER),
        profile: PROFILE.to_owned(),
    };
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        let makes = !matches!(kind, Kind::Deny | Kind::Reproducible);
        let mut value = || rest.next().copied().ok_or(USAGE);
        match *word {
            "--debug" if makes => options.is_debug = true,
            "--program" if makes => options.program = Some(value()?.into()),
            "--into" if makes => options.into = value()?.into(),
            "--profile" if kind == Kind::Reproducible => options.profile = value()?.to_owned(),
            _ => return Err(USAGE.to_owned()),
        }
    }
    match options {
        Options { program: Some(_), is_debug: true, .. } => Err(USAGE.to_owned()),
        options => Ok(options),
    }
}

fn create(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Removes a folder of an earlier run, and creates it again.
fn create_empty(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => create(folder),
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the files in a folder whose names end so, in the order of their names.
fn files_with_ending(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_verb_are_read() {
        let root = Path::new("/w");
        let wheel = Options {
            kind: Kind::Wheel,
            program: Some("a".into()),
            is_debug: false,
            into: "/w/target/package".into(),
            profile: "quick".to_owned(),
        };
        assert_eq!(parsed(root, &["wheel", "--program", "a"]), Ok(wheel.clone()));
        let deb = Options {
            kind: Kind::Deb,
            program: None,
            is_debug: true,
            into: "b".into(),
            ..wheel.clone()
        };
        assert_eq!(parsed(root, &["deb", "--debug", "--into", "b"]), Ok(deb));
        let twice = Options {
            kind: Kind::Reproducible,
            program: None,
            profile: "release".to_owned(),
            ..wheel
        };
        assert_eq!(parsed(root, &["reproducible", "--profile", "release"]), Ok(twice));
        for wrong in [
            &[][..],
            &["rpm"],
            &["deb", "--into"],
            &["deb", "--debug", "--program", "a"],
            &["deb", "--profile", "quick"],
            &["deny", "--debug"],
        ] {
            assert_eq!(parsed(root, wrong), Err(USAGE.to_owned()), "{wrong:?}");
        }
    }
}
