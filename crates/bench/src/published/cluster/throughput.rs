//! The throughput of a volume on its home node, beside fio's own client of librbd on an image of
//! the same kind. The runs alternate, so that drifts of the machine affect both.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::world::{World, move_volume, others};
use super::{Aim, Row, Setup};
use crate::server_process::io2;
use crate::usage::{children_cpu_seconds, cpu_seconds};
use evenkeel_lab::LabError;
use evenkeel_lab::child::run_within;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_sim::figures::stats;

/// Pairs of runs, and their length in seconds; the second numbers are for a quick run.
const ROUNDS: [u32; 2] = [5, 1];
const SECONDS: [u32; 2] = [5, 2];
/// The range that is read and written, in MiB. It is filled before, as otherwise reads would not
/// reach Ceph's disks.
const SPAN_MIB: u32 = 512;
/// The pool of the image, beside that of the volumes.
const POOL: &str = "direct";
const IMAGE: &str = "image";
/// Minimum ratio of the volume's throughput to librbd's.
const RATIO_MIN: f64 = 0.95;
/// Maximum processor time of the server for an I/O of 4 KiB beyond that of librbd's client, in
/// microseconds.
const CPU_US_MAX: f64 = 6.0;
/// Time that a run may take beside its duration.
const GRACE: Duration = Duration::from_secs(120);

/// A kind of load.
struct Load {
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
}

const LOADS: [Load; 4] = [
    Load { name: "4 KiB read, depth 32", rw: "randread", block: "4k", depth: 32 },
    Load { name: "4 KiB write, depth 32", rw: "randwrite", block: "4k", depth: 32 },
    Load { name: "256 KiB read, depth 8", rw: "randread", block: "256k", depth: 8 },
    Load { name: "256 KiB write, depth 8", rw: "randwrite", block: "256k", depth: 8 },
];
const FILL: Load = Load { name: "fill", rw: "write", block: "1m", depth: 8 };

/// One run.
#[derive(Clone, Copy)]
struct Run {
    iops: f64,
    ios: f64,
    /// Processor time of fio, which includes librbd's if fio uses it.
    fio_cpu_s: f64,
    /// Processor time of the node, if there is one.
    node_cpu_s: f64,
}

impl Run {
    fn us_an_io(self, cpu_s: f64) -> f64 {
        cpu_s * 1e6 / self.ios.max(1.0)
    }
}

/// The target of fio: a volume or an image.
struct Side {
    engine: Vec<String>,
    /// The configuration of Ceph's client.
    conf: Option<PathBuf>,
    /// The process that serves the volume.
    node: Option<u32>,
}

pub(super) fn measure(world: &mut World<'_, '_>, setup: &Setup) -> Result<Vec<Row>, LabError> {
    let has_rbd = run_within(GRACE, Command::new("fio").arg("--enghelp"), "fio")?
        .lines()
        .any(|line| line.trim() == "rbd");
    if !has_rbd {
        let of = "fio was built without its engine rbd: there is nothing to compare with";
        return Ok(vec![Row::new("throughput", 0.0, "", Aim::None, of.to_owned())]);
    }
    let leader = world.all_serve()?;
    let home = others(leader)[0];
    let volume = world.volume(&io2(64_000))?;
    move_volume(&world.api(leader)?, &volume, home)?;
    let uri = NbdUri::tcp(world.node(home)?.nbd, &volume);
    let engine = vec!["--ioengine=nbd".to_owned(), format!("--uri={}", uri.as_str())];
    let ours = Side { engine, conf: None, node: Some(world.node(home)?.id()) };
    let direct = direct(world)?;
    for side in [&ours, &direct] {
        run(world, side, &FILL, None)?;
    }
    let rounds = setup.count(ROUNDS[0], ROUNDS[1]);
    let seconds = setup.count(SECONDS[0], SECONDS[1]);
    let mut rows = Vec::new();
    for load in &LOADS {
        let mut pairs = Vec::new();
        for _ in 0..rounds {
            let pair = [&ours, &direct].map(|side| run(world, side, load, Some(seconds)));
            let [ours, direct] = pair;
            pairs.push([ours?, direct?]);
        }
        world.report(&format!("{rounds} pairs, {}", load.name));
        rows.extend(rows_of(load, &pairs));
    }
    Ok(rows)
}

fn rows_of(load: &Load, pairs: &[[Run; 2]]) -> Vec<Row> {
    let median = |figure: &dyn Fn(&[Run; 2]) -> f64| {
        stats::median(&pairs.iter().map(figure).collect::<Vec<_>>()).unwrap_or_default()
    };
    let ratio = median(&|[ours, direct]| ours.iops / direct.iops.max(1.0));
    let [iops, direct] = [0, 1].map(|side| median(&|pair| pair[side].iops));
    let text = format!("{} pairs: {iops:.0} and {direct:.0} IOPS", pairs.len());
    let figure = format!("{} of fio's rbd", load.name);
    let mut rows = vec![Row::new(&figure, ratio, "ratio", Aim::AtLeast(RATIO_MIN), text)];
    if load.block == "4k" {
        let node = median(&|[ours, _]| ours.us_an_io(ours.node_cpu_s));
        let fio = median(&|[_, direct]| direct.us_an_io(direct.fio_cpu_s));
        let above = median(&|[ours, direct]| {
            ours.us_an_io(ours.node_cpu_s) - direct.us_an_io(direct.fio_cpu_s)
        });
        let text = format!("of the node {node:.1}, of fio with librbd {fio:.1}");
        let figure = format!("{}: processor time above librbd's", load.name);
        rows.push(Row::new(&figure, above, "us an I/O", Aim::AtMost(CPU_US_MAX), text));
    }
    rows
}

