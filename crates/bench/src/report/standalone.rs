//! Charts as separate files, for pages that show pictures but no HTML.

use evenkeel_pages::html::STYLE;

/// A chart of a report, as a file of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chart {
    /// Its description.
    pub label: String,
    /// An SVG document in the colours of the report, light or dark as the reader's system is.
    pub svg: String,
}

impl Chart {
    /// Returns a file name for the `nth` chart: `03-mean-rate-of-every-configuration.svg`.
    #[must_use]
    pub fn file_name(&self, nth: usize) -> String {
        let words = self.label.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("{nth:02}-{}.svg", words.join("-").to_ascii_lowercase())
    }
}

/// Returns the charts of a report in HTML, in its order.
#[must_use]
pub fn charts(report: &str) -> Vec<Chart> {
    let one = |rest: &str| {
        let (svg, _) = rest.split_once("</svg>")?;
        let (head, body) = svg.split_once('>')?;
        let (label, _) = head.split_once("aria-label=\"")?.1.split_once('"')?;
        let style =
            format!("{}svg {{ background: var(--paper); }}{}", colours(), without_variables(svg));
        let svg = format!("<svg {head}>\n<style>\n{style}\n</style>{body}</svg>\n");
        Some(Chart { label: label.to_owned(), svg })
    };
    report.split("<svg ").skip(1).filter_map(one).collect()
}

/// Returns rules with fixed light colours, for programs that draw SVG but have no CSS variables.
/// Such a program ignores the condition of the other rules, or does not match it.
fn without_variables(svg: &str) -> String {
    let (light, _) = colours().split_once('}').unwrap_or_default();
    let colours = light.split("--").skip(1).filter_map(|rule| {
        let (rule, _) = rule.split_once(';')?;
        rule.split_once(": ")
    });
    let mut plain = String::new();
    let mut named = String::new();
    for (name, colour) in colours {
        for what in ["fill", "stroke"] {
            let value = format!("var(--{name})");
            let is = format!("{what}=\"{value}\"");
            if svg.contains(&is) {
                plain.push_str(&format!("\n[{is}] {{ {what}: {colour}; }}"));
                named.push_str(&format!("\n  [{is}] {{ {what}: {value}; }}"));
            }
        }
    }
    format!("{plain}\n@supports (fill: var(--ink)) {{{named}\n}}")
}

/// Returns the rules that define the colours, which are the first of the style.
fn colours() -> &'static str {
    STYLE.split_once("* {").map_or("", |(colours, _)| colours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_of_a_report_stands_alone() {
        let report = "<p>\n<svg class=\"chart\" aria-label=\"IOPS of a &amp; b\" xmlns=\"x\">\n\
                      <line stroke=\"var(--grid)\" fill=\"var(--series-0)\"/>\n\
                      </svg></p><svg aria-label=\"Two\"></svg>";
        let charts = charts(report);
        let names: Vec<String> =
            (1..).zip(&charts).map(|(nth, chart)| chart.file_name(nth)).collect();
        assert_eq!(names, ["01-iops-of-a-amp-b.svg", "02-two.svg"]);
        assert!(
            charts[0].svg.starts_with("<svg class=\"chart\"")
                && charts[0].svg.ends_with("</svg>\n")
        );
        let defined = |name: &str| charts[0].svg.contains(&format!("{name}: #"));
        assert!(["--grid", "--paper", "--series-5"].into_iter().all(defined));
        assert_eq!(charts[0].svg.matches("prefers-color-scheme: dark").count(), 1);
        let (plain, named) = charts[0].svg.split_once("@supports").unwrap();
        assert!(plain.contains("[stroke=\"var(--grid)\"] { stroke: #e6e9ed; }"), "{plain}");
        assert!(plain.contains("[fill=\"var(--series-0)\"] { fill: #0068a6; }"), "{plain}");
        assert!(named.contains("[fill=\"var(--series-0)\"] { fill: var(--series-0); }"), "{named}");
        assert!(!charts[1].svg.contains("[stroke="), "{}", charts[1].svg);
    }
}
