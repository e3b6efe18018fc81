//! The pages of the documentation, their blocks of code, and the commands in them.

use std::path::Path;

/// The folder of the sources.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The allowed tags of blocks. Commands are in `sh`, or with their output in `console` after a `$`;
/// other blocks are not run.
const TAGS: [&str; 9] = ["sh", "console", "text", "toml", "json", "yaml", "ini", "promql", "usage"];

/// Programs whose commands must be in a block of commands.
const PROGRAMS: [&str; 11] = [
    "evenkeel",
    "evenkeel-bench",
    "cargo",
    "make",
    "aws",
    "fio",
    "ceph",
    "rbd",
    "rados",
    "openssl",
    "nbd-client",
];

/// A block of code.
pub struct Block {
    pub line: usize,
    pub tag: String,
    pub text: String,
}

/// Returns the text of a page.
pub fn page(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns README.md and every page below docs, in order.
pub fn all_pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    collect(Path::new(ROOT), "docs", &mut found);
    found.sort();
    found
}

fn collect(root: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            collect(root, &path, found);
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns the blocks of a page.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (line, content) in (1..).zip(text.lines()) {
        match (content.trim_start().strip_prefix("```"), &mut open) {
            (Some(tag), None) => {
                open = Some(Block { line, tag: tag.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{}\n", content.trim_end()),
            (None, None) => {}
        }
    }
    found
}

/// Returns the fault of a block; `None` if it has none.
pub fn wrong(block: &Block) -> Option<String> {
    if !TAGS.contains(&block.tag.as_str()) {
        return Some(format!("{:?} is not one of {TAGS:?}", block.tag));
    }
    if block.tag != "text" {
        return None;
    }
    let command = block.text.lines().find(|line| is_command(line));
    command.map(|line| format!("{line:?} is a command: they stand in blocks of sh or console"))
}

/// Returns whether a line begins like a command: with a prompt, a variable or a program.
fn is_command(line: &str) -> bool {
    let Some((first, second)) = line.split_once(' ') else { return false };
    let is_set = first.starts_with("EVENKEEL_") && first.contains('=');
    first == "$" || is_set || (PROGRAMS.contains(&first) && !second.starts_with(' '))
}

/// Returns the commands of a page, with continued lines joined, and with comments on lines of their
/// own.
pub fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in blocks(text) {
        let joined = block.text.replace("\\\n", " ");
        let lines = joined.lines().filter(|line| !line.is_empty());
        match block.tag.as_str() {
            "sh" => {
                // A need of a block ends with the block.
                found.push(END_OF_NEEDS.to_owned());
                found.extend(lines.map(str::to_owned));
            }
            "console" => {
                found.push(END_OF_NEEDS.to_owned());
                found.extend(lines.filter_map(|line| Some(line.strip_prefix("$ ")?.to_owned())));
            }
            _ => {}
        }
    }
    found
}

/// Separates the commands of two blocks.
pub const END_OF_NEEDS: &str = "#";

/// Returns whether a page has commands.
pub fn has_commands(text: &str) -> bool {
    blocks(text).iter().any(|block| ["sh", "console"].contains(&block.tag.as_str()))
}
