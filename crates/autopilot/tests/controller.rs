//! Tests of the controller, with a host, an API and a journal in memory that can be killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use evenkeel_autopilot::audit::{Replayed, read, replay};
use evenkeel_autopilot::journal::{Bounds, Folder};
use evenkeel_autopilot::orders::{Held, Paused};
use evenkeel_autopilot::{Cloud, Controller, Fault, Host, Journal, Known, Memory, Orders};
use evenkeel_core::units::GIB;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_planner::autopilot::PolicyFile;
use evenkeel_planner::autopilot::evidence::evidence;
use evenkeel_planner::autopilot::observation::{
    Account, Conditions, Device, FileSystem, Instance, Kind, Modification, Profile, Volume,
    VolumeState,
};
use evenkeel_planner::autopilot::operation::{Call, Open, Operation, Verb};
use evenkeel_planner::autopilot::page::page;
use evenkeel_planner::autopilot::policy::{Mode, Policy};
use evenkeel_planner::fleet;
use evenkeel_planner::trace::{Clock, Columns, Interval, Kind as Amount, Trace};
use std::cell::RefCell;
use std::rc::Rc;

const UUID: &str = "0badcafe-0000-4000-8000-000000000001";
const START_MS: u64 = 1_795_633_200_000;
const TICK_MS: u64 = 10_000;

/// All that is outside of a controller, and survives it.
#[derive(Default)]
struct Outside {
    now_ms: u64,
    used_bytes: u64,
    devices: Vec<Device>,
    volumes: Vec<Volume>,
    memory: Option<Memory>,
    audit: Vec<String>,
    orders: Orders,
    /// Calls, verbs and writes that had an effect.
    events: Vec<String>,
    /// Effects until the controller is killed, and whether the last one happens before that.
    kill: Option<(usize, bool)>,
    is_killed: bool,
    is_api_away: bool,
    is_host_away: bool,
    /// Whether no volume has a device that can be probed.
    is_unprobed: bool,
    refuses: Option<&'static str>,
}

#[derive(Clone)]
struct Fake(Rc<RefCell<Outside>>);

fn gp3(size_gib: u32) -> VolumeSpec {
    VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    }
}

fn volume(id: &str, size_gib: u32) -> Volume {
    Volume {
        exceeded_s: Some(0),
        used_mibps: Some(5),
        ..Volume::new(id.to_owned(), gp3(size_gib), VolumeState::Attached, 0)
    }
}

fn device(id: &str, bytes: u64) -> Device {
    Device {
        devid: 1,
        path: format!("/dev/{id}"),
        volume: Some(id.to_owned()),
        device_bytes: bytes,
        size_bytes: bytes,
        allocated_bytes: bytes / 2,
        errors: 0,
    }
}

fn policy(mode: Mode) -> Policy {
    let mut policy = Policy::usual("default", fleet::Policy::usual());
    policy.mode = mode;
    policy
}

/// Returns a file system of 40 GiB with this many bytes in use.
fn outside(used_bytes: u64) -> Fake {
    Fake(Rc::new(RefCell::new(Outside {
        now_ms: START_MS,
        used_bytes,
        devices: vec![device("vol-1", 40 * GIB)],
        volumes: vec![volume("vol-1", 40)],
        ..Outside::default()
    })))
}

impl Fake {
    fn controller(&self, mode: Mode) -> Controller<Self, Self, Self> {
        Controller::new(self.clone(), self.clone(), self.clone(), policy(mode))
    }

