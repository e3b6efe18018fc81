//! The binaries of tests. Cargo builds them, and reports their paths and sources.

use crate::run;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The resources that a binary's tests need, which decide what may run beside it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// Processor time: the tests measure no times. Such binaries run beside others, with tests on
    /// all cores, and use what the others leave.
    Processor,
    /// A share: the tests start servers and clients and wait for them, with a fifth of a core on
    /// average. Several binaries run at once, with one test each. Tests that must not run beside
    /// others take a lock of the machine (`tests/support/machine.rs`).
    Share,
    /// Time: the tests wait for seconds to pass, with a tenth of a core on average, and each has
    /// servers of its own. Such binaries run beside the others, with several tests each.
    Time,
    /// A turn: most of the tests wait until no other test of rates runs. One such binary at once
    /// runs beside the others, since two of them would wait for each other.
    Turn,
    /// Quiet: the tests judge low rates, which a pause of the machine disturbs. Such a binary runs
    /// after all others, with two tests at once; those that run beside no other take a lock.
    Quiet,
    /// The whole machine: measurements are not judged if others use a tenth of the processors.
    Everything,
}

/// Sources of tests that need more than processor time, by the beginnings of their paths. The first
/// match counts.
const NEEDS: [(&str, Needs); 32] = [
    ("tests/prove.rs", Needs::Quiet),
    ("crates/bench/tests/trust.rs", Needs::Everything),
    ("tests/suites.rs", Needs::Everything),
    ("tests/faults.rs", Needs::Turn),
    ("tests/figures.rs", Needs::Turn),
    ("tests/promise.rs", Needs::Turn),
    ("tests/cluster.rs", Needs::Time),
    ("tests/cluster_faults.rs", Needs::Time),
    ("tests/durability.rs", Needs::Time),
    ("tests/export.rs", Needs::Time),
    ("tests/migrate.rs", Needs::Time),
    ("tests/plan_aws.rs", Needs::Time),
    ("tests/snapshots.rs", Needs::Time),
    ("tests/store.rs", Needs::Time),
    ("tests/plan/", Needs::Processor),
    ("tests/", Needs::Share),
    ("crates/autopilot/tests/host/", Needs::Time),
    ("crates/control/src/", Needs::Processor),
    ("crates/control/", Needs::Time),
    ("crates/engine/", Needs::Share),
    ("crates/link/", Needs::Share),
    ("crates/relay/tests/front/", Needs::Time),
    ("crates/relay/", Needs::Share),
    ("crates/store/src/", Needs::Processor),
    ("crates/store/tests/crashes.rs", Needs::Processor),
    ("crates/store/tests/full.rs", Needs::Processor),
    ("crates/store/tests/snapshot_crashes.rs", Needs::Processor),
    ("crates/store/", Needs::Share),
    ("crates/telemetry/", Needs::Share),
    ("crates/bench/tests/real_fio.rs", Needs::Share),
    ("crates/lab/tests/etcd.rs", Needs::Time),
    ("crates/lab/tests/rbd.rs", Needs::Time),
];

/// One binary of tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binary {
    /// Its source, relative to the workspace's folder.
    pub source: String,
    /// The arguments of `cargo test` that run it alone.
    pub selection: String,
    pub executable: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    pub folder: PathBuf,
}

impl Binary {
    pub fn needs(&self) -> Needs {
        let row = NEEDS.iter().find(|(beginning, _)| self.source.starts_with(beginning));
        row.map_or(Needs::Processor, |(_, needs)| *needs)
    }
}

/// Builds all test binaries of the workspace with cargo, and returns them, the slow ones first.
pub fn build(root: &Path) -> Result<Vec<Binary>, String> {
    let words = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let messages = run::output(&mut run::cargo(root, &words))?;
    let mut binaries: Vec<Binary> =
        messages.lines().filter_map(|line| binary(root, line)).collect();
    // Cargo reports them as they are built, in a different order each time. Those of the whole
    // program come first, as they take longest: short ones fill the lanes at the end.
    binaries.sort_by(|a, b| b.source.cmp(&a.source));
    if binaries.is_empty() {
        Err("cargo has built no binary of tests".to_owned())
    } else {
        Ok(binaries)
    }
}

/// Returns the binary that one of cargo's messages reports, if any.
fn binary(root: &Path, message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let name = target["name"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let source = Path::new(target["src_path"].as_str()?);
    let kind = match target["kind"][0].as_str()? {
        "lib" => "--lib".to_owned(),
        kind => format!("--{kind} {name}"),
    };
    Some(Binary {
        source: source.strip_prefix(root).unwrap_or(source).to_string_lossy().into_owned(),
        selection: format!("-p {} {kind}", package(message["package_id"].as_str()?)),
        executable: message["executable"].as_str()?.into(),
        folder: manifest.parent()?.to_path_buf(),
    })
}

/// Returns the package's name in its id: "path+file:///a/core#evenkeel-core@0.1.0", or
/// "path+file:///a/xtask#0.1.0" if its folder has the same name.
fn package(id: &str) -> &str {
    let (place, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_message_is_parsed_into_a_binary() {
        let message = |kind: &str, id: &str, source: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/{id}",
                "manifest_path":"/w/crates/core/Cargo.toml","target":{{"kind":["{kind}"],
                "name":"qos","src_path":"/w/{source}"}},"profile":{{"test":{is_test}}},
                "executable":"/w/target/debug/deps/qos-1"}}"#
            )
        };
        let root = Path::new("/w");
        let text = message("test", "crates/core#evenkeel-core@0.1.0", "crates/core/a.rs", true);
        let found = binary(root, &text).unwrap();
        assert_eq!(found.selection, "-p evenkeel-core --test qos");
        assert_eq!(found.source, "crates/core/a.rs");
        assert_eq!(found.folder, Path::new("/w/crates/core"));
        let text = message("lib", "xtask#0.1.0", "xtask/src/lib.rs", true);
        assert_eq!(binary(root, &text).unwrap().selection, "-p xtask --lib");
        assert_eq!(binary(root, &message("lib", "xtask#0.1.0", "a.rs", false)), None);
        assert_eq!(binary(root, "not JSON"), None);
    }

    /// The sources in the table exist: a renamed one would count as needing processor time only.
    #[test]
    fn sources_in_the_table_of_needs_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (beginning, _) in NEEDS {
            assert!(root.join(beginning).exists(), "{beginning}");
        }
        let needs = |source: &str| {
            let executable = PathBuf::new();
            let folder = PathBuf::new();
            let source = source.to_owned();
            Binary { source, selection: String::new(), executable, folder }.needs()
        };
        assert_eq!(needs("tests/prove.rs"), Needs::Quiet);
        assert_eq!(needs("tests/promise.rs"), Needs::Turn);
        assert_eq!(needs("tests/promises.rs"), Needs::Share);
        assert_eq!(needs("crates/relay/tests/front/main.rs"), Needs::Time);
        assert_eq!(needs("crates/relay/src/lib.rs"), Needs::Share);
        assert_eq!(needs("crates/core/src/lib.rs"), Needs::Processor);
    }
}
