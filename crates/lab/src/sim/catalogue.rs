//! The scenarios that come with the program.

/// Name and text of each, sorted by name. The files lie in `crates/lab/scenarios/`.
pub const SCENARIOS: [(&str, &str); 1] =
    [("gp2-burst", include_str!("../../scenarios/gp2-burst.toml"))];

/// The text of the scenario called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests;
