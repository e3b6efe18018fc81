//! `evenkeel demo`: runs a server on a temporary folder with real fio clients, and prints a verdict
//! per volume.

use super::volume;
use crate::cli::{CalibrateWhen, DataPlanePriority, Demo, VolumeModify, Wait};
use evenkeel_cli::endpoint::Scheme;
use evenkeel_cli::verdict::{AGAIN, Says};
use evenkeel_cli::{connect, log, runs, signals};
use evenkeel_client::Client;
use evenkeel_client::output::{self, Failure, failed};
use evenkeel_client::volumes::{self, NewVolume};
use evenkeel_control::{Settings, SpaceOversell};
use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_engine::{Recorder, UnixAccess};
use evenkeel_lab::checker::{Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume, Recording, Serving};
use evenkeel_lab::files;
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_lab::report::Report;
use evenkeel_server::store_options::StoreOptions;
use evenkeel_server::transport::Transport;
use evenkeel_server::{Addresses, Config};
use evenkeel_sim::oracle::recorded::Provisioned;
use evenkeel_telemetry::events::webhook::Webhooks;
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
    /// Whether its IOPS are lowered to what the machine delivers.
    takes_what_is_there: bool,
}

/// Returns a log volume with guaranteed IOPS, two general purpose volumes, one of them almost
/// without credits, and a neighbour that takes all the IOPS it can get.
fn plans() -> [Plan; 4] {
    let request = |volume_type, size_gib, iops, throughput_mibps| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps,
        multi_attach: false,
    };
    let plan = |name, request| Plan {
        name,
        request,
        read_percent: 100,
        credits: None,
        takes_what_is_there: false,
    };
    [
        Plan { read_percent: 70, ..plan("io2", request(VolumeType::Io2, 10, Some(1_000), None)) },
        plan("gp3", request(VolumeType::Gp3, 100, Some(3_000), Some(125))),
        Plan {
            credits: Some(demo::GP2_CREDITS),
            ..plan("gp2", request(VolumeType::Gp2, 100, None, None))
        },
        Plan {
            takes_what_is_there: true,
            ..plan("greedy", request(VolumeType::Io2, 64, Some(16_000), None))
        },
    ]
}

/// Throughput in MiB/s to which the general purpose volume is raised in the middle of its load. Its
/// IOPS stay unchanged, so the modification must have no effect on the load.
const RAISED_MIBPS: u32 = 250;

