//! The simulator, the planner, its pages, policies and a node's membership are pure: they use no
//! files, threads, processes, sockets or clocks. (core has no `std` at all, which the compiler
//! checks.)

use super::Fault;
use super::rust_text::RustText;

/// The folders that are pure.
const PURE: [&str; 5] = [
    "crates/iam/src/",
    "crates/sim/src/",
    "crates/planner/src/",
    "crates/pages/src/",
    "crates/cluster/src/membership/",
];

/// Modules of `std` that they must not use, their unit tests included.
const FORBIDDEN: [&str; 5] = ["std::fs", "std::process", "std::thread", "std::net", "std::time"];

/// Checks one file of the tree.
pub fn check(path: &str, text: &str) -> Vec<Fault> {
    let is_in = |folder: &&&str| path.starts_with(**folder);
    let Some(folder) = PURE.iter().find(is_in).filter(|_| path.ends_with(".rs")) else {
        return Vec::new();
    };
    let code = RustText::new(text).code;
    let mut faults = Vec::new();
    for (line, number) in code.lines().zip(1..) {
        for module in FORBIDDEN {
            if uses(line, module) {
                let message =
                    format!("uses {module}: {folder} is pure; its caller gives what it needs");
                faults.push(Fault::new(path, number, message));
            }
        }
    }
    faults
}

/// Returns whether the line names the module, alone or in a list: `std::{fs, mem}`.
fn uses(line: &str, module: &str) -> bool {
    let whole = |at: usize, length: usize| {
        let after = line[at + length..].chars().next();
        !after.is_some_and(|next| next.is_alphanumeric() || next == '_')
    };
    if line.match_indices(module).any(|(at, found)| whole(at, found.len())) {
        return true;
    }
    let name = module.trim_start_matches("std::");
    line.split_once("std::{").is_some_and(|(_, list)| {
        list.split([',', '{', '}']).any(|item| item.trim().split("::").next() == Some(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_has_no_files_threads_or_clocks() {
        let faults = |text: &str| check("crates/sim/src/a.rs", text).len();
        assert_eq!(faults("use std::fs;\nuse std::fmt;\n"), 1);
        assert_eq!(faults("use std::{fmt, thread};\n"), 1);
        assert_eq!(faults("let now = std::time::Instant::now();\n"), 1);
        assert_eq!(faults("// std::fs\nuse std::path::Path;\nuse std::fsx;\n"), 0);
        assert_eq!(check("crates/planner/src/a/b.rs", "use std::fs;\n").len(), 1);
        let membership = "crates/cluster/src/membership/a.rs";
        assert_eq!(check(membership, "use std::time::Instant;\n").len(), 1);
        assert_eq!(check("crates/cluster/src/nodes.rs", "use std::thread;\n"), []);
        assert_eq!(check("crates/lab/src/a.rs", "use std::fs;\n"), []);
    }
}
