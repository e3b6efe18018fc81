//! A comparison as text: one block a transport, one line a row and server, the best marked.

use std::fmt;

use super::{Cell, Comparison, FLOOR, Sample, Transport};
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

const HEADINGS: [&str; 8] =
    ["row", "server", "IOPS", "of best", "p50", "CPU s/M I/O", "of best", "of floor"];

/// Columns that hold words stand left, columns that hold numbers right.
const LEFT: [bool; 8] = [true, true, false, false, false, false, false, false];

impl Comparison {
    /// Returns the transports that were measured, in order.
    pub(super) fn transports(&self) -> Vec<Transport> {
        let mut transports: Vec<Transport> = Vec::new();
        for cell in &self.cells {
            if !transports.contains(&cell.transport) {
                transports.push(cell.transport);
            }
        }
        transports
    }

    /// Returns the cells of one transport, one group for each row.
    pub(super) fn rows(&self, transport: Transport) -> Vec<(Workload, Vec<&Cell>)> {
        let mut rows: Vec<(Workload, Vec<&Cell>)> = Vec::new();
        for cell in self.cells.iter().filter(|cell| cell.transport == transport) {
            match rows.last_mut() {
                Some((workload, cells)) if *workload == cell.workload => cells.push(cell),
                _ => rows.push((cell.workload, vec![cell])),
            }
        }
        rows
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment.heading(&self.measured_at))?;
        for transport in self.transports() {
            writeln!(f, "\n{transport}: median of {} rounds", self.rounds())?;
            let mut lines = vec![HEADINGS.map(String::from).to_vec()];
            for (workload, cells) in self.rows(transport) {
                lines.extend(row_lines(&workload, &cells));
            }
            let table = text::aligned(&lines, &LEFT);
            table.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        if !self.servers.is_empty() {
            writeln!(f, "\nservers")?;
        }
        for (name, command) in &self.servers {
            writeln!(f, "  {name}: {command}")?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

impl Comparison {
    fn rounds(&self) -> usize {
        self.cells.iter().map(|cell| cell.samples.len()).max().unwrap_or(0)
    }
}

fn row_lines(workload: &Workload, cells: &[&Cell]) -> Vec<Vec<String>> {
    let medians: Vec<Sample> = cells.iter().map(|cell| cell.median()).collect();
    let kept = || cells.iter().zip(&medians).filter(|(cell, _)| cell.keeps_bytes);
    let most = kept().map(|(_, median)| median.iops).fold(0.0, f64::max);
    let least = kept().map(|(_, median)| median.cpu_s_per_million).fold(f64::MAX, f64::min);
    let is_floor = |cell: &&Cell| cell.peer == FLOOR;
    let floor =
        cells.iter().position(is_floor).map_or(0.0, |index| medians[index].cpu_s_per_million);
    let line = |(number, cell): (usize, &&Cell)| {
        let median = &medians[number];
        vec![
            if number == 0 { workload.to_string() } else { String::new() },
            cell.peer.clone(),
            text::thousands(median.iops.round() as u64),
            ratio(median.iops, most),
            text::latency(median.p50_ns),
            format!("{:.2}", median.cpu_s_per_million),
            ratio(median.cpu_s_per_million, least),
            ratio(median.cpu_s_per_million, floor),
        ]
    };
    cells.iter().enumerate().map(line).collect()
}

/// Returns the ratio, which is `1.00` for the best that keeps bytes; a dash if there is none to
/// compare with.
fn ratio(value: f64, best: f64) -> String {
    if best > 0.0 { format!("{:.2}", value / best) } else { "-".to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_lab::environment::Environment;

    #[test]
    fn the_table_names_rows_once_and_compares_with_the_best() {
        let cell = |peer: &str, transport, iops, cpu| Cell {
            workload: Workload::random_read(4_096, 32, 2),
            transport,
            peer: peer.to_string(),
            keeps_bytes: peer != FLOOR,
            samples: vec![Sample { iops, p50_ns: 300_000, cpu_s_per_million: cpu }],
        };
        let comparison = Comparison {
            schema: String::new(),
            measured_at: "today".to_string(),
            environment: Environment::default(),
            servers: vec![("a (unix)".to_string(), "serve".to_string())],
            cells: vec![
                cell("evenkeel", Transport::Unix, 110_000.0, 3.0),
                cell("nbdkit memory", Transport::Unix, 55_000.0, 9.0),
                cell("floor", Transport::Unix, 220_000.0, 1.5),
                cell("evenkeel", Transport::Tcp, 100.0, 0.0),
            ],
            warnings: vec!["busy".to_string()],
        };
        let text = comparison.to_string();
        let line = |start: &str| {
            let found = text.lines().find(|line| line.contains(start)).unwrap_or_default();
            found.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line("4 KiB random read"),
            "4 KiB random read, depth 32, 2 s evenkeel 110,000 1.00 300 us 3.00 1.00 2.00"
        );
        assert_eq!(line("220,000"), "floor 220,000 2.00 300 us 1.50 0.50 1.00");
        assert_eq!(line("nbdkit"), "nbdkit memory 55,000 0.50 300 us 9.00 3.00 6.00");
        assert!(
            text.contains("tcp: median of 1 rounds") && text.contains("warning: busy"),
            "{text}"
        );
    }
}
