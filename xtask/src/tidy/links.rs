//! Every relative link in a Markdown file leads to a file that exists, and to a heading that
//! exists.

use super::{Fault, Tree};

/// Checks one file of the tree. `exists` is called for paths that are no text files, such as
/// pictures.
pub fn check(path: &str, text: &str, tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Fault> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (line, target) in links(text) {
        let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
        let Some(resolved) = resolve(path, file) else {
            faults.push(Fault::new(path, line, format!("link {target} leads out of the project")));
            continue;
        };
        if !tree.contains_key(&resolved) && !exists(&resolved) {
            faults.push(Fault::new(path, line, format!("link {target}: no file {resolved}")));
        } else if !heading.is_empty() && resolved.ends_with(".md") {
            let text = tree.get(&resolved).map_or("", String::as_str);
            if !headings(text).iter().any(|anchor| anchor == heading) {
                let message = format!("link {target}: no heading #{heading} in {resolved}");
                faults.push(Fault::new(path, line, message));
            }
        }
    }
    faults
}

/// Returns the relative targets of a text's links with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for (at, _) in line.match_indices("](") {
            let target = line[at + 2..].split([')', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere && !target.is_empty() {
                links.push((number, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the lines outside of fenced code, without code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, line.split('`').step_by(2).collect()));
        }
    }
    lines
}

/// Returns the anchors that a Markdown reader makes from the headings: in lower case, without
/// punctuation, with hyphens for blanks.
fn headings(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let Some(title) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        anchors.push(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    anchors
}

/// Returns the path of `target` relative to the folder of `path`; `None` if it is outside of the
/// tree.
fn resolve(path: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(path.to_owned());
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let tree = Tree::from([
            ("docs/a.md".to_owned(), text.to_owned()),
            ("docs/b/c.md".to_owned(), "# The `volume` verb, or not\n```\n# x\n```\n".to_owned()),
            ("README.md".to_owned(), String::new()),
        ]);
        let faults = check("docs/a.md", text, &tree, |path| path == "docs/d.svg");
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_to_existing_files_pass() {
        let text = "# Own\n[c](b/c.md) [c](b/c.md#the-volume-verb-or-not)\n\
                    [up](../README.md \"t\")\n\
                    ![d](d.svg) [own](#own) [w](https://example.org/x) [docs](.)\n\
                    `[x](nothing.md)`\n```\n[x](nothing.md)\n```\n";
        assert_eq!(messages(text).len(), 1, "{:?}", messages(text));
        assert_eq!(messages(text), ["docs/a.md:4: link .: no file docs"]);
    }

    #[test]
    fn dead_links_are_faults() {
        assert_eq!(
            messages("\n[x](e.md), [y](b/c.md#x), [z](../../z)\n"),
            [
                "docs/a.md:2: link e.md: no file docs/e.md",
                "docs/a.md:2: link b/c.md#x: no heading #x in docs/b/c.md",
                "docs/a.md:2: link ../../z leads out of the project",
            ]
        );
    }
}