    /// Lets an effect happen, or kills the controller.
    fn effect(&self, name: &str) -> Result<(), Fault> {
        let mut outside = self.0.borrow_mut();
        let killed = Err(Fault::Later("killed".to_owned()));
        if outside.is_killed {
            return killed;
        }
        if outside.refuses.is_some_and(|refused| name.starts_with(refused)) {
            return Err(Fault::Refused(format!("{name} is refused")));
        }
        match &mut outside.kill {
            Some((0, _)) => {
                outside.is_killed = true;
                return killed;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        outside.events.push(name.to_owned());
        Ok(())
    }

    /// Returns the answer of an effect that has happened: lost, if the controller is killed now.
    fn answer(&self) -> Result<(), Fault> {
        let mut outside = self.0.borrow_mut();
        if outside.kill == Some((0, true)) {
            outside.is_killed = true;
            return Err(Fault::Later("killed".to_owned()));
        }
        Ok(())
    }

    fn events(&self) -> Vec<String> {
        self.0.borrow().events.clone()
    }

    /// Ticks some times, and completes what the API does meanwhile.
    fn ticks(&self, controller: &mut Controller<Self, Self, Self>, count: u32) {
        for _ in 0..count {
            let now_ms = self.0.borrow().now_ms;
            let _ = controller.tick(now_ms);
            let mut outside = self.0.borrow_mut();
            outside.now_ms += TICK_MS;
            for volume in &mut outside.volumes {
                if volume.modification == Some(Modification::Modifying) {
                    volume.modification = Some(Modification::Optimizing);
                }
                volume.state = match volume.state {
                    VolumeState::Creating => VolumeState::Available,
                    VolumeState::Attaching { .. } => VolumeState::Attached,
                    VolumeState::Detaching => VolumeState::Available,
                    state => state,
                };
            }
        }
    }
}

impl Host for Fake {
    fn observe(&mut self) -> Result<FileSystem, Fault> {
        let outside = self.0.borrow();
        if outside.is_host_away || outside.is_killed {
            return Err(Fault::Later("away".to_owned()));
        }
        let size_bytes = outside.devices.iter().map(|device| device.size_bytes).sum::<u64>();
        Ok(FileSystem {
            uuid: UUID.to_owned(),
            kind: Kind::Btrfs,
            mount: "/srv".to_owned(),
            size_bytes,
            used_bytes: outside.used_bytes,
            free_bytes: size_bytes - outside.used_bytes,
            data: Some(Profile::Single),
            metadata: Some(Profile::Dup),
            devices: outside.devices.clone(),
            chunk_slack_bytes: 0,
            dirty_limit_bytes: 1 << 28,
            largest_jump_bytes: 0,
            peak_used_bytes: 0,
            largest_growth_bytes: 0,
            conditions: Conditions::default(),
            running: None,
            flush: None,
        })
    }

    fn has_superblock(&mut self, _: &str) -> Result<Option<bool>, Fault> {
        Ok((!self.0.borrow().is_unprobed).then_some(false))
    }

    fn execute(&mut self, verb: &Verb) -> Result<(), Fault> {
        let mut outside = match verb {
            Verb::Rescan { .. } => {
                self.effect("rescan")?;
                self.0.borrow_mut()
            }
            Verb::Grow { .. } => {
                self.effect("grow")?;
                self.0.borrow_mut()
            }
            other => panic!("{other:?}"),
        };
        let bytes = u64::from(outside.volumes[0].spec.size_gib) * GIB;
        match verb {
            Verb::Rescan { .. } => outside.devices[0].device_bytes = bytes,
            _ => outside.devices[0].size_bytes = outside.devices[0].device_bytes,
        }
        drop(outside);
        self.answer()
    }
}

impl Cloud for Fake {
    fn observe(&mut self, _: &str, _: &[String]) -> Result<Known, Fault> {
        let outside = self.0.borrow();
        if outside.is_api_away || outside.is_killed {
            return Err(Fault::Later("away".to_owned()));
        }
        Ok(Known {
            volumes: outside.volumes.clone(),
            instance: Some(Instance {
                id: "i-1".to_owned(),
                instance_type: "m5.large".to_owned(),
                free_slots: 5,
                other_iops: 0,
                other_mibps: 0,
                operations: 0,
            }),
            account: Account::default(),
            unix_ms: Some(outside.now_ms),
        })
    }

    fn execute(&mut self, _: &str, call: &Call) -> Result<(), Fault> {
        let now_ms = self.0.borrow().now_ms;
        let named = |outside: &mut Outside, id: &str, change: &dyn Fn(&mut Volume)| {
            let mut volumes = outside.volumes.iter_mut();
            change(volumes.find(|volume| volume.id == id).expect("a volume"));
        };
        match call {
            Call::Modify { volume, to } => {
                self.effect("modify")?;
                named(&mut self.0.borrow_mut(), volume, &|volume| {
                    volume.spec = *to;
                    volume.modification = Some(Modification::Modifying);
                    volume.modified_ms.push(now_ms);
                });
            }
            Call::Retire { volume } => {
                self.effect("retire")?;
                named(&mut self.0.borrow_mut(), volume, &|volume| {
                    volume.retired_ms = Some(now_ms);
                });
            }
            Call::Detach { volume } => {
                self.effect("detach")?;
                named(&mut self.0.borrow_mut(), volume, &|volume| {
                    volume.state = VolumeState::Detaching;
                });
            }
            other => panic!("{other:?}"),
        }
        self.answer()
    }
}

impl Journal for Fake {
    fn load(&mut self, _: &str) -> Result<Memory, Fault> {
        Ok(self.0.borrow().memory.clone().unwrap_or_default())
    }

    fn store(&mut self, _: &str, memory: &Memory) -> Result<(), Fault> {
        self.effect("store")?;
        self.0.borrow_mut().memory = Some(memory.clone());
        self.answer()
    }

    fn audit(&mut self, _: u64, line: &str) -> Result<(), Fault> {
        self.effect("audit")?;
        self.0.borrow_mut().audit.push(line.to_owned());
        self.answer()
    }

    fn orders(&mut self) -> Result<Orders, Fault> {
        Ok(self.0.borrow().orders.clone())
    }
}

fn open(fake: &Fake) -> Vec<Open> {
    fake.0.borrow().memory.clone().unwrap_or_default().state.open
}

fn is_act(event: &str) -> bool {
    !matches!(event, "store" | "audit")
}

#[test]
fn tick_stores_the_intent_before_its_first_step() {
    let fake = outside(36 * GIB);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    assert_eq!(fake.events(), ["audit", "store", "modify", "audit"]);
    fake.ticks(&mut controller, 4);
    let acts: Vec<String> = fake.events().into_iter().filter(|event| is_act(event)).collect();
    assert_eq!(acts, ["modify", "rescan", "grow"]);
    assert!(open(&fake).is_empty());
    let outside = fake.0.borrow();
    assert!(outside.devices[0].size_bytes > 40 * GIB);
    let past = &outside.memory.as_ref().unwrap().state.past;
    assert!(past.iter().any(|past| past.is_done && past.is_up));
}

#[test]
fn tick_writes_a_line_also_without_a_change() {
    let fake = outside(GIB);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 3);
    assert_eq!(fake.events(), ["audit", "store", "audit", "store", "audit", "store"]);
}

#[test]
fn modes_without_act_pauses_and_holds_make_no_call() {
    let hold = Some(Held { until_ms: START_MS + 86_400_000, reason: "holidays".to_owned() });
    let pause = Some(Paused { since_ms: 1, reason: "holidays".to_owned() });
    let none = Orders::default;
    for (mode, orders) in [
        (Mode::Observe, none()),
        (Mode::Advise, none()),
        (Mode::Act, Orders { hold, ..none() }),
        (Mode::Act, Orders { pause, ..none() }),
    ] {
        let fake = outside(36 * GIB);
        fake.0.borrow_mut().orders = orders;
        let mut controller = fake.controller(mode);
        fake.ticks(&mut controller, 5);
        assert!(!fake.events().iter().any(|event| is_act(event)), "{mode:?}");
        assert!(open(&fake).is_empty(), "{mode:?}");
    }
}

#[test]
fn release_ends_a_hold_and_forgets_failures_once() {
    let fake = outside(GIB);
    let hold = Some(Held { until_ms: START_MS + 86_400_000, reason: "holidays".to_owned() });
    fake.0.borrow_mut().orders = Orders { hold, ..Orders::default() };
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    let state = || fake.0.borrow().memory.clone().unwrap().state;
    assert!(state().hold.is_some());
    fake.0.borrow_mut().orders = Orders { released_ms: 5, ..Orders::default() };
    fake.ticks(&mut controller, 1);
    assert_eq!(state().hold, None);
    drop(controller);
    fake.0.borrow_mut().memory.as_mut().unwrap().state.failures = 2;
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    assert_eq!(state().failures, 2);
}

#[test]
fn kill_between_any_two_effects_leaves_one_modification() {
    for is_after in [false, true] {
        for effects in 0..16 {
            let fake = outside(36 * GIB);
            fake.0.borrow_mut().kill = Some((effects, is_after));
            let mut controller = fake.controller(Mode::Act);
            fake.ticks(&mut controller, 8);
            drop(controller);
            fake.0.borrow_mut().kill = None;
            fake.0.borrow_mut().is_killed = false;
            let mut controller = fake.controller(Mode::Act);
            fake.ticks(&mut controller, 8);
            assert!(open(&fake).is_empty(), "{effects} {is_after}");
            let outside = fake.0.borrow();
            let count = outside.events.iter().filter(|event| *event == "modify").count();
            assert_eq!(count, 1, "{effects} {is_after}: {:?}", outside.events);
            let bytes = u64::from(outside.volumes[0].spec.size_gib) * GIB;
            assert_eq!(outside.devices[0].size_bytes, bytes, "{effects} {is_after}");
        }
    }
}

#[test]
fn journal_that_cannot_be_written_prevents_every_call() {
    let fake = outside(36 * GIB);
    fake.0.borrow_mut().refuses = Some("store");
    let mut controller = fake.controller(Mode::Act);
    let result = controller.tick(START_MS);
    assert_eq!(result, Err(Fault::Refused("store is refused".to_owned())));
    assert!(!fake.events().iter().any(|event| is_act(event)));
}

#[test]
fn step_that_is_refused_twice_ends_its_operation() {
    let fake = outside(36 * GIB);
    fake.0.borrow_mut().refuses = Some("modify");
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    let state = fake.0.borrow().memory.clone().unwrap().state;
    assert_eq!((state.waiting.len(), state.failures), (1, 0));
    assert_eq!(state.waiting[0].reason, "modify is refused");
    fake.ticks(&mut controller, 1);
    let state = fake.0.borrow().memory.clone().unwrap().state;
    assert_eq!(state.failure.as_deref(), Some("modify is refused"));
    assert_eq!((state.open.len(), state.open[0].cancelled, state.failures), (1, true, 1));
    fake.ticks(&mut controller, 1);
    let state = fake.0.borrow().memory.clone().unwrap().state;
    assert_eq!((state.open.len(), state.failures, state.waiting.len()), (0, 1, 0));
}

/// A volume that cannot be probed keeps its operation open; `status` has the reason.
#[test]
fn operation_that_waits_is_remembered_with_its_reason() {
    let fake = outside(GIB);
    fake.0.borrow_mut().is_unprobed = true;
    let mut left = volume("vol-2", 10);
    left.made_by = Some("0badcafe-9.0".to_owned());
    left.retired_ms = Some(START_MS);
    fake.0.borrow_mut().volumes.push(left);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 2);
    let state = fake.0.borrow().memory.clone().unwrap().state;
    assert_eq!((state.open.len(), state.waiting.len()), (1, 1), "{state:#?}");
    assert_eq!(state.waiting[0].operation, state.open[0].id);
    assert!(state.waiting[0].reason.contains("no device here that can be probed"));
    assert_eq!(state.waiting[0].since_ms, START_MS);
}

