//! `evenkeel demo`: runs a server on a temporary folder with real fio clients, and prints a verdict
//! per volume.

use super::{folder_of_a_run, serve, volume};
use crate::api::Client;
use crate::cli::{CalibrateWhen, Demo, VolumeCreate, Wait};
use crate::message::{self, Failure, failed};
use crate::server::{self, Addresses, Config};
use crate::store_options::StoreOptions;
use evenkeel_control::events::webhook::Webhooks;
use evenkeel_control::{Settings, SpaceOversell};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_engine::UnixAccess;
use evenkeel_lab::bench::NbdUri;
use evenkeel_lab::bench::fio::VolumeProgress;
use evenkeel_lab::checker::{Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume};
use evenkeel_lab::files;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest wait until a volume is created and attached.
const VOLUME_WAIT_MAX: Duration = Duration::from_secs(30);

/// Without a terminal, one in this many lines of progress is printed.
const PLAIN_PROGRESS_EVERY: u64 = 5;

/// One volume of the demonstration: its parameters and its load.
struct Plan {
    name: &'static str,
    request: VolumeRequest,
    read_percent: u8,
    /// Credit balance at the start of the load.
    credits: Option<u64>,
}

/// A log with a promise, two general purpose volumes, one at the end of its credits, and a
/// neighbour that takes everything it can get.
fn plans() -> [Plan; 4] {
    let request = |volume_type, size_gib, iops, throughput_mibps| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps,
        multi_attach: false,
    };
    let plan = |name, request| Plan { name, request, read_percent: 100, credits: None };
    [
        Plan { read_percent: 70, ..plan("io2", request(VolumeType::Io2, 10, Some(1_000), None)) },
        plan("gp3", request(VolumeType::Gp3, 100, Some(3_000), Some(125))),
        Plan {
            credits: Some(demo::GP2_CREDITS),
            ..plan("gp2", request(VolumeType::Gp2, 100, None, None))
        },
        plan("greedy", request(VolumeType::Io2, 64, Some(16_000), None)),
    ]
}

pub fn run(arguments: &Demo) -> Result<(), Failure> {
    serve::log_to_stderr("warn")?;
    let folder = folder_of_a_run(&std::env::temp_dir(), "evenkeel-demo-")?;
    let config = Config {
        data_dir: folder.path().join("data"),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        nbd_listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        nbd_unix: None,
        unix_access: UnixAccess::default(),
        settings: Settings {
            // Its volumes are deleted with it, and write far less than their size.
            space_oversell: SpaceOversell::Unlimited,
            ..Settings::default()
        },
        background_mibps: 256,
        metrics_space: evenkeel_control::METRICS_SPACE,
        webhooks: Webhooks::default(),
        store: arguments.store,
        store_options: StoreOptions::default(),
        cluster: None,
        // Its volumes only have limits; nothing is sold.
        calibrate: CalibrateWhen::Never,
        guarantee: true,
        io: arguments.io,
        cores: server::cores(),
    };
    let running = Running::start(config.clone(), folder.path().to_owned())?;
    eprintln!("server on http://{} and nbd://{}", running.api, running.nbd);
    let report = drive(arguments, &config, &running, folder.path());
    // The verdict is reported first: it matters more than how the server stopped.
    let stopped = running.stop();
    let report = report?;
    stopped?;
    let html = report.to_html().map_err(failed)?;
    files::write(&arguments.report, &html)?;
    let shown = std::path::absolute(&arguments.report).unwrap_or(arguments.report.clone());
    message::print(&format!("{}\nreport: {}\n", report.to_text().trim_end(), shown.display()))?;
    let broken = report.volumes.iter().filter(|volume| !volume.verdict.pass).count();
    if report.pass {
        Ok(())
    } else {
        let message = format!("{broken} of {} promises were broken", report.volumes.len());
        Err(Failure::new(message).hint("`evenkeel doctor` checks whether the machine is suitable"))
    }
}

/// Creates the volumes through the API, then runs and judges their load.
fn drive(
    arguments: &Demo,
    config: &Config,
    running: &Running,
    folder: &Path,
) -> Result<evenkeel_lab::report::Report, Failure> {
    let client = Client::of_server(running.api, &config.settings.region, &config.data_dir)?;
    let duration_s = u32::try_from(arguments.time.as_secs()).unwrap_or(u32::MAX);
    let mut volumes = Vec::new();
    let mut balances = Vec::new();
    for (plan, seed) in plans().iter().zip(1..) {
        let volume = volume::create(&client, &create(plan))?;
        let id = volume.volume_id;
        eprintln!("{:<7} {id}  {}", plan.name, shown(plan));
        balances.extend(plan.credits.map(|credits| (id.clone(), credits)));
        let export = Export { nbd: running.nbd, id: &id };
        volumes.push(demo_volume(plan, config.settings.rules, &export, Load { seed, duration_s })?);
    }
    // Set last, so that few credits are earned until the load begins.
    for (id, credits) in balances {
        volume::set_credits(&client, &id, credits)?;
    }
    let logs = folder.join("fio");
    std::fs::create_dir(&logs)
        .map_err(|error| Failure::new(format!("{}: {error}", logs.display())))?;
    let mut progress = Progress::new(u64::from(duration_s));
    let title = "Four volumes driven at once by fio over NBD";
    let show = &mut |volumes: &[VolumeProgress]| progress.show(volumes);
    let report = demo::run(title, &volumes, &Bands::PROMISE, &logs, show);
    progress.bar.finish_and_clear();
    report.map_err(failed)
}

