//! Random signed requests for every action, with parameters that are right, wrong or of another
//! action. Every reply is a well-formed document, every refusal has a code and a text, none is a
//! failure of the server, and the model keeps its rules. Each case has a seed; see
//! `support/random.rs`.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_control::api::{ACTIONS, Action, Api};
use evenkeel_control::credentials::Credentials;
use evenkeel_control::events::Events;
use evenkeel_control::faults::Faults;
use evenkeel_control::journal::Journal;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::{Phase, Settings, StoreKey};
use evenkeel_control::plane::{Plane, TestServer};
use evenkeel_control::server_clock::ServerClock;
use evenkeel_control::{DATABASE_FILE_NAME, Endpoint};
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_telemetry::events::webhook::Webhooks;
use evenkeel_telemetry::recording::Recorder;
use evenkeel_wire::agent::{Agent, Space};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::xml::Element;
use support::random::{Random, seeds};
use support::{FakeAgent, FakeIo, execute};

/// Number of histories of a plain run.
const CASES: u64 = 8;
/// Number of requests in each.
const REQUESTS: u32 = 280;
/// Maximum number of actions that never succeed in a run, since they need many conditions.
const NEVER_MAX: usize = 4;
/// Maximum of bytes of a reply: a thousand list items of a few hundred bytes each.
const REPLY_BYTES_MAX: usize = 4 << 20;

/// Actions with their parameters, each with the kind of its value. A parameter that begins with `?`
/// is left out sometimes.
const REQUESTS_OF: &str = include_str!("fuzz_actions.txt");

struct World {
    api: Api,
    agent: Arc<FakeAgent>,
    credentials: Credentials,
    random: Random,
    /// Ids found in replies: volumes, snapshots, hosts.
    ids: [Vec<String>; 3],
    tokens: Vec<String>,
    /// Actions that have succeeded.
    reached: BTreeSet<&'static str>,
    _kept: (Events, Recorder),
    folder: tempfile::TempDir,
}