/// Creates an image in a pool of its own, and the configuration of a client without a cache, as the
/// server's: its answered writes are on the OSDs.
fn direct(world: &World<'_, '_>) -> Result<Side, LabError> {
    let ceph = &world.ceph;
    let conf = world.ceph.conf();
    ceph.client(&["osd", "pool", "create", POOL, "32", "32"])?;
    ceph.client(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
    let mut make = Command::new("rbd");
    make.arg("-c").arg(&conf).args(["create", "--size", "128G", "--image-feature"]);
    make.arg("layering,exclusive-lock,object-map,fast-diff,deep-flatten");
    run_within(GRACE, make.args(["--pool", POOL, IMAGE]), "ceph-common")?;
    let of_client = world.bench.folder.join("direct.conf");
    let mut text = fs::read_to_string(&conf).map_err(LabError::io("cannot read", &conf))?;
    text.push_str("[client]\nrbd cache = false\n");
    fs::write(&of_client, text).map_err(LabError::io("cannot write", &of_client))?;
    let engine = ["--ioengine=rbd", "--clientname=admin", "--pool=direct", "--rbdname=image"];
    let engine = engine.map(str::to_owned).to_vec();
    Ok(Side { engine, conf: Some(of_client), node: None })
}

/// Runs one load for `seconds`, or once over all of the range.
fn run(
    world: &World<'_, '_>,
    side: &Side,
    load: &Load,
    seconds: Option<u32>,
) -> Result<Run, LabError> {
    let told = world.bench.folder.join("throughput.json");
    let mut command = Command::new("fio");
    command.args(["--name=x", "--output-format=json", "--norandommap=1", "--randseed=1"]);
    command.args(["--clocksource=clock_gettime", "--eta=never"]).args(&side.engine);
    command.arg(format!("--rw={}", load.rw)).arg(format!("--bs={}", load.block));
    command.arg(format!("--iodepth={}", load.depth)).arg(format!("--size={SPAN_MIB}m"));
    if let Some(seconds) = seconds {
        command.args(["--time_based=1", &format!("--runtime={seconds}")]);
    }
    command.arg(format!("--output={}", told.display()));
    command.envs(side.conf.iter().map(|conf| ("CEPH_CONF", conf)));
    let of_node = || side.node.map_or(Ok(0.0), cpu_seconds);
    let before = (children_cpu_seconds()?, of_node()?);
    run_within(GRACE, &mut command, "fio")?;
    let after = (children_cpu_seconds()?, of_node()?);
    let text = fs::read_to_string(&told).map_err(LabError::io("cannot read", &told))?;
    let (ios, iops) = totals(&text)?;
    Ok(Run { iops, ios, fio_cpu_s: after.0 - before.0, node_cpu_s: after.1 - before.1 })
}

/// Returns the I/Os of a run of fio, and the I/Os per second.
fn totals(text: &str) -> Result<(f64, f64), LabError> {
    let bad = |what: String| LabError::BadOutput { tool: "fio", what };
    // An engine may print messages before it.
    let json = text.find('{').map_or(text, |at| &text[at..]);
    let told: serde_json::Value =
        serde_json::from_str(json).map_err(|error| bad(error.to_string()))?;
    let job = &told["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(bad(format!("error {}", job["error"])));
    }
    let sum = |field: &str| -> f64 {
        ["read", "write"].iter().filter_map(|way| job[*way][field].as_f64()).sum()
    };
    let found = (sum("total_ios"), sum("iops"));
    if found.0 > 0.0 { Ok(found) } else { Err(bad("no I/O was done".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_fio_output_are_parsed() {
        let of = |error, ios| {
            let write = format!("{{\"total_ios\": {ios}, \"iops\": 5.5}}");
            totals(&format!("noise\n{{\"jobs\": [{{\"error\": {error}, \"write\": {write}}}]}}"))
        };
        assert_eq!(of(0, 11).unwrap(), (11.0, 5.5));
        assert!(of(5, 11).is_err() && of(0, 0).is_err() && totals("").is_err());
    }

    #[test]
    fn pairs_are_compared_each_with_its_own() {
        let run = |iops, cpu| Run { iops, ios: 1e6, fio_cpu_s: cpu, node_cpu_s: cpu };
        let pairs = [
            [run(90.0, 30.0), run(100.0, 20.0)],
            [run(45.0, 36.0), run(50.0, 31.0)],
            [run(190.0, 9.0), run(200.0, 2.0)],
        ];
        let rows = rows_of(&LOADS[0], &pairs);
        assert_eq!((rows[0].seen, rows[1].seen), (0.9, 7.0));
        assert!(!rows[0].is_met() && !rows[1].is_met());
        assert_eq!(rows_of(&LOADS[2], &pairs).len(), 1);
    }
}
