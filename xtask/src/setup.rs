//! `cargo x setup`: installs the missing packages for a purpose, which is the tests unless another
//! one is named.

use crate::{go, guest, package, run};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The purpose of an installation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// `make demo`, which waits for the installation: as few packages as possible.
    Demo,
    /// The commands in README.md and docs/start.md for a server of `make serve`.
    Clients,
    /// `make bench`: the programs of the published experiments.
    Bench,
    /// Every test: all packages.
    Tests,
}

/// The packages of [`Purpose::Demo`].
const DEMO: [&str; 1] = ["fio"];

/// The packages of [`Purpose::Clients`]. Its aws-cli is in the Python environment.
const CLIENTS: [&str; 3] = ["fio", "libnbd-bin", VENV];

/// The packages of [`Purpose::Bench`].
const BENCH: [&str; 17] = [
    "fio",
    "libnbd-bin",
    "fuse3",
    "xfsprogs",
    "btrfs-progs",
    "sysbench",
    "sqlite3",
    "fsmark",
    "dbench",
    "postmark",
    "apache2-bin",
    "apache2-utils",
    "tar",
    "bzip2",
    POSTGRES,
    "mariadb-server-core",
    "mariadb-client-core",
];

impl Purpose {
    fn needs(self, package: &str) -> bool {
        match self {
            Self::Demo => DEMO.contains(&package),
            Self::Clients => CLIENTS.contains(&package),
            Self::Bench => BENCH.contains(&package),
            Self::Tests => true,
        }
    }
}

/// A requirement, and the Debian package that provides it.
struct Need {
    /// A program on `PATH`, or a Python module of the system's interpreter.
    what: What,
    package: &'static str,
}