fn create(plan: &Plan) -> VolumeCreate {
    let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
        plan.request;
    VolumeCreate {
        volume_type,
        size: Some(size_gib),
        snapshot: None,
        iops,
        throughput: throughput_mibps,
        multi_attach,
        encrypted: false,
        tags: vec![("Name".to_owned(), plan.name.to_owned())],
        attach: true,
        wait: Wait { wait: true, timeout: VOLUME_WAIT_MAX },
    }
}

fn shown(plan: &Plan) -> String {
    let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, .. } = plan.request;
    let mut text = format!("{volume_type}, {size_gib} GiB");
    text.extend(iops.map(|iops| format!(", {iops} IOPS")));
    text.extend(throughput_mibps.map(|mibps| format!(", {mibps} MiB/s")));
    text.extend(plan.credits.map(|credits| format!(", {credits} credits left")));
    text
}

/// The address of a volume of the plan.
struct Export<'a> {
    nbd: SocketAddr,
    id: &'a str,
}

/// The parameters of a load that are not in the plan.
struct Load {
    seed: u64,
    duration_s: u32,
}

fn demo_volume(
    plan: &Plan,
    rules: &Rules,
    export: &Export<'_>,
    load: Load,
) -> Result<DemoVolume, Failure> {
    let spec = rules.resolve(&plan.request).map_err(failed)?;
    let pacing = rules.pacing(&spec);
    let iops = pacing.operations.map_or(0, |limit| limit.per_second);
    let mut workload = demo::workload(plan.read_percent, iops, load.seed);
    workload.duration_s = load.duration_s;
    let balances = Balances { operations: plan.credits, bytes: None };
    Ok(DemoVolume {
        name: plan.name.to_owned(),
        volume_type: spec.volume_type.to_string(),
        size_gib: spec.size_gib,
        promise: Promise::from_pacing(&pacing, balances),
        workload,
        uri: NbdUri::tcp(export.nbd, export.id),
    })
}

/// A server in a thread of this process.
struct Running {
    api: SocketAddr,
    nbd: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Running {
    /// Starts the server and waits until it answers. `folder` is removed if the process gets a
    /// signal to stop.
    fn start(config: Config, folder: PathBuf) -> Result<Self, Failure> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = mpsc::channel::<Addresses>();
        let until = async move {
            tokio::select! {
                _ = stopped => {}
                () = serve::stop_signal() => serve::interrupted(&[folder]),
            }
        };
        let thread = std::thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || {
                let ready = |addresses: &Addresses| {
                    let _ = ready.send(addresses.clone());
                };
                server::run(&config, &AtomicBool::new(false), ready, until)
            })
            .map_err(|error| Failure::new(format!("a thread for the server: {error}")))?;
        let unready = || Failure::new("the server ended before it was ready");
        match started.recv() {
            Ok(Addresses { api, nbd }) => {
                let nbd = nbd.first().copied().ok_or_else(unready)?;
                Ok(Self { api, nbd, stop, thread })
            }
            Err(_) => Err(thread.join().ok().and_then(Result::err).unwrap_or_else(unready)),
        }
    }

    fn stop(self) -> Result<(), Failure> {
        // The send fails if the server ended by itself; its result then has the reason.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|_| Err(Failure::new("the server's thread panicked")))
    }
}

/// A progress bar on a terminal, occasional lines elsewhere.
struct Progress {
    bar: ProgressBar,
    lines: u64,
}

impl Progress {
    fn new(duration_s: u64) -> Self {
        let bar = ProgressBar::new(duration_s);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {msg}") {
            bar.set_style(style);
        }
        Self { bar, lines: 0 }
    }

    fn show(&mut self, volumes: &[VolumeProgress]) {
        let line = demo::progress_line(volumes);
        if io::stderr().is_terminal() {
            let runtime_ms = volumes.iter().map(|volume| volume.runtime_ms).max().unwrap_or(0);
            self.bar.set_position(runtime_ms / 1_000);
            self.bar.set_message(line);
        } else if self.lines.is_multiple_of(PLAIN_PROGRESS_EVERY) {
            eprintln!("{line}");
        }
        self.lines += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_volume_of_the_plan_is_legal_under_the_newest_rules() {
        let nbd = "127.0.0.1:1".parse().unwrap();
        for plan in plans() {
            let (export, load) = (Export { nbd, id: "vol-1" }, Load { seed: 1, duration_s: 30 });
            let volume = demo_volume(&plan, Rules::newest(), &export, load).unwrap();
            assert_eq!(volume.workload.duration_s, 30);
            assert!(volume.workload.validate().is_ok());
            assert!(volume.promise.operations.is_some(), "{}", plan.name);
        }
    }

    #[test]
    fn the_plan_is_shown_in_one_line() {
        let [io2, gp3, gp2, _] = plans();
        assert_eq!(shown(&io2), "io2, 10 GiB, 1000 IOPS");
        assert_eq!(shown(&gp3), "gp3, 100 GiB, 3000 IOPS, 125 MiB/s");
        assert_eq!(shown(&gp2), "gp2, 100 GiB, 27000 credits left");
    }
}