impl World {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = Arc::new(FakeAgent::default());
        let mut random = Random::new(seed);
        let total = ByteCount(2_000 * GIB);
        let free = ByteCount(1_000 * GIB);
        agent.with(|state| state.space = Some(Space { total, free }));
        let settings = Settings {
            key: random.one_in(2).then(|| StoreKey { id: "k".into() }),
            recycle_bin_days: random.below(2) as u32,
            ..Settings::default()
        };
        let journal = SqliteJournal::open(&folder.path().join(DATABASE_FILE_NAME)).unwrap();
        let its = Arc::clone(&agent) as Arc<dyn Agent>;
        let clock = Arc::new(ServerClock::of_test(folder.path()).unwrap());
        let faults = Arc::new(Faults::of_test(Arc::<FakeIo>::default()));
        let test = TestServer { clock, faults, feel: None };
        let plane = Plane::start_test(Box::new(journal), settings, its, test, || {}).unwrap();
        let events = Events::start(folder.path(), &plane, &Webhooks::default());
        let recorder = Recorder::start(folder.path(), plane.settings.record_days);
        let plane = plane.with_recording(recorder.recording());
        let credentials =
            Credentials { access_key_id: "AKIDFUZZ".into(), secret_access_key: "secret".into() };
        let endpoints = vec![Endpoint::NbdTcp("127.0.0.1:10809".parse().unwrap())];
        let api = Api::new(Arc::new(plane), credentials.clone(), endpoints, None);
        let kept = (events, recorder);
        let ids = [const { Vec::new() }; 3];
        let tokens = vec![];
        let reached = BTreeSet::new();
        Self { api, agent, credentials, random, ids, tokens, reached, _kept: kept, folder }
    }

    /// Creates a few objects for the requests.
    fn furnish(&mut self) {
        let named = |name: &str| ACTIONS.iter().find(|action| action.name == name).unwrap();
        let new = [("AvailabilityZone", "local-1a"), ("Size", "8"), ("VolumeType", "gp3")];
        let owned = |params: &[(&str, &str)]| -> Vec<(String, String)> {
            params.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        for _ in 0..4 {
            self.ask(named("CreateVolume"), &owned(&new));
        }
        for of in self.ids[0].clone() {
            self.ask(named("CreateSnapshot"), &owned(&[("VolumeId", &of)]));
        }
        self.ask(named("RegisterHost"), &owned(&[("InstanceType", "m5.large")]));
        self.ask(named("DescribeInstances"), &[]);
    }

    fn step(&mut self) {
        if self.random.one_in(20) {
            self.api.plane().tick();
        }
        if self.random.one_in(30) {
            let id = format!("vol-{:017x}", self.random.bits() >> 8);
            let id = id.parse().unwrap();
            self.agent.with(|state| state.unowned.insert(id, ByteCount(GIB)));
        }
        let action = &ACTIONS[self.random.below(ACTIONS.len())];
        let params = self.params(action);
        self.ask(action, &params);
        self.api.plane().invariants();
        let model = self.api.plane().model();
        for volume in model.volumes.values() {
            let waits = volume.phase == Phase::Creating && volume.through.is_some();
            assert!(volume.is_settled() || waits, "{volume:?}");
            for attachment in &volume.attachments {
                assert!(model.hosts.contains_key(&attachment.instance), "{attachment:?}");
            }
        }
    }

    fn params(&mut self, action: &Action) -> Vec<(String, String)> {
        let lines = || REQUESTS_OF.lines().filter(|line| !line.starts_with('#'));
        let own = lines().find(|line| line.split(' ').next() == Some(action.name));
        let own = own.unwrap_or_else(|| panic!("{} is not in fuzz_actions.txt", action.name));
        let mut params = Vec::new();
        for word in own.split(' ').skip(1) {
            self.add(&mut params, word);
        }
        while self.random.one_in(10) {
            let other = lines().nth(self.random.below(lines().count())).unwrap();
            let words: Vec<&str> = other.split(' ').skip(1).collect();
            if let Some(word) = self.random.of(&words) {
                self.add(&mut params, word);
            }
        }
        if self.random.one_in(20) && !params.is_empty() {
            let offset = self.random.below(params.len());
            let name = &mut params[offset].0;
            match self.random.below(4) {
                0 => name.push_str(".1"),
                1 => *name = name.replace(".1", ".999999999999"),
                2 => *name = name.to_lowercase(),
                _ => name.push('\u{1F6A2}'),
            }
        }
        params
    }

    /// Adds a parameter, most often with a value of its kind.
    fn add(&mut self, params: &mut Vec<(String, String)>, word: &str) {
        let (name, kind) = word.trim_start_matches('?').split_once('=').unwrap();
        if word.starts_with('?') && !self.random.one_in(5) || self.random.one_in(40) {
            return;
        }
        let value = if self.random.one_in(25) { self.junk() } else { self.value(kind) };
        params.push((name.to_owned(), value));
    }

    fn value(&mut self, kind: &str) -> String {
        const TYPES: [&str; 7] = ["gp2", "gp3", "gp3", "io1", "io2", "st1", "standard"];
        const DEVICES: [&str; 4] = ["/dev/sdf", "/dev/sdg", "xvdh", "/dev/sdi1"];
        const STATES: [&str; 4] = ["available", "completed", "running", "in-use"];
        let id = |world: &mut Self, of: usize, prefix: &str| {
            let known = world.random.of(&world.ids[of]).cloned();
            known.unwrap_or_else(|| format!("{prefix}-00000000000000abc"))
        };
        let words = |random: &mut Random, all: &[&str]| (*random.of(all).unwrap()).to_owned();
        let random = &mut self.random;
        match kind {
            "volume" => id(self, 0, "vol"),
            "snapshot" => id(self, 1, "snap"),
            "instance" => id(self, 2, "i"),
            "any" => {
                let of = random.below(3);
                id(self, of, ["vol", "snap", "i"][of])
            }
            "token" => self.random.of(&self.tokens).cloned().unwrap_or_default(),
            "zone" => "local-1a".to_owned(),
            "size" => (1 + random.below(200)).to_string(),
            "iops" => (100 + random.below(5_000)).to_string(),
            "mibps" => (125 + random.below(300)).to_string(),
            "few" => (5 + random.below(20)).to_string(),
            "count" => (1 + random.below(3)).to_string(),
            "type" => words(random, &TYPES),
            "device" => words(random, &DEVICES),
            "state" => words(random, &STATES),
            "bool" => words(random, &["true", "false"]),
            "host" => words(random, &["m5.large", "evenkeel.local", "t3.micro"]),
            "address" => format!("10.0.0.{}", random.below(200)),
            "text" => words(random, &["a", "a <b> & 'c'", "\u{e9}\u{4e2d}\u{1F6A2}", "*"]),
            "time" => words(random, &["2031-01-01T00:00:00Z", "2020-01-01T00:00:00.000Z"]),
            literal => {
                literal.split('|').nth(random.below(literal.split('|').count())).unwrap().to_owned()
            }
        }
    }

    fn junk(&mut self) -> String {
        const JUNK: [&str; 22] = [
            "",
            "0",
            "-1",
            "+5",
            "4294967296",
            "18446744073709551616",
            "1e9",
            "NaN",
            " ",
            "TRUE",
            "vol-",
            "vol-zzzzzzzzzzzzzzzzz",
            "snap-fffffffffffffffff",
            "i-1",
            "\0",
            "\r\n",
            "]]>",
            "<a>&b;</a>",
            "\u{fffe}\u{7f}",
            "local-1b",
            "9999-99-99T99:99:99Z",
            "*?*?*?*?*",
        ];
        match self.random.below(JUNK.len() + 2) {
            0 => "x".repeat(1 << self.random.below(17)),
            1 => (0..self.random.below(20))
                .filter_map(|_| char::from_u32(self.random.bits() as u32 >> 11))
                .collect(),
            at => JUNK[at - 2].to_owned(),
        }
    }

    /// Signs a request, executes it as the server does, and checks the reply.
    fn ask(&mut self, action: &Action, params: &[(String, String)]) {
        let fixed = [("Action", action.name), ("Version", "2016-11-15")];
        let its = params.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let body = query::encode(fixed.into_iter().chain(its));
        let answer = execute(&self.api, &self.credentials, &body);
        let why = format!("{} {params:?}", action.name);
        match answer {
            Ok(text) => {
                self.reached.insert(action.name);
                self.learn(&why, action, &text);
            }
            Err(error) => {
                let is_known = error.code == "InsufficientVolumeCapacity";
                assert!(error.status < 500 || is_known, "{why}: {error:?}");
                assert!((400..=500).contains(&error.status), "{why}: {error:?}");
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.';
                assert!(!error.code.is_empty() && error.code.chars().all(is_name), "{error:?}");
                assert!(!error.message.is_empty(), "{why}: {error:?}");
                let document = error.document("request");
                let root = Element::parse(&document).unwrap_or_else(|e| panic!("{why}: {e}"));
                let item = &root.items("Errors")[0];
                assert_eq!(item.child_text("Code"), Some(error.code), "{why}");
            }
        }
    }

    /// Checks a reply, and collects the ids and page tokens in it.
    fn learn(&mut self, why: &str, action: &Action, text: &str) {
        assert!(text.len() <= REPLY_BYTES_MAX, "{why}: {} bytes", text.len());
        let root = Element::parse(text).unwrap_or_else(|error| panic!("{why}: {error}: {text}"));
        assert_eq!(root.name, format!("{}Response", action.name), "{why}");
        let mut rest = vec![&root];
        while let Some(element) = rest.pop() {
            rest.extend(&element.children);
            let of = match element.name.as_str() {
                "volumeId" => 0,
                "snapshotId" => 1,
                "instanceId" => 2,
                "nextToken" => {
                    self.tokens.push(element.text.clone());
                    continue;
                }
                _ => continue,
            };
            let known = &mut self.ids[of];
            if known.len() < 60 && !known.contains(&element.text) {
                known.push(element.text.clone());
            }
        }
    }

    /// Checks that the stored model is the one in memory. Returns the actions that have succeeded.
    fn end(self) -> BTreeSet<&'static str> {
        self.api.plane().tick();
        let model = self.api.plane().model().clone();
        let path = self.folder.path().join(DATABASE_FILE_NAME);
        assert_eq!(SqliteJournal::open(&path).unwrap().load().unwrap().model, model);
        self.reached
    }
}

#[test]
fn every_action_answers_every_request_well() {
    let mut reached = BTreeSet::new();
    seeds(CASES, |seed| {
        let mut world = World::new(seed);
        world.furnish();
        for _ in 0..REQUESTS {
            world.step();
        }
        reached.extend(world.end());
    });
    // A server that serves alone has no nodes.
    let of_nodes = ["ModifyNode", "MoveVolume"];
    let all = ACTIONS.iter().map(|action| action.name);
    let never: Vec<_> =
        all.filter(|name| !of_nodes.contains(name) && !reached.contains(name)).collect();
    let is_alone = support::random::number("EVENKEEL_SEED").is_some();
    assert!(never.len() <= NEVER_MAX || is_alone, "never with success: {never:?}");
}