#[test]
fn no_step_is_executed_by_an_old_list_of_devices() {
    let fake = outside(36 * GIB);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    fake.0.borrow_mut().is_host_away = true;
    fake.ticks(&mut controller, 3);
    let acts: Vec<String> = fake.events().into_iter().filter(|event| is_act(event)).collect();
    assert_eq!(acts, ["modify"]);
    fake.0.borrow_mut().is_host_away = false;
    fake.ticks(&mut controller, 3);
    assert!(open(&fake).is_empty());
}

#[test]
fn file_system_below_its_reserve_grows_into_its_devices_without_the_api() {
    let fake = outside(79 * GIB / 2);
    fake.0.borrow_mut().devices[0].device_bytes = 50 * GIB;
    fake.0.borrow_mut().is_api_away = true;
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 2);
    let acts: Vec<String> = fake.events().into_iter().filter(|event| is_act(event)).collect();
    assert_eq!(acts, ["grow"]);
    assert_eq!(fake.0.borrow().devices[0].size_bytes, 50 * GIB);
    let line = fake.0.borrow().audit.iter().find(|line| line.contains("\"after\"")).cloned();
    assert!(line.unwrap().contains("\"operation\":\"reserve\""));
}

#[test]
fn volume_that_no_operation_knows_is_marked_and_detached() {
    let fake = outside(GIB);
    let mut left = volume("vol-2", 10);
    left.made_by = Some("0badcafe-3.0".to_owned());
    fake.0.borrow_mut().volumes.push(left);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 5);
    let acts: Vec<String> = fake.events().into_iter().filter(|event| is_act(event)).collect();
    assert_eq!(acts, ["retire", "detach"]);
    assert!(open(&fake).is_empty());
    fake.ticks(&mut controller, 3);
    assert_eq!(fake.events().iter().filter(|event| is_act(event)).count(), 2);
}