#[derive(Clone, Copy)]
enum What {
    Program(&'static str),
    PythonModule(&'static str),
    /// A program of PostgreSQL, which Debian installs in a folder for each version.
    Postgres(&'static str),
}

/// Debian 12's packages; qemu-storage-daemon is in qemu-system-common, nbdsh in python3-libnbd.
const NEEDS: [Need; 47] = [
    Need { what: What::Program("fio"), package: "fio" },
    Need { what: What::Program("nbdinfo"), package: "libnbd-bin" },
    Need { what: What::Program("nbdcopy"), package: "libnbd-bin" },
    Need { what: What::Program("nbdfuse"), package: "libnbd-bin" },
    Need { what: What::Program("fusermount3"), package: "fuse3" },
    Need { what: What::Program("mkfs.xfs"), package: "xfsprogs" },
    Need { what: What::Program("mkfs.btrfs"), package: "btrfs-progs" },
    Need { what: What::Program("sysbench"), package: "sysbench" },
    Need { what: What::Program("sqlite3"), package: "sqlite3" },
    Need { what: What::Program("fs_mark"), package: "fsmark" },
    Need { what: What::Program("dbench"), package: "dbench" },
    Need { what: What::Program("postmark"), package: "postmark" },
    Need { what: What::Program("apache2"), package: "apache2-bin" },
    Need { what: What::Program("ab"), package: "apache2-utils" },
    Need { what: What::Program("tar"), package: "tar" },
    Need { what: What::Program("bzip2"), package: "bzip2" },
    Need { what: What::Postgres("initdb"), package: POSTGRES },
    Need { what: What::Postgres("postgres"), package: POSTGRES },
    Need { what: What::Postgres("pgbench"), package: POSTGRES },
    Need { what: What::Program("mariadbd"), package: "mariadb-server-core" },
    Need { what: What::Program("mariadb-install-db"), package: "mariadb-server-core" },
    Need { what: What::Program("mariadb"), package: "mariadb-client-core" },
    Need { what: What::Program("nbdsh"), package: "python3-libnbd" },
    Need { what: What::PythonModule("nbd"), package: "python3-libnbd" },
    Need { what: What::Program("nbdkit"), package: "nbdkit" },
    Need { what: What::Program("qemu-img"), package: "qemu-utils" },
    Need { what: What::Program("qemu-io"), package: "qemu-utils" },
    Need { what: What::Program("qemu-storage-daemon"), package: "qemu-system-common" },
    Need { what: What::Program("qemu-system-x86_64"), package: "qemu-system-x86" },
    Need { what: What::Program("busybox"), package: "busybox-static" },
    Need { what: What::Program("nbd-client"), package: "nbd-client" },
    Need { what: What::Program("faketime"), package: "faketime" },
    Need { what: What::Program("ceph"), package: "ceph-common" },
    Need { what: What::Program("ceph-mon"), package: "ceph-mon" },
    Need { what: What::Program("ceph-mgr"), package: "ceph-mgr" },
    Need { what: What::Program("ceph-osd"), package: "ceph-osd" },
    Need { what: What::Program("etcd"), package: "etcd-server" },
    Need { what: What::Program("etcdctl"), package: "etcd-client" },
    Need { what: What::Program("openssl"), package: "openssl" },
    Need { what: What::Program("promtool"), package: "prometheus" },
    Need { what: What::Program("debootstrap"), package: "debootstrap" },
    Need { what: What::Program("systemd-nspawn"), package: "systemd-container" },
    Need { what: What::Program("umoci"), package: "umoci" },
    Need { what: What::Program("zsh"), package: "zsh" },
    Need { what: What::Program("fish"), package: "fish" },
    Need { what: What::PythonModule("venv"), package: VENV },
    Need { what: What::PythonModule("ensurepip"), package: VENV },
];

/// Debian's package of the newest version. It depends on the clients and on pgbench.
const POSTGRES: &str = "postgresql";

/// Debian's package for creating Python environments.
const VENV: &str = "python3-venv";

/// Debian's folder of the versions of PostgreSQL.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";

/// Attempts of an apt-get call. Each attempt retries its downloads as well.
const ATTEMPTS_MAX: u32 = 3;

/// The interpreter with Debian's packages: another one that is first on `PATH` lacks `nbd`.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// Installs the missing packages. Another call is cheap: it does not use the network.
pub fn run(root: &Path, purpose: Purpose) -> Result<(), String> {
    let missing = missing_packages(purpose, is_there);
    if !missing.is_empty() {
        println!("setup: installing {}", missing.join(" "));
        install(&missing)?;
        if missing.contains(&POSTGRES) {
            println!(
                "setup: Debian's {POSTGRES} makes a cluster \"main\" and may have started it; \
                 nothing here uses it: pg_lsclusters shows it, pg_dropcluster --stop removes it"
            );
        }
        let still = missing_packages(purpose, is_there);
        if !still.is_empty() {
            let still = still.join(" ");
            return Err(format!("installed, yet what {still} should bring is not found on PATH"));
        }
    }
    if matches!(purpose, Purpose::Clients | Purpose::Tests) {
        python_environment(root)?;
    }
    if purpose == Purpose::Tests {
        go::client(root)?;
        guest::kernel(root)?;
        package::install(root)?;
    }
    Ok(())
}

/// Returns whether an installation of what the tests need may ask for a password.
pub fn may_ask() -> bool {
    let is_missing = || !missing_packages(Purpose::Tests, is_there).is_empty();
    std::io::stdin().is_terminal() && right() == Right::Sudo && is_missing()
}

/// Returns the packages of missing requirements of a purpose, without duplicates.
fn missing_packages(purpose: Purpose, is_there: impl Fn(What) -> bool) -> Vec<&'static str> {
    let needs = NEEDS.iter().filter(|need| purpose.needs(need.package));
    let mut packages: Vec<&str> =
        needs.filter(|need| !is_there(need.what)).map(|need| need.package).collect();
    packages.dedup();
    packages
}

fn is_there(what: What) -> bool {
    match what {
        // Programs for root are not on the `PATH` of other users.
        What::Program(name) => {
            run::find(name).is_some() || Path::new("/usr/sbin").join(name).is_file()
        }
        What::Postgres(name) => run::find(name).is_some() || has_version_with(name),
        What::PythonModule(name) => {
            let import = format!("import {name}");
            let output = Command::new(python()).args(["-c", &import]).output();
            output.is_ok_and(|output| output.status.success())
        }
    }
}

/// Returns whether a version of PostgreSQL has this program.
fn has_version_with(program: &str) -> bool {
    let versions = std::fs::read_dir(POSTGRES_FOLDER).into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin").join(program)).any(|file| file.is_file())
}

fn python() -> PathBuf {
    let system = PathBuf::from(SYSTEM_PYTHON);
    if system.is_file() { system } else { PathBuf::from("python3") }
}

/// The way in which this user may install packages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Right {
    Root,
    Sudo,
    None,
}

/// Returns the way in which this user may install packages.
fn right() -> Right {
    if is_root() {
        Right::Root
    } else if run::find("sudo").is_some() {
        Right::Sudo
    } else {
        Right::None
    }
}

fn install(packages: &[&str]) -> Result<(), String> {
    let right = right();
    if run::find("apt-get").is_none() || right == Right::None {
        return Err(by_hand(packages, run::find("apt-get").is_some()));
    }
    // The lists are updated first: a fresh image has none, and old ones name files that are gone.
    let update = || apt_get(right, &["update"]);
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    let install = || apt_get(right, &arguments);
    repeat("apt-get update", update)?;
    repeat("apt-get install", install)
        .map_err(|error| format!("{error}\n{}", by_hand(packages, true)))
}

/// Returns the instructions for a user that may not or cannot install packages.
fn by_hand(packages: &[&str], has_apt: bool) -> String {
    let packages = packages.join(" ");
    if has_apt {
        format!(
            "run this as root, then try again:\n  \
             apt-get install --no-install-recommends {packages}"
        )
    } else {
        format!("there is no apt-get here; install what Debian calls: {packages}")
    }
}

/// Repeats a command at once if it fails: apt-get itself waits for its lock and between downloads.
fn repeat(name: &str, mut command: impl FnMut() -> Command) -> Result<(), String> {
    let mut last = String::new();
    for attempt in 1..=ATTEMPTS_MAX {
        match run::status(&mut command()) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
        eprintln!("setup: {name}: attempt {attempt} of {ATTEMPTS_MAX} failed");
    }
    Err(last)
}

fn apt_get(right: Right, arguments: &[&str]) -> Command {
    let mut command = match right {
        Right::Sudo => Command::new("sudo"),
        Right::Root | Right::None => Command::new("apt-get"),
    };
    if right == Right::Sudo {
        // Without a terminal a password cannot be typed, so sudo fails at once instead of waiting
        // for it.
        if !std::io::stdin().is_terminal() {
            command.arg("-n");
        }
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    }
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-q", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300"]);
    command.args(arguments);
    command
}

