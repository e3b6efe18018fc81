//! The allowed dependencies between crates: the arrows of docs/ARCHITECTURE.md, and no others.

use super::Fault;
use crate::run;
use serde_json::Value;
use std::path::Path;

/// A crate, the crates of this workspace that it may use, and the reason that is printed if it uses
/// another one.
const ALLOWED: [(&str, &[&str], &str); 23] = [
    (
        "evenkeel-core",
        &[],
        "core is the part that runs unchanged in the simulator: it uses nothing",
    ),
    ("evenkeel-wire", &["evenkeel-core"], "wire is bytes and meaning, nothing else"),
    ("evenkeel-iam", &[], "policies are decided without the things that they are about"),
    ("evenkeel-os", &["evenkeel-core"], "clocks and files return to their callers, and know none"),
    ("evenkeel-store", &["evenkeel-core", "evenkeel-os"], "a store knows blocks, not protocols"),
    (
        "evenkeel-engine",
        &["evenkeel-core", "evenkeel-os", "evenkeel-store", "evenkeel-wire"],
        "engine and control meet in wire::agent only",
    ),
    (
        "evenkeel-telemetry",
        &["evenkeel-core", "evenkeel-os", "evenkeel-wire"],
        "telemetry takes reports and ids, and knows neither the model nor the plane",
    ),
    (
        "evenkeel-tls",
        // Engine and store are for its benchmark.
        &["evenkeel-core", "evenkeel-engine", "evenkeel-os", "evenkeel-store", "evenkeel-wire"],
        "TLS is in front of the API and of a data plane, and knows both as sockets",
    ),
    (
        "evenkeel-control",
        &[
            "evenkeel-core",
            "evenkeel-iam",
            "evenkeel-os",
            "evenkeel-telemetry",
            "evenkeel-tls",
            "evenkeel-wire",
        ],
        "engine and control meet in wire::agent only",
    ),
    (
        "evenkeel-cluster",
        &[
            "evenkeel-client",
            "evenkeel-control",
            "evenkeel-core",
            "evenkeel-link",
            "evenkeel-os",
            "evenkeel-store",
            "evenkeel-telemetry",
            "evenkeel-tls",
            "evenkeel-wire",
        ],
        "a cluster is above the control plane, and knows data planes as agents",
    ),
    (
        "evenkeel-link",
        // Engine and store are for its tests, which run a real engine behind a socket.
        &[
            "evenkeel-core",
            "evenkeel-engine",
            "evenkeel-os",
            "evenkeel-store",
            "evenkeel-tls",
            "evenkeel-wire",
        ],
        "a link carries the agent's messages between the two, and knows neither",
    ),
    (
        "evenkeel-relay",
        // Engine and store are for its tests, which relay to real engines.
        &[
            "evenkeel-core",
            "evenkeel-engine",
            "evenkeel-link",
            "evenkeel-os",
            "evenkeel-store",
            "evenkeel-wire",
        ],
        "a relay passes NBD on, and knows its data plane as a socket",
    ),
    ("evenkeel-sim", &["evenkeel-core"], "the simulator runs core's own scheduler, and no shell"),
    ("evenkeel-pages", &["evenkeel-sim"], "a page has words and figures, and knows no answer"),
    (
        "evenkeel-planner",
        &["evenkeel-core", "evenkeel-pages", "evenkeel-sim", "evenkeel-wire"],
        "plans are made on core's own scheduler, in virtual time",
    ),
    (
        "evenkeel-client",
        &["evenkeel-core", "evenkeel-os", "evenkeel-sim", "evenkeel-store", "evenkeel-wire"],
        "a client knows the server by its API only",
    ),
    (
        "evenkeel-lab",
        // Cluster, control and telemetry are for its tests and benchmarks, which run whole servers.
        &[
            "evenkeel-client",
            "evenkeel-cluster",
            "evenkeel-control",
            "evenkeel-core",
            "evenkeel-engine",
            "evenkeel-os",
            "evenkeel-pages",
            "evenkeel-sim",
            "evenkeel-store",
            "evenkeel-telemetry",
            "evenkeel-wire",
        ],
        "lab measures any server, and knows ours by its API",
    ),
    (
        "evenkeel-autopilot",
        &[
            "evenkeel-client",
            "evenkeel-control",
            "evenkeel-core",
            "evenkeel-lab",
            "evenkeel-os",
            "evenkeel-planner",
            "evenkeel-sim",
            "evenkeel-telemetry",
            "evenkeel-wire",
        ],
        "the agent knows servers by their API; the model is the API of its simulated world",
    ),
    (
        "evenkeel-cli",
        &[
            "evenkeel-client",
            "evenkeel-control",
            "evenkeel-engine",
            "evenkeel-lab",
            "evenkeel-os",
            "evenkeel-sim",
            "evenkeel-store",
        ],
        "cli has what the programs share, and no verb of theirs",
    ),
    (
        "evenkeel-server",
        &[
            "evenkeel-cli",
            "evenkeel-client",
            "evenkeel-cluster",
            "evenkeel-control",
            "evenkeel-core",
            "evenkeel-engine",
            "evenkeel-link",
            "evenkeel-os",
            "evenkeel-relay",
            "evenkeel-sim",
            "evenkeel-store",
            "evenkeel-telemetry",
            "evenkeel-tls",
            "evenkeel-wire",
        ],
        "server puts the parts of a running server together, and knows no verb",
    ),
    ("evenkeel-bench", EVERY_LIBRARY, "the benchmarks may use every library"),
    ("evenkeel", EVERY_LIBRARY, "the binary may use every library, and no benchmark"),
    ("xtask", &[], "scripts drive the product from outside"),
];