pub fn run(arguments: &Demo) -> Result<(), Failure> {
    // A missing calibration of its store, and the like, do not matter here.
    log::to_stderr("error")?;
    let folder = runs::folder(&std::env::temp_dir(), "evenkeel-demo-")?;
    let config = Config {
        data_dir: folder.path().join("data"),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        nbd_listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        transport: Transport::default(),
        nbd_unix: None,
        unix_access: UnixAccess::default(),
        settings: Settings {
            // Its volumes are deleted with it, and write far less than their size.
            space_oversell: SpaceOversell::Unlimited,
            ..Settings::default()
        },
        background_mibps: 256,
        metrics_space: evenkeel_telemetry::cloudwatch::METRICS_SPACE,
        webhooks: Webhooks::default(),
        store: arguments.store,
        store_options: StoreOptions::default(),
        cluster: None,
        // Its volumes only have limits; nothing is sold.
        calibrate: CalibrateWhen::Never,
        guarantee: true,
        io: arguments.io,
        priority: DataPlanePriority::Auto,
        cores: evenkeel_server::cores(),
        recorder: None,
        is_test: false,
        feel_seed: None,
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
    let text = report.to_text();
    let (figures, last) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
    output::print(&format!("{figures}\nreport: {}\n{last}\n", shown.display()))?;
    let says = Says {
        broken: "a promise was broken",
        gone: "the server is gone",
        hint: Some("`evenkeel doctor` checks whether the machine is suitable"),
        again: AGAIN,
    };
    says.of(report.outcome)
}

/// Creates the volumes through the API, then runs and judges their load.
fn drive(
    arguments: &Demo,
    config: &Config,
    running: &Running,
    folder: &Path,
) -> Result<Report, Failure> {
    let region = &config.settings.region;
    let client = connect::client_of_server(running.api, Scheme::Http, region, &config.data_dir)?;
    let logs = folder.join("fio");
    std::fs::create_dir(&logs)
        .map_err(|error| Failure::new(format!("{}: {error}", logs.display())))?;
    let mut plans = plans();
    let mut ids = Vec::new();
    for plan in &plans {
        let tags = vec![("Name".to_owned(), plan.name.to_owned())];
        let new = NewVolume { tags, ..NewVolume::from(&plan.request) };
        let volume = volumes::create_and_attach(&client, &new, VOLUME_WAIT_MAX)?;
        eprintln!("{:<7} {}  {}", plan.name, volume.volume_id, shown(plan));
        ids.push(volume.volume_id);
    }
    let duration_s = saturating::<_, u32>(arguments.time.as_secs());
    let place = Place { rules: config.settings.rules, nbd: running.nbd, duration_s };
    eprintln!("measuring for {} s how many IOPS this machine gives", demo::LOOK_S);
    let found = demo::available(&place.volumes(&plans, &ids)?, &logs).map_err(failed)?;
    for ((plan, id), found) in plans.iter_mut().zip(&ids).zip(found) {
        plan.promise_what_is_there(&client, id, found)?;
    }
    let volumes = place.volumes(&plans, &ids)?;
    let recording = Recording::begin(&running.recorder, &volumes);
    // Set last, so that few credits are earned until the load begins.
    for (plan, id) in plans.iter().zip(&ids) {
        if let Some(credits) = plan.credits {
            volumes::set_credits(&client, id, credits)?;
        }
    }
    let mut progress = Progress::new(u64::from(duration_s));
    let mut raise = Raise::new(&client, &plans, &ids, duration_s);
    let show = &mut |volumes: &[VolumeProgress]| {
        progress.show(volumes);
        raise.when_due(volumes);
    };
    let title = "Four volumes driven at once by fio over NBD";
    let serving = Serving::Here(recording);
    let report = demo::run(title, &volumes, &Bands::PROMISE, &logs, serving, show);
    progress.bar.finish_and_clear();
    raise.finish()?;
    Ok(report?)
}

impl Plan {
    /// Lowers the IOPS of a volume with provisioned IOPS to what the machine delivers now.
    fn promise_what_is_there(
        &mut self,
        client: &Client,
        id: &str,
        found: u64,
    ) -> Result<(), Failure> {
        let Some(wanted) = self.request.iops.filter(|_| self.takes_what_is_there) else {
            return Ok(());
        };
        let affordable = demo::affordable(wanted.into(), found);
        if affordable >= u64::from(wanted) {
            return Ok(());
        }
        let iops = u32::try_from(affordable).unwrap_or(wanted);
        eprintln!(
            "{}: this machine gives {found} of {wanted} IOPS beside its other programs: {iops} \
             are promised",
            self.name
        );
        self.request.iops = Some(iops);
        modify(client, id, |change| change.iops = Some(iops))
    }
}

fn modify(
    client: &Client,
    id: &str,
    change: impl FnOnce(&mut VolumeModify),
) -> Result<(), Failure> {
    let volume = id.parse().map_err(|error| Failure::new(format!("{id}: {error}")))?;
    // The limits are in force when the call returns, and no volume is modified twice.
    let wait = Wait { wait: false, timeout: VOLUME_WAIT_MAX };
    let mut modify =
        VolumeModify { volume, volume_type: None, size: None, iops: None, throughput: None, wait };
    change(&mut modify);
    volume::modify(client, &modify)
}

/// Raises the throughput of the general purpose volume in the middle of the load.
struct Raise<'a> {
    client: &'a Client,
    id: Option<&'a str>,
    due_ms: u64,
    result: Result<(), Failure>,
}

impl<'a> Raise<'a> {
    fn new(client: &'a Client, plans: &[Plan], ids: &'a [String], duration_s: u32) -> Self {
        let raised = plans.iter().position(|plan| plan.raised().is_some());
        let id = raised.map(|index| ids[index].as_str());
        Self { client, id, due_ms: u64::from(duration_s) * 500, result: Ok(()) }
    }

    fn when_due(&mut self, volumes: &[VolumeProgress]) {
        if volumes.iter().any(|volume| volume.runtime_ms >= self.due_ms)
            && let Some(id) = self.id.take()
        {
            let change = |change: &mut VolumeModify| change.throughput = Some(RAISED_MIBPS);
            self.result = modify(self.client, id, change);
        }
    }