#[test]
fn volume_of_the_file_system_is_never_cleared() {
    let fake = outside(GIB);
    fake.0.borrow_mut().volumes[0].made_by = Some("0badcafe-3.0".to_owned());
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 3);
    assert!(!fake.events().iter().any(|event| is_act(event)));
}

#[test]
fn decisions_of_an_audit_replay_to_the_same_bytes() {
    let fake = outside(36 * GIB);
    let mut controller = fake.controller(Mode::Act);
    for number in 0..12 {
        fake.0.borrow_mut().is_api_away = number % 5 == 4;
        fake.0.borrow_mut().orders.pause =
            (number == 7).then(|| Paused { since_ms: 1, reason: "a test".to_owned() });
        fake.0.borrow_mut().used_bytes += GIB / 2;
        fake.ticks(&mut controller, 1);
    }
    let lines = fake.0.borrow().audit.clone();
    let mut count = 0;
    for line in lines.iter().filter(|line| line.contains("\"inputs\"")) {
        let decided = read(line).unwrap();
        // The policy of the file is not paused; the line says whether it was.
        assert_eq!(replay(&decided, &policy(Mode::Act)), Ok(Replayed::Same));
        count += 1;
    }
    assert_eq!(count, 12);
    let mut other = policy(Mode::Act);
    other.space.reserve_bytes_min *= 4;
    let decided = read(&lines[0]).unwrap();
    assert!(matches!(replay(&decided, &other), Ok(Replayed::Differs(_))));
}

