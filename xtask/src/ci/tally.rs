//! Counts of passed, failed and skipped tests and steps, parsed from libtest's output.

/// The beginning of the reason of an ignored test that only `cargo x ci --full` runs.
pub const FULL: &str = "full: ";

/// Counts of tests and steps.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
    /// Tests that only `cargo x ci --full` runs; a shorter one of the same rule has run.
    pub kept_for_full: u32,
    /// Those of them that the closing line of their binary will count as ignored.
    announced: u32,
}

impl Tally {
    /// Counts a line of libtest: "test result: ok. 3 passed; 0 failed; 1 ignored; ...". A test that
    /// prints that it is skipped counts as skipped, though libtest counts it as passed. Tests that
    /// are kept for `--full` are counted apart from those that libtest ignores.
    pub fn add_line(&mut self, line: &str) {
        self.skipped += u32::from(line.contains("SKIPPED: "));
        if line.starts_with("test ") && line.contains(&format!(" ... ignored, {FULL}")) {
            self.kept_for_full += 1;
            self.announced += 1;
            return;
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let counts = counts.trim_start_matches("ok. ").trim_start_matches("FAILED. ");
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u32>().ok()) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => {
                    self.skipped += count.saturating_sub(std::mem::take(&mut self.announced));
                }
                _ => {}
            }
        }
    }

    /// Counts the output of a whole binary of tests. If it failed without a failed test, as by a
    /// crash, it counts as one failed test.
    pub fn of_binary(output: &str, is_success: bool) -> Self {
        let mut tally = Self::default();
        output.lines().for_each(|line| tally.add_line(line));
        if !is_success && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.kept_for_full += other.kept_for_full;
    }

    /// Counts a step as one check, unless it failed by tests that are counted already.
    pub fn add_step(&mut self, before: Self, result: &Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(_) if self.failed == before.failed => self.failed += 1,
            Err(_) => {}
        }
    }

    /// Returns the closing line.
    pub fn line(self) -> String {
        let Self { passed, failed, skipped, kept_for_full, .. } = self;
        let mut line = format!("{passed} passed, {failed} failed");
        if skipped > 0 {
            line.push_str(&format!(", {skipped} skipped"));
        }
        if kept_for_full > 0 {
            line.push_str(&format!("; {kept_for_full} kept for cargo x ci --full"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a ... ok
test b ... ignored, full: tests/x.rs::a stays
test c ... ignored
SKIPPED: fio is not installed
test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured
";

    #[test]
    fn test_kept_for_full_does_not_count_as_skipped() {
        let tally = Tally::of_binary(OUTPUT, true);
        assert_eq!((tally.passed, tally.failed), (3, 0));
        assert_eq!(tally.line(), "3 passed, 0 failed, 2 skipped; 1 kept for cargo x ci --full");
    }

    #[test]
    fn a_binary_that_ends_badly_has_failed() {
        let failed = |output: &str| Tally::of_binary(output, false).failed;
        assert_eq!(failed("running 4 tests\ntest a ... "), 1);
        assert_eq!(failed("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured"), 2);
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_is_a_failure() {
        let mut tally = Tally { passed: 4, ..Tally::default() };
        tally.add_step(tally, &Err("does not build".to_owned()));
        assert_eq!(tally.line(), "4 passed, 1 failed");
        let before = tally;
        tally.failed += 2;
        tally.add_step(before, &Err("two tests".to_owned()));
        assert_eq!(tally.line(), "4 passed, 3 failed");
        tally.add_step(tally, &Ok(()));
        assert_eq!(tally.line(), "5 passed, 3 failed");
    }
}
