//! One broken rule for each property, read from `list.txt`.

/// A rule to break.
pub struct Mutation<'a> {
    /// Number of the property that the rule is behind, as in docs/internals/iops_promise.md.
    pub property: u32,
    /// What is broken, in words.
    pub rule: &'a str,
    /// The test that must fail: arguments of `cargo test -p`.
    pub test: &'a str,
    /// The source file.
    pub file: &'a str,
    /// Text that is there exactly once.
    pub before: &'a str,
    /// What is put there.
    pub after: &'a str,
}

/// The list as it is written.
pub const LIST: &str = include_str!("list.txt");

/// All mutations, in the order of the list.
pub fn mutations(list: &str) -> Result<Vec<Mutation<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = list;
    while let Some(start) = find_line(rest, "property ") {
        let (head, body) = cut(&rest[start..], "<<<<\n")?;
        let (before, body) = cut(body, "\n====\n")?;
        let (after, body) = cut(body, "\n>>>>\n")?;
        let field = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.ok_or_else(|| format!("list.txt: no `{name}` in:\n{head}"))
        };
        let property = field("property")?;
        let number = property.parse().map_err(|_| format!("list.txt: property {property}"))?;
        found.push(Mutation {
            property: number,
            rule: field("rule")?,
            test: field("test")?,
            file: field("file")?,
            before,
            after,
        });
        rest = body;
    }
    Ok(found)
}

fn find_line(text: &str, prefix: &str) -> Option<usize> {
    if text.starts_with(prefix) {
        return Some(0);
    }
    text.find(&format!("\n{prefix}")).map(|at| at + 1)
}

fn cut<'a>(text: &'a str, mark: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(mark).ok_or_else(|| format!("list.txt: no {mark:?} after:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mutation can be made: the sources have not moved away from the list.
    #[test]
    fn every_mutation_fits_the_sources() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let list = mutations(LIST).unwrap();
        assert!(list.len() >= 28, "{}", list.len());
        for Mutation { property, file, before, after, .. } in list {
            let source = std::fs::read_to_string(root.join(file)).unwrap();
            assert_eq!(source.matches(before).count(), 1, "property {property}: {before}");
            assert_ne!(before, after, "property {property}");
        }
    }
}
