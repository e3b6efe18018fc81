//! `deploy/` and docs/reference/alerts.md are what the tables of alerts and panels make, and each
//! alert's runbook is a heading that exists.

use super::{Fault, Tree, links};
use crate::deploy;
use std::path::Path;

/// Compares each file with a fresh one, and follows the runbooks in it.
pub fn check(root: &Path, tree: &Tree) -> Vec<Fault> {
    let files = match deploy::files() {
        Ok(files) => files,
        Err(message) => return vec![Fault::new("deploy", 0, message)],
    };
    let mut faults = Vec::new();
    for (path, generated) in files {
        // Rules and dashboards are no text that other rules look at.
        let written = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        faults.extend(difference(path, &written, &generated));
        faults.extend(dead_runbooks(path, &written, tree));
    }
    faults
}

fn difference(path: &str, written: &str, generated: &str) -> Option<Fault> {
    if written == generated {
        return None;
    }
    let same = written.lines().zip(generated.lines()).take_while(|(a, b)| a == b).count();
    Some(Fault::new(path, same + 1, "differs from its tables: run `cargo x deploy`"))
}

/// Every `runbook_url` leads to a heading of a page of the tree, below the project's home.
fn dead_runbooks(path: &str, text: &str, tree: &Tree) -> Vec<Fault> {
    let manifest = tree.get("Cargo.toml").map_or("", String::as_str);
    let home = manifest.lines().find_map(|line| line.strip_prefix("repository = "));
    let home = home.unwrap_or_default().trim_matches('"');
    let is_alive = |address: &str| {
        let page = address.strip_prefix(home).and_then(|rest| rest.strip_prefix('/'));
        let (page, heading) = page?.split_once('#')?;
        links::headings(tree.get(page)?).iter().any(|anchor| anchor == heading).then_some(())
    };
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(address) = line.trim_start().strip_prefix("runbook_url: ") else { continue };
        let address = address.trim_matches('"');
        if is_alive(address).is_none() {
            faults.push(Fault::new(path, number, format!("runbook {address}: no such heading")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_is_what_the_tables_make() {
        let root = crate::root();
        let tree = super::super::read_tree(&root).unwrap();
        let faults: Vec<String> = check(&root, &tree).iter().map(ToString::to_string).collect();
        assert_eq!(faults, [""; 0]);
        let rules = std::fs::read_to_string(root.join("deploy/prometheus/evenkeel.rules.yml"));
        assert!(rules.unwrap().matches("runbook_url: ").count() > 20, "runbooks were looked at");
    }

    #[test]
    fn a_difference_is_shown_by_its_line() {
        assert_eq!(difference("a.yml", "a\nb\n", "a\nb\n"), None);
        let fault = difference("a.yml", "a\nb\n", "a\nc\n").unwrap();
        assert_eq!(fault.to_string(), "a.yml:2: differs from its tables: run `cargo x deploy`");
    }

    #[test]
    fn a_runbook_that_leads_nowhere_is_a_fault() {
        let tree = Tree::from([
            ("Cargo.toml".to_owned(), "repository = \"https://a.example\"\n".to_owned()),
            ("docs/b.md".to_owned(), "# One\n".to_owned()),
        ]);
        let of =
            |address: &str| dead_runbooks("r.yml", &format!("runbook_url: {address}\n"), &tree);
        assert_eq!(of("\"https://a.example/docs/b.md#one\""), []);
        for dead in ["docs/b.md#two", "docs/c.md#one", "docs/b.md"] {
            let faults = of(&format!("\"https://a.example/{dead}\""));
            let shown = format!("r.yml:1: runbook https://a.example/{dead}: no such heading");
            assert_eq!(faults.iter().map(ToString::to_string).collect::<Vec<_>>(), [shown]);
        }
        assert_eq!(of("\"https://b.example/docs/b.md#one\"").len(), 1, "another home");
    }
}
