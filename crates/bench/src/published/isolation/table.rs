//! The experiment as text: a block for each situation, a line for each server.

use std::fmt;

use super::P99_TIMES_MAX;
use super::runs::{Beside, Cell, Isolation, neighbours_text};
use evenkeel_sim::text;

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment.heading(&self.measured_at))?;
        let rounds = self.cells.iter().map(|cell| cell.samples.len()).max().unwrap_or(0);
        writeln!(
            f,
            "{}: 16 KiB durable writes one by one, beside neighbours of {}; median of {rounds} \
             rounds\n",
            self.device,
            neighbours_text()
        )?;
        let subjects = self.cells.iter().map(|cell| cell.subject.chars().count());
        let width = subjects.max().unwrap_or(0).max("server".len());
        writeln!(
            f,
            "{:<14} {:<width$} {:>12} {:>9} {:>9} {:>12} {:>12}",
            "log", "server", "log writes/s", "p50", "p99", "p99 of alone", "neighbours"
        )?;
        let mut last = None;
        for cell in &self.cells {
            let label =
                if last == Some(cell.beside) { String::new() } else { cell.beside.to_string() };
            last = Some(cell.beside);
            self.line(f, &label, cell, width)?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

impl Isolation {
    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        label: &str,
        cell: &Cell,
        width: usize,
    ) -> fmt::Result {
        let median = cell.median();
        let times = self.p99_times(&cell.subject, cell.beside).unwrap_or(0.0);
        let mark = if times > P99_TIMES_MAX { "!" } else { " " };
        let moved = match cell.beside {
            Beside::Nobody => "-".to_owned(),
            _ => text::byte_rate(median.neighbours_bytes_per_second.round() as u64),
        };
        writeln!(
            f,
            "{label:<14} {:<width$} {:>12} {:>9} {:>9} {times:>11.2}{mark} {moved:>12}",
            cell.subject,
            text::thousands(median.log_writes_per_second.round() as u64),
            text::latency(median.p50_ns),
            text::latency(median.p99_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::runs::Sample;
    use super::*;
    use evenkeel_lab::environment::Environment;

    fn cell(subject: &str, beside: Beside, p99_us: &[u64]) -> Cell {
        let sample = |us: &u64| Sample {
            log_writes_per_second: 1_234.4,
            p50_ns: 500_000,
            p99_ns: us * 1_000,
            neighbours_bytes_per_second: 200.0 * 1_048_576.0,
        };
        let samples = p99_us.iter().map(sample).collect();
        Cell { subject: subject.to_owned(), beside, samples }
    }

    #[test]
    fn latency_beside_neighbours_is_compared_with_latency_alone() {
        let found = Isolation {
            schema: String::new(),
            device: "faulty".to_owned(),
            measured_at: "2026-11-21".to_owned(),
            environment: Environment::read("fio-3.33".to_owned()),
            cells: vec![
                cell("ours", Beside::Nobody, &[600, 700, 650]),
                cell("other", Beside::Nobody, &[650]),
                cell("ours", Beside::Both, &[1_300]),
                cell("other", Beside::Both, &[1_301]),
            ],
            warnings: Vec::new(),
        };
        assert_eq!(found.p99_times("ours", Beside::Both), Some(2.0));
        assert_eq!(found.p99_times("ours", Beside::Reads), None);
        assert!(found.holds("ours") && !found.holds("other"));
        let text = found.to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = "\
faulty: 16 KiB durable writes one by one, beside neighbours of 256 KiB, 64 at once; \
median of 3 rounds

log            server log writes/s       p50       p99 p99 of alone   neighbours
alone          ours          1,234    500 us    650 us        1.00             -
               other         1,234    500 us    650 us        1.00             -
beside both    ours          1,234    500 us   1.30 ms        2.00     200 MiB/s
               other         1,234    500 us   1.30 ms        2.00!    200 MiB/s";
        assert_eq!(lines, expected.lines().collect::<Vec<_>>());
    }
}