/// Returns whether the kernel reports user 0, without a crate for one number.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("Uid:").and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
    })
}

/// Installs the AWS clients in a folder of their own, at the versions of xtask/requirements.txt.
fn python_environment(root: &Path) -> Result<(), String> {
    let folder = root.join("target/venv");
    let list = root.join("xtask/requirements.txt");
    let wanted = std::fs::read_to_string(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    // Written last, so that an interrupted environment is created again.
    let stamp = folder.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    println!("setup: Python environment in {}", folder.display());
    // The system's packages stay visible: `nbd` exists only as Debian's package.
    let mut create = Command::new(python());
    create.args(["-m", "venv", "--clear", "--system-site-packages"]).arg(&folder);
    run::status(&mut create)?;
    repeat("pip install", || {
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        // The list is complete: dsnap asks for an older urllib3, but does not use it itself.
        pip.args(["--retries", "5", "--timeout", "60", "--ignore-installed", "--no-deps", "-r"]);
        pip.arg(&list);
        pip
    })?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_package_is_named_once() {
        assert_eq!(missing_packages(Purpose::Tests, |_| true), [""; 0]);
        let only_nbd = |what| !matches!(what, What::Program("nbdinfo" | "nbdcopy"));
        assert_eq!(missing_packages(Purpose::Tests, only_nbd), ["libnbd-bin"]);
        assert_eq!(missing_packages(Purpose::Tests, |_| false).len(), 39);
    }

    #[test]
    fn each_purpose_installs_its_own_packages_only() {
        let installed = |purpose| missing_packages(purpose, |_| false);
        assert_eq!(installed(Purpose::Demo), ["fio"]);
        assert_eq!(installed(Purpose::Clients), CLIENTS);
        // In the order of all packages, so that a misspelt name is found.
        assert_eq!(installed(Purpose::Bench), BENCH);
    }

    #[test]
    fn missing_rights_give_the_command_to_type() {
        assert_eq!(
            by_hand(&["fio", "nbdkit"], true),
            "run this as root, then try again:\n  \
             apt-get install --no-install-recommends fio nbdkit"
        );
        assert!(by_hand(&["fio"], false).ends_with("install what Debian calls: fio"));
    }

    #[test]
    fn attempts_are_bounded() {
        let mut calls = 0;
        let result = repeat("false", || {
            calls += 1;
            Command::new("false")
        });
        assert!(result.is_err());
        assert_eq!(calls, ATTEMPTS_MAX);
    }
}
