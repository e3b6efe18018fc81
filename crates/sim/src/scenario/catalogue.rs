//! The scenarios that come with the program, and the test of each.

/// Creates the list and the tests from one table: file name, name of the test, and the number of
/// runs or the seconds of each run that the test makes. `cargo x scenarios` makes all runs in full.
macro_rules! scenarios {
    ($($name:literal $(: $test:ident($($runs:tt)+))?),+ $(,)?) => {
        const COUNT: usize = [$($name),+].len();

        /// Name and text of each, sorted by name. The files are in `crates/sim/scenarios/`.
        pub const SCENARIOS: [(&str, &str); COUNT] = [
            $(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),+
        ];

        #[cfg(test)]
        mod come_as_expected {
            $($(
                #[test]
                fn $test() {
                    super::tests::comes_as_expected($name, part!($($runs)+));
                }
            )?)+
        }
    };
}

#[cfg(test)]
macro_rules! part {
    (all) => {
        super::tests::Part::All
    };
    (first $count:literal) => {
        super::tests::Part::First($count)
    };
    (seconds $seconds:literal) => {
        super::tests::Part::Seconds($seconds)
    };
}

scenarios! {
    "adaptive-window": adaptive_window(all),
    "batch-beside-oltp": batch_beside_oltp(all),
    "batch-beside-oltp-short": batch_beside_oltp_short(all),
    // Thirty million I/Os.
    "desktop-suite": desktop_suite(first 6),
    "desktop-suite-short": desktop_suite_short(all),
    "fio-40": fio_40(all),
    "fio-4000": fio_4000(first 1),
    "first-second": first_second(all),
    // Four weeks are hundreds of millions of I/Os, so no test runs it.
    "five-minute-job",
    "five-minute-job-short": five_minute_job_short(all),
    "gp2-2000": gp2_2000(all),
    "gp2-500": gp2_500(all),
    "gp2-burst": gp2_burst(first 1),
    "gp2-hour": gp2_hour(first 1),
    "gp2-pair": gp2_pair(all),
    "hdd-burst": hdd_burst(all),
    "hierarchy": hierarchy(all),
    "instance-burst": instance_burst(first 2),
    "log-writer": log_writer(all),
    "log-writer-few-channels": log_writer_few_channels(all),
    "lost-device": lost_device(all),
    "modify-step": modify_step(all),
    // Nine runs of 300 s are hundreds of millions of I/Os.
    "piops-stripe": piops_stripe(seconds 7),
    "piops-stripe-xfs": piops_stripe_xfs(all),
    "reservations": reservations(all),
    "sc1-sizes": sc1_sizes(all),
    "slow-device": slow_device(all),
    "smoothness": smoothness(all),
    "st1-large": st1_large(all),
    "st1-sizes": st1_sizes(all),
    "stalls": stalls(all),
    "stripe": stripe(all),
}

/// Returns the text of the scenario called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests;
