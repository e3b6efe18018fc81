//! Every public item is used by the product, and every source file is part of some crate.
//!
//! The compiler reports neither: a `pub` item of a library may have users elsewhere, and a file
//! that no `mod` declares is never compiled. An item that only tests use says "For tests" in its
//! documentation, or in that of its file.
//!
//! Names are compared as words. So an item passes if anything else has its name.

use super::rust_text::RustText;
use super::{Fault, Tree};
use std::collections::{BTreeMap, BTreeSet};

const MARK: &str = "For tests";
const TEST_MODULE: &str = "#[cfg(test)]";
const KINDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];
const QUALIFIERS: [&str; 3] = ["const", "async", "unsafe"];

/// A file of the product: its code without tests, and its whole text.
struct Source<'a> {
    path: &'a str,
    code: String,
    text: &'a str,
}

/// Checks all Rust files of the tree.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let codes: BTreeMap<&str, String> = tree
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path.as_str(), RustText::new(text).code))
        .collect();
    let mut faults = without_module(tree, &codes);
    let of_tests = test_files(&codes);
    let product: Vec<Source<'_>> = codes
        .iter()
        .filter(|(path, _)| !is_of_tests(path, &of_tests))
        .map(|(path, code)| Source { path, code: before_tests(code), text: &tree[*path] })
        .collect();
    faults.extend(unused(&product));
    faults
}

fn unused(product: &[Source<'_>]) -> Vec<Fault> {
    let mut uses = BTreeMap::<&str, usize>::new();
    for word in product.iter().flat_map(|source| words(&source.code)) {
        *uses.entry(word).or_default() += 1;
    }
    let mut definitions = BTreeMap::<&str, Vec<(&Source<'_>, usize)>>::new();
    for source in product {
        for (line, code) in source.code.lines().enumerate() {
            if let Some(name) = public_item(code) {
                definitions.entry(name).or_default().push((source, line));
            }
        }
    }
    let mut faults = Vec::new();
    for (name, places) in definitions {
        if uses[name] > places.len() {
            continue;
        }
        for (source, line) in places {
            if !is_marked(source.text, line) {
                let message = format!(
                    "nothing but tests uses `{name}`: delete it, or write \"{MARK}\" in its \
                     documentation"
                );
                faults.push(Fault::new(source.path, line + 1, message));
            }
        }
    }
    faults
}

/// Returns the name of the item that a line makes public to other crates.
fn public_item(line: &str) -> Option<&str> {
    let mut rest = words(line.trim_start().strip_prefix("pub ")?).peekable();
    loop {
        let word = rest.next()?;
        let next = *rest.peek()?;
        let qualifies = QUALIFIERS.contains(&word) && (KINDS.contains(&next) || next == "unsafe");
        if KINDS.contains(&word) && !qualifies {
            return Some(next);
        }
        if !qualifies {
            return None;
        }
    }
}

/// Returns whether the documentation of the item at this line, or of its file, has the mark.
fn is_marked(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_head = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
    let above = lines[..line].iter().rev().take_while(is_head);
    let head = lines.iter().take_while(|line| line.starts_with("//!"));
    above.chain(head).any(|line| line.contains(MARK) || *line == TEST_MODULE)
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.split(move |c| !is_part(c)).filter(|word| !word.is_empty())
}

/// Returns the code before the first module of tests.
fn before_tests(code: &str) -> String {
    let starts = code.match_indices(TEST_MODULE).map(|(at, _)| at);
    let of_module = |at: &usize| {
        let rest = code[at + TEST_MODULE.len()..].trim_start();
        rest.starts_with("mod ") && rest.split(['{', ';']).next() != Some(rest) && {
            let end = rest.find(['{', ';']);
            end.is_some_and(|end| rest[end..].starts_with('{'))
        }
    };
    let mut starts = starts.filter(of_module);
    starts.next().map_or(code, |start| &code[..start]).to_owned()
}

/// Returns the files, and folders with a slash at their end, of modules that are only compiled for
/// tests.
fn test_files(codes: &BTreeMap<&str, String>) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for (path, code) in codes {
        for (at, _) in code.match_indices(TEST_MODULE) {
            let rest = code[at + TEST_MODULE.len()..].trim_start();
            let rest = rest.strip_prefix("pub ").unwrap_or(rest);
            let Some((name, _)) = rest.strip_prefix("mod ").and_then(|rest| rest.split_once(';'))
            else {
                continue;
            };
            let folder = folder_of_modules(path);
            files.insert(format!("{folder}{name}.rs"));
            files.insert(format!("{folder}{name}/"));
        }
    }
    files
}

/// Returns the folder of the modules of a file, with a slash at its end.
fn folder_of_modules(path: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "mod.rs" | "lib.rs" | "main.rs" => format!("{folder}/"),
        file => format!("{folder}/{}/", file.trim_end_matches(".rs")),
    }
}

