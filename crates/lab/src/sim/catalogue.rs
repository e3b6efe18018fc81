//! The scenarios that come with the program.

/// Name and text of each, sorted by name. The files lie in `crates/lab/scenarios/`.
pub const SCENARIOS: [(&str, &str); 14] = [
    ("database-gp2", include_str!("../../scenarios/database-gp2.toml")),
    ("database-io1", include_str!("../../scenarios/database-io1.toml")),
    ("five-minute-job", include_str!("../../scenarios/five-minute-job.toml")),
    ("gp2-2000", include_str!("../../scenarios/gp2-2000.toml")),
    ("gp2-500", include_str!("../../scenarios/gp2-500.toml")),
    ("gp2-burst", include_str!("../../scenarios/gp2-burst.toml")),
    ("gp2-hour", include_str!("../../scenarios/gp2-hour.toml")),
    ("gp2-pair", include_str!("../../scenarios/gp2-pair.toml")),
    ("hdd-burst", include_str!("../../scenarios/hdd-burst.toml")),
    ("sc1-sizes", include_str!("../../scenarios/sc1-sizes.toml")),
    ("smoothness", include_str!("../../scenarios/smoothness.toml")),
    ("st1-large", include_str!("../../scenarios/st1-large.toml")),
    ("st1-sizes", include_str!("../../scenarios/st1-sizes.toml")),
    ("stripe", include_str!("../../scenarios/stripe.toml")),
];

/// The text of the scenario called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests;