/// A clock is set forth by a year and back by two, and starts at 1970. Every tick decides, and
/// every decision replays.
#[test]
fn controller_decides_whatever_its_clock_does() {
    const YEAR_MS: u64 = 365 * 86_400_000;
    let fake = outside(36 * GIB);
    let mut controller = fake.controller(Mode::Advise);
    let jumps = [START_MS, START_MS + YEAR_MS, START_MS - YEAR_MS, 0, START_MS + TICK_MS];
    for now_ms in jumps {
        fake.0.borrow_mut().now_ms = now_ms;
        let ticked = controller.tick(now_ms).unwrap();
        assert!(ticked.decision.is_some(), "{now_ms}: {:?}", ticked.faults);
    }
    let outside = fake.0.borrow();
    let decided = outside.audit.iter().filter(|line| line.contains("\"inputs\""));
    let same = decided.map(|line| replay(&read(line).unwrap(), &policy(Mode::Advise)));
    assert_eq!(same.collect::<Vec<_>>(), vec![Ok(Replayed::Same); jumps.len()]);
}

#[test]
fn line_that_was_changed_is_an_error() {
    let fake = outside(36 * GIB);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 1);
    let line = fake.0.borrow().audit[0].clone();
    let changed = line.replace("\"used-bytes\":38654705664", "\"used-bytes\":38654705665");
    assert_ne!(line, changed);
    let error = read(&changed).unwrap_err();
    assert!(error.contains("the line was changed"), "{error}");
    let error = read(&line.replace("{\"form\":1,", "{\"form\":2,")).unwrap_err();
    assert!(error.contains("the form 2, and this program reads 1"), "{error}");
    assert!(read("{\"form\":1,").unwrap_err().contains("no line of a decision"));
}

