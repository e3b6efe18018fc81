//! `cargo x tidy`: the rules of this project that neither rustfmt nor clippy can check.
//!
//! Each rule is one file: a pure function from text to [`Fault`]s, with its tests. This module
//! passes the tree's files to them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

mod black_box;
mod dialect;
mod edges;
mod kept_for_full;
mod length;
mod links;
mod pure;
pub mod reference;
mod rust_text;
mod source;
mod specification;
mod unused;

/// One violation of a rule at one place. Line 0 is the whole file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The file, relative to the workspace's folder.
    pub path: String,
    /// Counted from 1.
    pub line: usize,
    /// The rule, the value, and a remedy.
    pub message: String,
}

impl Fault {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// The text files of the work tree by their paths with forward slashes.
pub type Tree = BTreeMap<String, String>;

/// Checks all rules, and prints every fault.
pub fn run(root: &Path) -> Result<(), String> {
    let tree = read_tree(root)?;
    let allowed = tree.get(length::ALLOWED_PATH).map_or("", String::as_str);
    let mut faults = edges::check(root)?;
    faults.extend(length::check(&tree, allowed));
    let habits = tree.get(dialect::ALLOWED_PATH).map_or("", String::as_str);
    faults.extend(dialect::check(&tree, habits));
    for (path, text) in &tree {
        faults.extend(source::check(path, text));
        faults.extend(black_box::check(path, text));
        faults.extend(pure::check(path, text));
        faults.extend(links::check(path, text, &tree, |target| root.join(target).exists()));
    }
    let ignored = kept_for_full::ignored(&tree);
    faults.extend(kept_for_full::check(&tree, &ignored));
    faults.extend(specification::check(&tree, &ignored));
    faults.extend(specification::check_threats(&tree));
    faults.extend(unused::check(&tree));
    faults.extend(reference::check(root, &tree));
    for fault in &faults {
        println!("{fault}");
    }
    match faults.len() {
        0 => {
            println!("tidy: {} files, no fault", tree.len());
            Ok(())
        }
        1 => Err("tidy: 1 fault".to_owned()),
        count => Err(format!("tidy: {count} faults")),
    }
}

/// Folders without files that are written by hand.
const SKIPPED: [&str; 6] =
    ["target", ".git", ".venv", "evenkeel-data", "node_modules", "proptest-regressions"];

/// Endings of the files that rules check.
const TEXT_ENDINGS: [&str; 8] = ["rs", "md", "toml", "py", "sh", "fio", "1", "txt"];

fn read_tree(root: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let shown = root.join(&folder);
        let entries =
            std::fs::read_dir(&shown).map_err(|error| format!("{}: {error}", shown.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", shown.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            let kind = entry.file_type().map_err(|error| format!("{}: {error}", path.display()))?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file() && is_text(&path) {
                let text = std::fs::read_to_string(root.join(&path))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                tree.insert(path.to_string_lossy().into_owned(), text);
            }
        }
    }
    Ok(tree)
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    TEXT_ENDINGS.contains(&ending) || path == Path::new("Makefile") || path == Path::new(".ci/run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_shown_as_editors_want_it() {
        assert_eq!(Fault::new("src/a.rs", 3, "too long").to_string(), "src/a.rs:3: too long");
        assert_eq!(Fault::new("src/a.rs", 0, "no sentence").to_string(), "src/a.rs: no sentence");
    }

    #[test]
    fn tree_is_read_without_generated_files() {
        let folder = std::env::temp_dir().join(format!("evenkeel-tidy-{}", std::process::id()));
        for path in ["src/a.rs", "target/b.rs", "docs/c.md", "docs/d.png"] {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let tree = read_tree(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(tree.keys().collect::<Vec<_>>(), ["docs/c.md", "src/a.rs"]);
    }
}
