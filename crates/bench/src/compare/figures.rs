//! The figures that a server must reach beside its peers, as checks.

use super::{Cell, Comparison, Sample, Transport};
use evenkeel_lab::checker::Check;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// A server must not need more than this share of nbdkit's CPU time for an I/O.
const CPU_SHARE_OF_NBDKIT: f64 = 0.5;

impl Comparison {
    /// Judges the server called `ours` against those that keep their bytes: IOPS at least the
    /// best's on every row, median latency at depth 1 at most the best's, CPU time for an I/O at
    /// most half of nbdkit's. Rows without measurements of other servers are left out.
    #[must_use]
    pub fn figures(&self, ours: &str) -> Vec<Check> {
        let mut checks = Vec::new();
        for transport in self.transports() {
            for (workload, cells) in self.rows(transport) {
                let is_ours = |cell: &&&Cell| cell.peer == ours;
                let Some(own) = cells.iter().find(is_ours) else { continue };
                let peers: Vec<&Cell> = cells
                    .iter()
                    .filter(|cell| cell.peer != ours && cell.keeps_bytes)
                    .copied()
                    .collect();
                row(transport, &workload, own.median(), &peers, &mut checks);
            }
        }
        checks
    }
}

fn row(
    transport: Transport,
    workload: &Workload,
    own: Sample,
    peers: &[&Cell],
    checks: &mut Vec<Check>,
) {
    let medians = || peers.iter().map(|peer| (peer.peer.as_str(), peer.median()));
    let name = |what: &str| format!("{what}, {workload}, {transport}");
    let best = medians().max_by(|(_, a), (_, b)| a.iops.total_cmp(&b.iops));
    if let Some((peer, best)) = best {
        let iops = |sample: Sample| text::thousands(sample.iops.round() as u64);
        checks.push(Check::new(
            name("IOPS"),
            format!("at least {} ({peer})", iops(best)),
            iops(own),
            own.iops >= best.iops,
        ));
    }
    let quickest = medians().min_by_key(|(_, sample)| sample.p50_ns);
    if let Some((peer, quickest)) = quickest.filter(|_| workload.queue_depth == 1) {
        checks.push(Check::new(
            name("median latency"),
            format!("at most {} ({peer})", text::latency(quickest.p50_ns)),
            text::latency(own.p50_ns),
            own.p50_ns <= quickest.p50_ns,
        ));
    }
    let nbdkit = medians().filter(|(peer, _)| peer.starts_with("nbdkit"));
    let cheapest =
        nbdkit.min_by(|(_, a), (_, b)| a.cpu_s_per_million.total_cmp(&b.cpu_s_per_million));
    if let Some((peer, cheapest)) = cheapest {
        let most = cheapest.cpu_s_per_million * CPU_SHARE_OF_NBDKIT;
        checks.push(Check::new(
            name("CPU"),
            format!("at most {most:.2} s for a million I/Os (half of {peer})"),
            format!("{:.2} s", own.cpu_s_per_million),
            own.cpu_s_per_million <= most,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_lab::environment::Environment;

    fn cell(depth: u32, peer: &str, iops: f64, p50_ns: u64, cpu_s_per_million: f64) -> Cell {
        Cell {
            workload: Workload::random_read(4_096, depth, 2),
            transport: Transport::Unix,
            peer: peer.to_string(),
            keeps_bytes: peer != "qemu null",
            samples: vec![Sample { iops, p50_ns, cpu_s_per_million }],
        }
    }

    fn failed(own: [f64; 3]) -> Vec<String> {
        let [iops, p50_ns, cpu] = own;
        let comparison = Comparison {
            schema: String::new(),
            measured_at: String::new(),
            environment: Environment::default(),
            servers: vec![],
            cells: vec![
                cell(1, "evenkeel", iops, p50_ns as u64, cpu),
                cell(1, "nbdkit memory", 90.0, 12, 8.0),
                cell(1, "qemu file", 100.0, 10, 1.0),
                cell(1, "qemu null", 1_000.0, 1, 0.1),
                cell(32, "evenkeel", 50.0, 99, 1.0),
            ],
            warnings: vec![],
        };
        let checks = comparison.figures("evenkeel");
        assert_eq!(checks.len(), 3, "{checks:#?}");
        let failed = checks.into_iter().filter(|check| !check.pass);
        failed.map(|check| check.name.split(',').next().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn each_figure_is_sharp() {
        assert!(failed([100.0, 10.0, 4.0]).is_empty());
        assert_eq!(failed([99.9, 10.0, 4.0]), ["IOPS"]);
        assert_eq!(failed([100.0, 11.0, 4.0]), ["median latency"]);
        assert_eq!(failed([100.0, 10.0, 4.1]), ["CPU"]);
    }
}
