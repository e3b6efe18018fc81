//! The verdict as JUnit's XML, and as Markdown for a pull request.

use super::{Check, NEXT, Verdict};
use crate::format::{plain, prices_words};
use evenkeel_wire::aws::xml::escaped;

impl Verdict<'_> {
    /// Returns the verdict as JUnit's XML: a test case for each check.
    #[must_use]
    pub fn junit(&self) -> String {
        let failures = self.checks.iter().filter(|check| !check.pass).count();
        let counts =
            format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\"", self.checks.len());
        let layout = self.rated.found.layout.to_string();
        let name = format!("{} on {layout}", plain(&self.case.trace.name));
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        text += &format!("<testsuites name=\"evenkeel plan check\" {counts}>\n");
        text += &format!("  <testsuite name=\"{}\" {counts}>\n", escaped(&name));
        text += "    <properties>\n";
        for (property, value) in [("layout", layout), ("prices", prices_words(self.case))] {
            let value = escaped(&value).into_owned();
            text += &format!("      <property name=\"{property}\" value=\"{value}\"/>\n");
        }
        text += "    </properties>\n";
        text.extend(self.checks.iter().map(|check| self.test_case(check)));
        text + "  </testsuite>\n</testsuites>\n"
    }

    fn test_case(&self, check: &Check) -> String {
        let title = check.title();
        let head = format!("classname=\"evenkeel.plan.check\" name=\"{}\"", escaped(&title));
        let words = if check.pass {
            let [allowed, found] = check.shown();
            let out = format!("found {found}, allowed {allowed}");
            format!("      <system-out>{}</system-out>\n", escaped(&out))
        } else {
            let message = check.words();
            let message = escaped(&message);
            let waits = self.waiting_lines().join("\n");
            let waits = escaped(&waits);
            format!("      <failure type=\"limit\" message=\"{message}\">{waits}</failure>\n")
        };
        format!("    <testcase {head}>\n{words}    </testcase>\n")
    }

    /// Returns the verdict as Markdown, which has no text of the recording as markup.
    #[must_use]
    pub fn markdown(&self) -> String {
        let layout = self.rated.found.layout.to_string();
        let name = code(&plain(&self.case.trace.name));
        let mut text = format!("### {} {} {name}\n\n", marked(&layout), self.verb());
        text += "| check | allowed | found | verdict |\n| --- | ---: | ---: | --- |\n";
        for check in &self.checks {
            let [allowed, found] = check.shown();
            let verdict = if check.pass { "ok" } else { "**failed**" };
            let title = marked(&check.title());
            text += &format!("| {title} | {allowed} | {found} | {verdict} |\n");
        }
        text.push('\n');
        for line in self.waiting_lines() {
            text += &format!("- {}\n", marked(&line));
        }
        text += &format!("- prices {}\n", marked(&prices_words(self.case)));
        if !self.passes() {
            text += &format!("\n{NEXT}.\n");
        }
        text
    }
}

/// Returns a text as code: nothing in it is markup or a mention.
fn code(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 || text.is_empty() { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

/// Returns a text with its markup escaped.
fn marked(text: &str) -> String {
    let mut marked = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\`*_[]<>|#~&@".contains(c) {
            marked.push('\\');
        }
        marked.push(c);
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_a_fence_that_its_text_does_not_have() {
        assert_eq!(code("orders"), "`orders`");
        assert_eq!(code("a`b``c"), "``` a`b``c ```");
        assert_eq!(code("|<b>@x"), "`|<b>@x`");
    }

    #[test]
    fn markup_of_a_text_is_escaped() {
        assert_eq!(marked("a|b <i> _c_"), "a\\|b \\<i\\> \\_c\\_");
        assert_eq!(marked("gp3 100 GiB, 125 MiB/s"), "gp3 100 GiB, 125 MiB/s");
    }
}
