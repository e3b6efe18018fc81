//! The scenarios that come with the program.

/// Name and text of each, sorted by name. The files lie in `crates/lab/scenarios/`.
pub const SCENARIOS: [(&str, &str); 26] = [
    ("batch-beside-oltp", include_str!("../../scenarios/batch-beside-oltp.toml")),
    ("database-gp2", include_str!("../../scenarios/database-gp2.toml")),
    ("database-io1", include_str!("../../scenarios/database-io1.toml")),
    ("fio-40", include_str!("../../scenarios/fio-40.toml")),
    ("fio-4000", include_str!("../../scenarios/fio-4000.toml")),
    ("five-minute-job", include_str!("../../scenarios/five-minute-job.toml")),
    ("gp2-2000", include_str!("../../scenarios/gp2-2000.toml")),
    ("gp2-500", include_str!("../../scenarios/gp2-500.toml")),
    ("gp2-burst", include_str!("../../scenarios/gp2-burst.toml")),
    ("gp2-hour", include_str!("../../scenarios/gp2-hour.toml")),
    ("gp2-pair", include_str!("../../scenarios/gp2-pair.toml")),
    ("hdd-burst", include_str!("../../scenarios/hdd-burst.toml")),
    ("hierarchy", include_str!("../../scenarios/hierarchy.toml")),
    ("instance-burst", include_str!("../../scenarios/instance-burst.toml")),
    ("log-writer", include_str!("../../scenarios/log-writer.toml")),
    ("modify-step", include_str!("../../scenarios/modify-step.toml")),
    ("piops-stripe", include_str!("../../scenarios/piops-stripe.toml")),
    ("reservations", include_str!("../../scenarios/reservations.toml")),
    ("sc1-sizes", include_str!("../../scenarios/sc1-sizes.toml")),
    ("slow-device", include_str!("../../scenarios/slow-device.toml")),
    ("smoothness", include_str!("../../scenarios/smoothness.toml")),
    ("st1-large", include_str!("../../scenarios/st1-large.toml")),
    ("st1-sizes", include_str!("../../scenarios/st1-sizes.toml")),
    ("stalls", include_str!("../../scenarios/stalls.toml")),
    ("stripe", include_str!("../../scenarios/stripe.toml")),
    ("surplus", include_str!("../../scenarios/surplus.toml")),
];

/// The text of the scenario called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests;