fn is_of_tests(path: &str, files: &BTreeSet<String>) -> bool {
    let of_folder = |folder: &str| path.starts_with(folder) || path.contains(&format!("/{folder}"));
    of_folder("tests/")
        || of_folder("benches/")
        || path.ends_with("_tests.rs")
        || files.iter().any(|file| path == file || file.ends_with('/') && path.starts_with(file))
}

/// Returns faults for files that no other file declares as its module.
fn without_module(tree: &Tree, codes: &BTreeMap<&str, String>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for path in codes.keys().filter(|path| !is_root(path)) {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.trim_end_matches(".rs");
        let module = if stem == "mod" { folder.rsplit('/').next().unwrap_or(stem) } else { stem };
        let declared = format!("mod {module};");
        let by_path = format!("{file}\"");
        let above = folder.rsplit_once('/').map_or("", |(above, _)| above);
        let is_near = |other: &str| {
            let other = other.rsplit_once('/').map_or("", |(folder, _)| folder);
            other == folder || other == above
        };
        let is_named = codes.iter().any(|(other, code)| {
            let is_other = other != path;
            is_other
                && (is_near(other) && code.contains(&declared) || {
                    tree[*other].contains(&by_path)
                })
        });
        if !is_named {
            let message =
                format!("no file declares the module `{module}`: delete it or declare it");
            faults.push(Fault::new(path, 0, message));
        }
    }
    faults
}

/// Returns whether a file is the root of a crate, of a test or of a benchmark.
fn is_root(path: &str) -> bool {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = folder.rsplit('/').next().unwrap_or_default();
    match folder {
        "src" => ["lib.rs", "main.rs"].contains(&file),
        "tests" | "benches" | "examples" | "bin" | "fuzz_targets" => file != "mod.rs",
        _ => file == "build.rs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let tree =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        check(&tree).iter().map(|fault| format!("{}:{}", fault.path, fault.line)).collect()
    }

    const LIB: &str = "crates/a/src/lib.rs";

    #[test]
    fn public_items_are_found_by_their_name() {
        assert_eq!(public_item("    pub const fn a(b: u32) {"), Some("a"));
        assert_eq!(public_item("pub const A: u32 = 1;"), Some("A"));
        assert_eq!(public_item("pub async unsafe fn a() {"), Some("a"));
        assert_eq!(public_item("pub struct A<T> {"), Some("A"));
        for line in
            ["pub(crate) fn a() {", "fn a() {", "pub mod a;", "pub use a::b;", "pub a: u32,"]
        {
            assert_eq!(public_item(line), None, "{line}");
        }
    }

    #[test]
    fn an_item_that_only_tests_use_is_a_fault() {
        let of_tests = "#[cfg(test)]\nmod tests { fn b() { super::a(); } }\n";
        let item = format!("pub fn a() {{}}\n{of_tests}");
        assert_eq!(faults(&[(LIB, &item)]), [format!("{LIB}:1")]);
        let used = ("crates/a/tests/b.rs", "fn b() { a(); }");
        assert_eq!(faults(&[(LIB, &item), used]), [format!("{LIB}:1")]);
        let used = ("crates/b/src/lib.rs", "fn b() { a(); }");
        assert_eq!(faults(&[(LIB, &item), used]), [""; 0]);
        let said = ("crates/b/src/lib.rs", "/// a() \nfn b() { \"a()\" }");
        assert_eq!(faults(&[(LIB, &item), said]), [format!("{LIB}:1")]);
    }

    #[test]
    fn an_item_for_tests_says_so() {
        assert_eq!(faults(&[(LIB, "/// Is one. For tests.\n#[inline]\npub fn a() {}\n")]), [""; 0]);
        assert_eq!(faults(&[(LIB, "//! Doubles. For tests.\n\npub fn a() {}\n")]), [""; 0]);
        assert_eq!(faults(&[(LIB, "#[cfg(test)]\npub fn a() {}\n")]), [""; 0]);
        assert_eq!(faults(&[(LIB, "/// For tests.\nfn b() {}\npub fn a() {}\n")]).len(), 1);
    }

    #[test]
    fn a_module_of_tests_in_a_file_of_its_own_is_no_user() {
        let lib = "pub fn a() {}\n#[cfg(test)]\nmod b;\n";
        let of_tests = ("crates/a/src/b.rs", "fn c() { a(); }");
        assert_eq!(faults(&[(LIB, lib), of_tests]), [format!("{LIB}:1")]);
    }

    #[test]
    fn a_file_that_no_module_declares_is_a_fault() {
        let file = ("crates/a/src/b/c.rs", "");
        let declared = ("crates/a/src/b.rs", "mod c;");
        assert_eq!(faults(&[(LIB, "mod b;"), declared, file]), [""; 0]);
        assert_eq!(faults(&[(LIB, "mod b;"), ("crates/a/src/b.rs", ""), file]).len(), 1);
        let by_path = (LIB, "mod b;\n#[path = \"b/c.rs\"]\nmod d;");
        assert_eq!(faults(&[by_path, ("crates/a/src/b.rs", ""), file]), [""; 0]);
    }
}
