//! One broken rule for each property, read from the lists beside this file.

/// A rule to break.
pub struct Mutation<'a> {
    /// The property that the rule supports: a number as in docs/internals/iops_promise.md, or `F`
    /// and one as in docs/internals/fencing.md, or `S` or `L` and one of its list.
    pub property: &'a str,
    /// A description of the broken rule.
    pub rule: &'a str,
    /// The test that must fail: arguments of `cargo test -p`.
    pub test: &'a str,
    /// Number of seeds, if a test of histories needs more than its default.
    pub histories: Option<&'a str>,
    /// The source file.
    pub file: &'a str,
    /// Text that occurs exactly once in the file.
    pub before: &'a str,
    /// The text that replaces it.
    pub after: &'a str,
}

/// The lists with their names.
pub const LISTS: [(&str, &str); 4] = [
    ("promise", include_str!("list.txt")),
    ("store", include_str!("store.txt")),
    ("fencing", include_str!("fencing.txt")),
    ("lending", include_str!("lending.txt")),
];

/// Parses all mutations of a list, in its order.
pub fn mutations(list: &str) -> Result<Vec<Mutation<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = list;
    while let Some(start) = find_line(rest, "property ") {
        let (head, body) = cut(&rest[start..], "<<<<\n")?;
        let (before, body) = cut(body, "\n====\n")?;
        // The replacement may be empty.
        let (after, body) = match body.strip_prefix(">>>>\n") {
            Some(body) => ("", body),
            None => cut(body, "\n>>>>\n")?,
        };
        let line =
            |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let field = |name: &str| {
            line(name).ok_or_else(|| format!("a list of mutations has no `{name}` in:\n{head}"))
        };
        found.push(Mutation {
            property: field("property")?,
            rule: field("rule")?,
            test: field("test")?,
            histories: line("histories"),
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
    text.find(&format!("\n{prefix}")).map(|text| text + 1)
}

fn cut<'a>(text: &'a str, mark: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(mark)
        .ok_or_else(|| format!("a list of mutations has no {mark:?} after:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mutation can be made: the sources match the list.
    #[test]
    fn every_mutation_fits_the_sources() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let [promise, store, fencing, lending] = LISTS.map(|(_, list)| mutations(list).unwrap());
        let limiters = mutations(include_str!("limiters.txt")).unwrap();
        assert_eq!(limiters.len(), 5);
        assert!(promise.len() >= 28 && store.len() >= 70, "{} {}", promise.len(), store.len());
        assert!(fencing.len() >= 16 && lending.len() >= 7, "{}", fencing.len());
        for Mutation { property, file, before, after, .. } in
            promise.iter().chain(&store).chain(&fencing).chain(&lending).chain(&limiters)
        {
            let source = std::fs::read_to_string(root.join(file)).unwrap();
            assert_eq!(source.matches(before).count(), 1, "property {property}: {before}");
            assert_ne!(before, after, "property {property}");
        }
    }
}