    fn finish(self) -> Result<(), Failure> {
        self.result
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

impl Plan {
    /// Returns the volume's request after the modification in the middle of the load, if there is
    /// one.
    fn raised(&self) -> Option<VolumeRequest> {
        let throughput_mibps =
            (self.request.volume_type == VolumeType::Gp3).then_some(RAISED_MIBPS);
        throughput_mibps
            .map(|mibps| VolumeRequest { throughput_mibps: Some(mibps), ..self.request })
    }
}

/// The rules, the server and the length of the load, which all volumes share.
struct Place<'a> {
    rules: &'a Rules,
    nbd: SocketAddr,
    duration_s: u32,
}

impl Place<'_> {
    fn volumes(&self, plans: &[Plan], ids: &[String]) -> Result<Vec<DemoVolume>, Failure> {
        plans
            .iter()
            .zip(ids)
            .zip(1..)
            .map(|((plan, id), seed)| self.volume(plan, id, seed))
            .collect()
    }

    fn volume(&self, plan: &Plan, id: &str, seed: u64) -> Result<DemoVolume, Failure> {
        let spec = self.rules.resolve(&plan.request).map_err(failed)?;
        let pacing = self.rules.pacing(&spec);
        let mut pacings = vec![pacing];
        if let Some(raised) = plan.raised() {
            pacings.push(self.rules.pacing(&self.rules.resolve(&raised).map_err(failed)?));
        }
        let iops = pacing.operations.map_or(0, |limit| limit.per_second);
        let mut workload = demo::workload(plan.read_percent, iops, seed);
        workload.duration_s = self.duration_s;
        let balances = Balances { operations: plan.credits, bytes: None };
        let volume = id.parse().map_err(|error| Failure::new(format!("{id}: {error}")))?;
        Ok(DemoVolume {
            name: plan.name.to_owned(),
            volume_type: spec.volume_type.to_string(),
            size_gib: spec.size_gib,
            promise: Promise::from_pacing(&pacing, balances),
            workload,
            uri: NbdUri::tcp(self.nbd, id),
            provisioned: Some(Provisioned { id: volume, pacings, balances }),
        })
    }
}

/// A server in a thread of this process.
struct Running {
    api: SocketAddr,
    nbd: SocketAddr,
    recorder: Recorder,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Running {
    /// Starts the server and waits until it answers. `folder` is removed if the process gets a
    /// signal to stop.
    fn start(config: Config, folder: PathBuf) -> Result<Self, Failure> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (to_recorder, recorder) = mpsc::channel();
        let config = Config { recorder: Some(to_recorder), ..config };
        let (ready, started) = mpsc::channel::<Addresses>();
        let until = async move {
            tokio::select! {
                _ = stopped => {}
                () = signals::stop_signal() => signals::interrupted(&[folder]),
            }
        };
        let thread = std::thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || {
                let ready = |addresses: &Addresses| {
                    let _ = ready.send(addresses.clone());
                };
                evenkeel_server::run(&config, &AtomicBool::new(false), ready, until)
            })
            .map_err(|error| Failure::new(format!("a thread for the server: {error}")))?;
        let unready = || Failure::new("the server ended before it was ready");
        match started.recv() {
            Ok(Addresses { api, nbd, .. }) => {
                let nbd = nbd.first().copied().ok_or_else(unready)?;
                let recorder = recorder.try_recv().map_err(|_| unready())?;
                Ok(Self { api, nbd, recorder, stop, thread })
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
        let place = Place { rules: Rules::newest(), nbd, duration_s: 30 };
        for plan in plans() {
            let volume = place.volume(&plan, "vol-00000000000000001", 1).unwrap();
            assert_eq!(volume.workload.duration_s, 30);
            assert!(volume.workload.validate().is_ok());
            assert!(volume.promise.operations.is_some(), "{}", plan.name);
            let pacings = volume.provisioned.unwrap().pacings;
            assert!(pacings.iter().all(|pacing| pacing.operations == pacings[0].operations));
            assert_eq!(pacings.len(), if plan.name == "gp3" { 2 } else { 1 });
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
