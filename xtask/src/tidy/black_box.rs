//! The tests in the folder tests/ use the built programs and real clients: they link no crate of
//! this workspace.

use super::Fault;
use super::rust_text::RustText;

/// Checks one file of the tree.
pub fn check(path: &str, text: &str) -> Vec<Fault> {
    if !path.starts_with("tests/") || !path.ends_with(".rs") {
        return Vec::new();
    }
    let code = RustText::new(text).code;
    let uses_ours = |line: &str| line.contains("evenkeel_") || line.contains("evenkeel::");
    let lines = code.lines().zip(1..).filter(|(line, _)| uses_ours(line));
    let message = "uses a crate of ours: drive the binary, CARGO_BIN_EXE_evenkeel, instead";
    lines.map(|(_, number)| Fault::new(path, number, message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_box_tests_link_nothing_of_ours() {
        let text = "//! A.\nuse evenkeel_wire::nbd;\n";
        assert_eq!(check("tests/a.rs", text)[0].line, 2);
        assert_eq!(check("crates/lab/src/a.rs", text), []);
        let text = "//! A.\n// evenkeel_wire\nlet a = env!(\"CARGO_BIN_EXE_evenkeel\");\n";
        assert_eq!(check("tests/a.rs", text), []);
    }
}
