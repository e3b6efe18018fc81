//! The log of a program, on standard error.

use evenkeel_client::output::{self, Exit, Failure};
use tracing_subscriber::EnvFilter;

/// Logs messages that pass `filter` to standard error, in colour on a terminal.
pub fn to_stderr(filter: &str) -> Result<(), Failure> {
    let wrong =
        |why: String| Failure::new(format!("log filter \"{filter}\": {why}")).exit(Exit::Usage);
    let whole = whole_filter(filter).map_err(wrong)?;
    let filter = EnvFilter::try_new(whole).map_err(|error| wrong(error.to_string()))?;
    let colour = output::is_colourful(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
    Ok(())
}

/// Returns a filter that also passes errors of modules that it does not name.
///
/// # Errors If a word is neither a level nor one of the server's modules. As a module, it would
/// silence all others. The text describes the expected form.
fn whole_filter(filter: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    for word in filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '['])) {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        let is_number = matches!(word.parse(), Ok(0..=5_u8));
        if !word.is_empty() && !is_level && !is_number && !word.starts_with("evenkeel") {
            return Err(format!(
                "\"{word}\" is no level; expected {}, or a module and its level, such as \
                 evenkeel_engine=debug",
                LEVELS.join(", ")
            ));
        }
    }
    // Of several levels without a module the last one counts.
    Ok(format!("error,{filter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filters_that_would_silence_errors_are_refused_or_completed() {
        for (filter, whole) in [
            ("info", "error,info"),
            ("WARN", "error,WARN"),
            ("off", "error,off"),
            ("3", "error,3"),
            ("evenkeel_engine=debug,warn", "error,evenkeel_engine=debug,warn"),
            ("evenkeel_engine", "error,evenkeel_engine"),
            ("", "error,"),
        ] {
            assert_eq!(whole_filter(filter).as_deref(), Ok(whole));
            assert!(EnvFilter::try_new(whole).is_ok(), "{whole}");
        }
        for filter in ["warning", "err", "info,verbose", "6"] {
            let error = whole_filter(filter).unwrap_err();
            assert!(error.contains("is no level; expected error, warn, info"), "{error}");
        }
    }
}