#[test]
fn delete_operation_is_opened_by_its_intent_only() {
    let fake = outside(GIB);
    let mut retired = volume("vol-2", 10);
    retired.retired_ms = Some(START_MS);
    retired.state = VolumeState::Available;
    fake.0.borrow_mut().volumes.push(retired);
    let mut controller = fake.controller(Mode::Act);
    fake.ticks(&mut controller, 3);
    let is_deletion = |open: &Open| matches!(open.operation, Operation::Delete { .. });
    assert!(!open(&fake).iter().any(is_deletion));
}

/// Where a folder of an agent is kept for the tests of the command line.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/samples/folder");

/// Returns the files below a folder with their texts, by relative path.
fn files(folder: &std::path::Path) -> std::collections::BTreeMap<String, String> {
    let mut files = std::collections::BTreeMap::new();
    for name in [".", "state", "audit", "policies", "pages"] {
        for entry in std::fs::read_dir(folder.join(name)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let relative = path.strip_prefix(folder).expect("a file of the folder");
                let relative = relative.to_string_lossy().into_owned();
                files.insert(relative, std::fs::read_to_string(&path).expect("a text"));
            }
        }
    }
    files
}

/// Returns a recording of 15 days in steps of five minutes, with 500 reads of 4 KiB a second.
fn recording(end_ms: u64) -> Trace {
    const STEP_MS: u64 = 300_000;
    const STEPS: u64 = 15 * 288;
    let step = |number: u64| Interval {
        start_ms: end_ms - (STEPS - number) * STEP_MS,
        length_ms: STEP_MS,
        reads: 150_000,
        read_bytes: 150_000 * 4_096,
        is_censored: Some(false),
        ..Interval::default()
    };
    let columns =
        Columns { requests: Some(Amount::Sum), bytes: Some(Amount::Sum), ..Columns::default() };
    Trace::new("vol-1", Clock::Unix, columns, (0..STEPS).map(step).collect()).expect("a trace")
}

/// `EVENKEEL_WRITE=1` writes the sample anew, after a change of decisions.
#[test]
fn sample_folder_is_what_a_controller_writes() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Folder::claim(temp.path(), Bounds::default()).unwrap();
    let text = PolicyFile::usual_text().replace("mode = \"observe\"", "mode = \"act\"");
    let file = PolicyFile::parse(&text, &fleet::Policy::usual()).unwrap();
    let fake = outside(36 * GIB);
    let group = file.groups[0].clone();
    let mut controller = Controller::new(fake.clone(), fake.clone(), folder.journal(), group);
    controller.policy_digest = folder.keep_policy(&text).unwrap();
    for _ in 0..5 {
        let now_ms = fake.0.borrow().now_ms;
        controller.tick(now_ms).unwrap();
        let mut outside = fake.0.borrow_mut();
        outside.now_ms += TICK_MS;
        if outside.volumes[0].modification == Some(Modification::Modifying) {
            outside.volumes[0].modification = Some(Modification::Optimizing);
        }
    }
    fake.0.borrow_mut().used_bytes = 50 * GIB;
    let now_ms = fake.0.borrow().now_ms;
    let spec = fake.0.borrow().volumes[0].spec;
    let recorded = [("vol-1".to_owned(), spec, recording(now_ms))];
    let made = evidence(&controller.policy, &recorded, None, now_ms);
    folder.keep_page(&made, &page(&controller.policy, &recorded, &made)).unwrap();
    controller.evidence = Some(made);
    controller.tick(now_ms).unwrap();
    let written = files(temp.path());
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        let _ = std::fs::remove_dir_all(SAMPLE);
        for (name, text) in &written {
            let path = std::path::Path::new(SAMPLE).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    for (name, text) in files(std::path::Path::new(SAMPLE)) {
        assert_eq!(written.get(&name), Some(&text), "{name}: EVENKEEL_WRITE=1 writes it anew");
    }
    assert_eq!(files(std::path::Path::new(SAMPLE)).len(), written.len());
}