const EVERY_LIBRARY: &[&str] = &[
    "evenkeel-autopilot",
    "evenkeel-cli",
    "evenkeel-client",
    "evenkeel-cluster",
    "evenkeel-control",
    "evenkeel-core",
    "evenkeel-engine",
    "evenkeel-iam",
    "evenkeel-lab",
    "evenkeel-link",
    "evenkeel-os",
    "evenkeel-pages",
    "evenkeel-planner",
    "evenkeel-relay",
    "evenkeel-server",
    "evenkeel-sim",
    "evenkeel-store",
    "evenkeel-telemetry",
    "evenkeel-tls",
    "evenkeel-wire",
];

/// Compares with cargo's dependencies of every kind: a dev-dependency counts as much.
pub fn check(root: &Path) -> Result<Vec<Fault>, String> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let text = run::output(&mut run::cargo(root, &arguments))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(faults(&metadata))
}

fn faults(metadata: &Value) -> Vec<Fault> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed, reason)) = ALLOWED.iter().find(|(of, ..)| *of == name) else {
            let message = "a crate without a row in xtask/src/tidy/edges.rs: say what it may use";
            faults.push(Fault::new(name, 0, message));
            continue;
        };
        for dependency in package["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
            let used = dependency["name"].as_str().unwrap_or_default();
            if ours.contains(&used) && !allowed.contains(&used) && used != name {
                let message = format!("may not depend on {used}: {reason}");
                faults.push(Fault::new(name, 0, message));
            }
            // cargo calls a normal dependency's kind null.
            if name == "evenkeel-core" && dependency["kind"].is_null() {
                let message = format!("may not depend on {used}: core has no dependencies");
                faults.push(Fault::new(name, 0, message));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({"name": name, "dependencies": dependencies})
    }

    fn messages(packages: &[Value]) -> Vec<String> {
        faults(&json!({"packages": packages})).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_arrows_of_the_architecture_are_legal() {
        let packages = [
            package("evenkeel-core", &[("toml", Some("build")), ("proptest", Some("dev"))]),
            package("evenkeel-wire", &[("evenkeel-core", None), ("sha2", None)]),
            package("evenkeel-store", &[("evenkeel-core", None)]),
            package("evenkeel-engine", &[("evenkeel-wire", None), ("evenkeel-store", None)]),
            package("evenkeel-telemetry", &[("evenkeel-wire", None)]),
            package("evenkeel-control", &[("evenkeel-telemetry", None)]),
            package("evenkeel-sim", &[("evenkeel-core", None)]),
            package("evenkeel-client", &[("evenkeel-wire", None), ("evenkeel-sim", None)]),
            package("evenkeel-lab", &[("evenkeel-engine", None), ("evenkeel-control", None)]),
            package("evenkeel-cli", &[("evenkeel-lab", None)]),
            package("evenkeel-bench", &[("evenkeel-lab", None), ("evenkeel-cli", None)]),
            package("evenkeel", &[("evenkeel-lab", None), ("evenkeel-cli", None)]),
            package("xtask", &[("serde_json", None)]),
        ];
        assert_eq!(messages(&packages), [""; 0]);
    }

    #[test]
    fn unlisted_dependency_is_a_fault_with_the_reason() {
        let packages = [
            package("evenkeel-core", &[("libc", None)]),
            package("evenkeel-engine", &[("evenkeel-control", Some("dev"))]),
            package("evenkeel-control", &[("evenkeel-engine", None)]),
            package("evenkeel-client", &[("evenkeel-control", None)]),
            package("evenkeel", &[("evenkeel-bench", None)]),
            package("evenkeel-bench", &[]),
            package("evenkeel-utils", &[]),
        ];
        assert_eq!(
            messages(&packages),
            [
                "evenkeel-core: may not depend on libc: core has no dependencies",
                "evenkeel-engine: may not depend on evenkeel-control: \
                 engine and control meet in wire::agent only",
                "evenkeel-control: may not depend on evenkeel-engine: \
                 engine and control meet in wire::agent only",
                "evenkeel-client: may not depend on evenkeel-control: \
                 a client knows the server by its API only",
                "evenkeel: may not depend on evenkeel-bench: \
                 the binary may use every library, and no benchmark",
                "evenkeel-utils: a crate without a row in xtask/src/tidy/edges.rs: \
                 say what it may use",
            ]
        );
    }
}
