//! The two text formats of metrics, and the choice between them by a request. Pure.
//!
//! Prometheus requests OpenMetrics. Other scrapers read only the text format 0.0.4, which has no
//! kind `info`, no units and no end mark, and in which a counter's metadata has its whole name.

const OPEN_METRICS: &str = "application/openmetrics-text";

/// A format of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Plain,
}

impl Format {
    /// Returns the format that a request with these `Accept` headers asks for: the text format
    /// 0.0.4, unless OpenMetrics is named with at least the same quality.
    #[must_use]
    pub fn asked_for<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let mut open = 0;
        let mut plain = 0;
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let milli = parts.find_map(|part| part.strip_prefix("q=")).map_or(1_000, milli);
            match kind.as_str() {
                OPEN_METRICS => open = open.max(milli),
                "text/plain" => plain = plain.max(milli),
                _ => {}
            }
        }
        if open > 0 && open >= plain { Self::OpenMetrics } else { Self::Plain }
    }

    /// Returns the content type of an answer.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts a text of OpenMetrics to this format.
    #[must_use]
    pub fn of(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Plain => plain(&text),
        }
    }
}

/// Returns a quality in thousandths; 0 if it is invalid.
fn milli(quality: &str) -> u32 {
    let quality: f64 = quality.trim().parse().unwrap_or_default();
    (quality.clamp(0.0, 1.0) * 1_000.0) as u32
}

fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len() + text.len() / 64);
    // The help of a family comes before its kind, on which its name depends.
    let mut help = None;
    for line in text.lines() {
        let (mark, rest) = match line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            Some((mark, rest)) => (mark, rest),
            None if line.starts_with('#') => continue,
            None => ("", line),
        };
        match (mark, rest.split_once(' ')) {
            ("HELP", Some((_, its))) => help = Some(its),
            ("TYPE", Some((name, kind))) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                if let Some(help) = help.take() {
                    // A quotation mark is escaped in OpenMetrics only.
                    let help = help.replace("\\\"", "\"");
                    plain.extend(["# HELP ", name, suffix, " ", &help, "\n"]);
                }
                plain.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            ("", _) => plain.extend([line, "\n"]),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        let asked = |accept: &'static str| Format::asked_for([accept].into_iter());
        // The headers of Prometheus 2 and 3, of curl, and of collectors of the text format.
        for accept in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
             version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "Application/OpenMetrics-Text",
        ] {
            assert_eq!(asked(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in [
            "*/*",
            "text/plain",
            "text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
        ] {
            assert_eq!(asked(accept), Format::Plain, "{accept}");
        }
        assert_eq!(Format::asked_for([].into_iter()), Format::Plain);
    }

    #[test]
    fn the_text_format_has_whole_names_and_kinds_that_it_knows() {
        let open = "# HELP e_reads Reads.\n# TYPE e_reads counter\ne_reads_total{a=\"x y\"} 1\n\
                    # HELP e_b_seconds A \\\"b\\\".\n# TYPE e_b_seconds gauge\n\
                    # UNIT e_b_seconds seconds\ne_b_seconds 2.5\n\
                    # HELP e_build It.\n# TYPE e_build info\ne_build_info{v=\"1\"} 1\n# EOF\n";
        let expected = "# HELP e_reads_total Reads.\n# TYPE e_reads_total counter\n\
                        e_reads_total{a=\"x y\"} 1\n\
                        # HELP e_b_seconds A \"b\".\n# TYPE e_b_seconds gauge\n\
                        e_b_seconds 2.5\n\
                        # HELP e_build_info It.\n# TYPE e_build_info gauge\n\
                        e_build_info{v=\"1\"} 1\n";
        assert_eq!(Format::Plain.of(open.to_owned()), expected);
        assert_eq!(Format::OpenMetrics.of(open.to_owned()), open);
    }
}
