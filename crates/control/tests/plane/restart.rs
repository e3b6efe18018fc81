//! Acknowledged changes survive: clean stops, kill -9, and kill -9 in the middle of a change.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::support;
use crate::support::{Client, FakeAgent, Server, config, create, gp2, local_instance, plane, text};
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::{Command as Change, Phase};
use evenkeel_control::plane::{Plane, PlaneError};
use evenkeel_control::{ControlError, DATABASE_FILE_NAME, credentials};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeChange, VolumeType};
use evenkeel_telemetry::audit;
use evenkeel_wire::agent::{Agent, Command, FailedKind};
use evenkeel_wire::aws::xml::Element;

const FOLDER: &str = "EVENKEEL_TEST_FOLDER";
const HANG_AT: &str = "EVENKEEL_TEST_HANG_AT";
/// The prefix of the address in the child's output.
const READY: &str = "ready at ";

/// Returns whether a command changes nothing in the data plane but leases.
const fn is_question(command: &Command) -> bool {
    matches!(
        command,
        Command::Report
            | Command::ReportOf(_)
            | Command::Balances
            | Command::Capacity
            | Command::Stored
            | Command::Space
            | Command::Filled(_)
            | Command::Snapshots
            | Command::SnapshotsOf(_)
            | Command::Lease(_)
    )
}

/// Not a test: the server that the tests below run in a separate process, to kill it.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let hang_at = std::env::var(HANG_AT).map_or(u32::MAX, |n| n.parse().unwrap());
    let changes_left = AtomicU32::new(hang_at);
    // The nth change never gets an answer.
    let agent = FakeAgent::scripted(move |agent, command| {
        if !is_question(&command) && changes_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            loop {
                std::thread::park();
            }
        }
        agent.execute(command)
    });
    let ready = |address| println!("{READY}{address}");
    let run = evenkeel_control::run(
        config(Path::new(&folder)),
        agent,
        || {},
        ready,
        std::future::pending(),
    );
    panic!("it ended: {run:?}");
}

struct Killable {
    process: Child,
    client: Client,
}

impl Killable {
    fn start(folder: &Path, hang_at: Option<u32>) -> Self {
        let mut command = Process::new(std::env::current_exe().unwrap());
        command.args(["--exact", "restart::child", "--nocapture"]).env(FOLDER, folder);
        if let Some(hang_at) = hang_at {
            command.env(HANG_AT, hang_at.to_string());
        }
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            line.unwrap().split_once(READY).map(|(_, address)| address.parse().unwrap())
        });
        let credentials = credentials::load(folder).unwrap();
        Self { process, client: Client { address: address.unwrap(), credentials } }
    }

    /// Kills the server with SIGKILL.
    fn kill(self) {
        drop(self);
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the answers of all Describe actions, without request ids.
fn everything(client: &Client) -> Vec<Element> {
    ["DescribeVolumes", "DescribeInstances", "DescribeTags", "DescribeVolumesModifications"]
        .into_iter()
        .flat_map(|action| client.call(action, &[]).unwrap().children)
        .filter(|element| element.name != "requestId")
        .collect()
}

fn populate(client: &Client) -> Vec<String> {
    let gp3 = create(client, &[("VolumeType", "gp3"), ("ClientToken", "t")]);
    let gp2 = create(client, &[("VolumeType", "gp2"), ("Size", "100")]);
    let io2 =
        create(client, &[("VolumeType", "io2"), ("Iops", "500"), ("MultiAttachEnabled", "true")]);
    let remote = client
        .call(
            "RegisterHost",
            &[
                ("InstanceType", "m5.large"),
                ("Address", "10.0.0.7"),
                ("Tag.1.Key", "k"),
                ("Tag.1.Value", "v"),
            ],
        )
        .unwrap();
    let remote = text(remote.child("instance").unwrap(), "instanceId").to_owned();
    let local = local_instance(client);
    for instance in [&local, &remote] {
        let params = [("VolumeId", io2.as_str()), ("InstanceId", instance), ("Device", "/dev/sdf")];
        client.call("AttachVolume", &params).unwrap();
    }
    client.call("ModifyVolume", &[("VolumeId", &gp3), ("Iops", "3500")]).unwrap();
    client
        .call("CreateTags", &[("ResourceId.1", &gp3), ("Tag.1.Key", "Name"), ("Tag.1.Value", "x")])
        .unwrap();
    vec![gp3, gp2, io2]
}

#[test]
fn a_clean_stop_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let ids = populate(&server.client());
    let before = everything(&server.client());
    server.stop().unwrap();
    let server = Server::start(folder.path());
    assert_eq!(everything(&server.client()), before);
    // The data plane received the complete state of everything again.
    let io2: VolumeId = ids[2].parse().unwrap();
    assert_eq!(server.agent.with(|state| state.volumes[&io2].attachments.len()), 2);
    let params = [
        ("AvailabilityZone", "local-1a"),
        ("Size", "10"),
        ("VolumeType", "gp3"),
        ("ClientToken", "t"),
    ];
    let again = server.client().call("CreateVolume", &params).unwrap();
    assert_eq!(text(&again, "volumeId"), ids[0]);
}

#[test]
fn kill_9_loses_nothing_that_was_replied_to() {
    let folder = tempfile::tempdir().unwrap();
    let server = Killable::start(folder.path(), None);
    let ids = populate(&server.client);
    let set = [("VolumeId", ids[1].as_str()), ("Operations", "1000000")];
    server.client.call("SetVolumeCredits", &set).unwrap();
    let before = everything(&server.client);
    server.kill();
    let server = Server::start(folder.path());
    assert_eq!(everything(&server.client()), before);
    // 100 GiB of gp2. The crash costs one lease: 10 s at 3,000 - 300 per second, and 50 ms of
    // burst.
    let gp2: VolumeId = ids[1].parse().unwrap();
    let balance = server.agent.with(|state| state.volumes[&gp2].balances.operations);
    assert_eq!(balance, Some(1_000_000 - 27_000 - 150));
}

/// The data plane never answers and the server is killed. After the restart the change is complete.
#[test]
fn kill_9_in_the_middle_of_a_change_is_repaired() {
    // 1: create. 2: the change itself.
    for (action, extra, shown, after) in [
        ("AttachVolume", vec![("Device", "/dev/sdf")], "in-use", Some(("in-use", "10"))),
        ("ModifyVolume", vec![("Size", "20")], "available", Some(("available", "20"))),
        ("DeleteVolume", vec![], "deleting", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = Killable::start(folder.path(), Some(2));
        let client = server.client.clone();
        let id = create(&client, &[]);
        let instance = local_instance(&client);
        let body = {
            let mut params = vec![("Action", action), ("Version", "2016-11-15"), ("VolumeId", &id)];
            if action == "AttachVolume" {
                params.push(("InstanceId", &instance));
            }
            params.extend(extra);
            evenkeel_wire::aws::query::encode(params)
        };
        let hung = {
            let client = client.clone();
            std::thread::spawn(move || {
                // No answer ever comes.
                let headers = client.signed_headers(&body, support::unix_s());
                let mut request = String::from("POST / HTTP/1.1\r\n");
                for (name, value) in headers {
                    request.push_str(&format!("{name}: {value}\r\n"));
                }
                request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
                support::raw(client.address, request.as_bytes())
            })
        };
        let state = |client: &Client| {
            let reply = client.call("DescribeVolumes", &[]).unwrap();
            let volume = reply.items("volumeSet").first()?;
            Some((text(volume, "status").to_owned(), text(volume, "size").to_owned()))
        };
        // Wait until the decision is visible; reading works while the change hangs.
        let visible = |client: &Client| {
            let reply = client.call("DescribeVolumes", &[]).unwrap().document();
            let modifications =
                client.call("DescribeVolumesModifications", &[]).unwrap().document();
            ["attaching", "deleting"].iter().any(|word| reply.contains(word))
                || modifications.contains("modifying")
        };
        assert!((0..10_000).any(|_| visible(&client)), "{action} never became visible");
        assert_eq!(state(&client).unwrap().0, shown, "{action}");
        server.kill();
        assert_eq!(hung.join().unwrap(), "", "{action}");
        let server = Server::start(folder.path());
        let found = state(&server.client());
        let expected = after.map(|(status, size)| (status.to_owned(), size.to_owned()));
        assert_eq!(found, expected, "{action}");
    }
}

#[test]
fn credits_fill_while_the_server_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = create(&client, &[("VolumeType", "gp2"), ("Size", "100")]);
    let instance = local_instance(&client);
    let params = [("VolumeId", id.as_str()), ("InstanceId", &instance), ("Device", "sdf")];
    client.call("AttachVolume", &params).unwrap();
    let gp2: VolumeId = id.parse().unwrap();
    // Clients spent these credits: the control plane does not know, so only the final report has
    // them.
    let spent = Balances { operations: Some(1_000), bytes: None };
    server.agent.with(|state| state.volumes.get_mut(&gp2).unwrap().balances = spent);
    let agent = Arc::clone(&server.agent);
    server.stop().unwrap();
    assert_eq!(
        agent.with(|state| state.volumes[&gp2].attachments.len()),
        0,
        "closed before the report"
    );
    let server = Server::start(folder.path());
    let balance = server.agent.with(|state| state.volumes[&gp2].balances.operations).unwrap();
    assert!((1_000..1_000 + 300 * 600).contains(&balance), "{balance}");
    assert_eq!(server.agent.with(|state| state.volumes[&gp2].attachments.len()), 1, "open again");
}

/// An instance's burst balance survives the server and is deleted with the instance.
#[test]
fn a_host_keeps_its_burst() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let params = [("InstanceType", "m5.large"), ("Address", "10.0.0.7")];
    let made = client.call("RegisterHost", &params).unwrap();
    let host = text(made.child("instance").unwrap(), "instanceId").to_owned();
    let id: InstanceId = host.parse().unwrap();
    let full = server.agent.with(|state| state.hosts[&id].balances);
    assert_eq!(full.operations, Some(15_150 * 1_800));
    // A gp3 volume has no credits of its own, and is closed before the last report all the same.
    let volume = create(&client, &[("VolumeType", "gp3"), ("Size", "100")]);
    let params = [("VolumeId", volume.as_str()), ("InstanceId", &host), ("Device", "sdf")];
    client.call("AttachVolume", &params).unwrap();
    let spent = Balances { operations: Some(1_000), bytes: Some(7) };
    server.agent.with(|state| state.hosts.get_mut(&id).unwrap().balances = spent);
    let agent = Arc::clone(&server.agent);
    server.stop().unwrap();
    let volume: VolumeId = volume.parse().unwrap();
    assert_eq!(agent.with(|state| state.volumes[&volume].attachments.len()), 0);
    let server = Server::start(folder.path());
    let balance = server.agent.with(|state| state.hosts[&id].balances.operations).unwrap();
    assert!((1_000..1_000 + 3_600 * 600).contains(&balance), "{balance}");
    let client = server.client();
    client.call("DetachVolume", &[("VolumeId", &volume.to_string())]).unwrap();
    client.call("DeregisterHost", &[("InstanceId", &host)]).unwrap();
    assert!(server.agent.with(|state| state.hosts.is_empty()));
}

/// Hosts with limits that share a volume are on one core with all their volumes. The data plane
/// gets them in an order in which it knows that from the first one on.
#[test]
fn volumes_connected_by_limited_hosts_are_started_together() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let register = |address: &str| {
        let params = [("InstanceType", "m5.large"), ("Address", address)];
        let made = client.call("RegisterHost", &params).unwrap();
        text(made.child("instance").unwrap(), "instanceId").to_owned()
    };
    let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(register);
    let attach = |volume: &str, host: &str, device: usize| {
        let device = format!("/dev/sd{}", char::from(b'f' + device as u8));
        let params = [("VolumeId", volume), ("InstanceId", host), ("Device", &device)];
        client.call("AttachVolume", &params).unwrap();
    };
    let local = local_instance(&client);
    // The third host has fewer volumes and shares none; many volumes have no host with limits.
    for device in 0..6 {
        for host in &hosts[..2] {
            attach(&create(&client, &[]), host, device);
        }
        if device < 3 {
            attach(&create(&client, &[]), &hosts[2], device);
        }
        attach(&create(&client, &[]), &local, device);
        create(&client, &[]);
    }
    let multi = [("VolumeType", "io2"), ("Iops", "500"), ("MultiAttachEnabled", "true")];
    let shared = create(&client, &multi);
    hosts[..2].iter().for_each(|host| attach(&shared, host, 9));
    server.stop().unwrap();
    let server = Server::start(folder.path());
    let limited: Vec<InstanceId> = hosts.iter().map(|host| host.parse().unwrap()).collect();
    let applied: Vec<Vec<InstanceId>> = server.agent.with(|state| {
        let volumes = state.log.iter().filter_map(|command| match command {
            Command::Apply(volume) => Some(volume.attachments.iter().map(|a| a.host)),
            _ => None,
        });
        volumes.map(|hosts| hosts.filter(|host| limited.contains(host)).collect()).collect()
    });
    assert_eq!(applied.len(), 6 * 4 + 3 + 1);
    for (range, of) in [(0..13, &limited[..2]), (13..16, &limited[2..])] {
        let mut known: Vec<InstanceId> = applied[range.start].clone();
        for hosts in &applied[range] {
            assert!(hosts.iter().all(|host| of.contains(host)), "the largest first: {applied:?}");
            assert!(hosts.iter().any(|host| known.contains(host)), "not connected: {applied:?}");
            known.extend(hosts);
        }
    }
    assert!(applied[16..].iter().all(Vec::is_empty));
}

/// Clients of volumes that are attached wait for no others.
#[test]
fn volumes_that_are_attached_are_brought_up_first() {
    const EACH: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let local = local_instance(&client);
    let mut ids: [Vec<VolumeId>; 2] = [vec![], vec![]];
    for number in 0..2 * EACH {
        let id = create(&client, &[]);
        if number % 2 == 0 {
            let device = format!("/dev/sd{}", char::from(b'f' + number as u8 / 2));
            let wanted = [("VolumeId", &*id), ("InstanceId", &*local), ("Device", &*device)];
            client.call("AttachVolume", &wanted).unwrap();
        }
        ids[number % 2].push(id.parse().unwrap());
    }
    server.stop().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let up = |agent: &FakeAgent| agent.with(|state| state.volumes.keys().copied().collect());
    let journal = SqliteJournal::open(&folder.path().join(DATABASE_FILE_NAME)).unwrap();
    let mut first: Vec<VolumeId> = vec![];
    let settings = config(folder.path()).settings;
    let attached_up = || first = up(&agent);
    let its = Arc::clone(&agent) as Arc<dyn Agent>;
    drop(Plane::start(Box::new(journal), settings, its, attached_up).unwrap());
    let [mut attached, others] = ids;
    attached.sort_unstable();
    assert_eq!(first, attached);
    assert_eq!(up(&agent).len(), attached.len() + others.len());
}

#[test]
fn a_stop_without_the_data_plane_counts_as_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let id = create(&server.client(), &[("VolumeType", "gp2"), ("Size", "100")]);
    server.agent.with(|state| state.fail_always = Some(FailedKind::Down));
    assert!(matches!(server.stop(), Err(ControlError::Stop(_))));
    let server = Server::start(folder.path());
    let gp2: VolumeId = id.parse().unwrap();
    let balance = server.agent.with(|state| state.volumes[&gp2].balances.operations);
    assert_eq!(balance, Some(5_400_000 - 27_000 - 150));
}

#[test]
fn a_volume_that_cannot_be_brought_up_is_in_error_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let id = create(&server.client(), &[]);
    server.stop().unwrap();
    let fails = Arc::new(AtomicBool::new(true));
    let still_fails = Arc::clone(&fails);
    let inner = FakeAgent::scripted(move |agent, command| {
        if matches!(command, Command::Apply(_)) && still_fails.load(Ordering::SeqCst) {
            agent.with(|state| state.fail_next = Some(FailedKind::Internal));
        }
        agent.execute(command)
    });
    let server = Server::start_with(config(folder.path()), Arc::clone(&inner)).unwrap();
    let client = server.client();
    assert_eq!(status(&client, &id), "error");
    let reply = client.call("DescribeVolumeStatus", &[]).unwrap();
    let checked = reply.items("volumeStatusSet")[0].child("volumeStatus").unwrap();
    assert_eq!(text(checked, "status"), "impaired");
    let details = checked.items("details").iter();
    let details: Vec<_> = details.map(|d| (text(d, "name"), text(d, "status"))).collect();
    assert_eq!(details, [("io-enabled", "failed"), ("io-performance", "not-applicable")]);
    let [action] = reply.items("volumeStatusSet")[0].items("actionsSet") else {
        panic!("{reply:?}")
    };
    assert_eq!(text(action, "code"), "enable-volume-io");
    let filter = [("Filter.1.Name", "action.code"), ("Filter.1.Value.1", "enable-volume-io")];
    let found = client.call("DescribeVolumeStatus", &filter).unwrap();
    assert_eq!(found.items("volumeStatusSet").len(), 1);
    // If the store cannot open it afterwards, the error has the reason.
    let asked = [("VolumeId", id.as_str())];
    let salvaged = |agent: &FakeAgent| {
        agent
            .with(|state| state.log.iter().filter(|log| matches!(log, Command::Salvage(_))).count())
    };
    client.call("EnableVolumeIO", &asked).unwrap_err();
    assert_eq!(salvaged(&inner), 1);
    let enables = [("VolumeId", id.as_str()), ("AutoEnableIO.Value", "true")];
    client.call("ModifyVolumeAttribute", &enables).unwrap();
    let mut waited = 0;
    while salvaged(&inner) == 1 {
        waited += 1;
        assert!(waited < 600, "autoEnableIO does not salvage the volume");
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    fails.store(false, Ordering::SeqCst);
    becomes(&client, &id, "available");
    server.stop().unwrap();
}

fn status(client: &Client, id: &str) -> String {
    let reply = client.call("DescribeVolumes", &[("VolumeId.1", id)]).unwrap();
    text(&reply.items("volumeSet")[0], "status").to_owned()
}

/// Waits until a volume is in a state; at most a minute.
fn becomes(client: &Client, id: &str, state: &str) {
    for _ in 0..600 {
        if status(client, id) == state {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    panic!("volume {id} is {}", status(client, id));
}

#[test]
fn bytes_are_made_only_once_and_added_to_only_by_a_modification() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path());
    let id = create(&server.client(), &[("VolumeType", "gp3"), ("Size", "10")]);
    let kinds = |server: &Server| {
        server.agent.with(|state| {
            let kind = |command: &Command| match command {
                Command::Create(_) => Some("create".to_owned()),
                Command::Apply(_) => Some("apply".to_owned()),
                Command::Grow(_, from) => Some(format!("grow from {from}")),
                _ => None,
            };
            std::mem::take(&mut state.log).iter().filter_map(kind).collect::<Vec<_>>()
        })
    };
    assert_eq!(kinds(&server), ["create"]);
    let modify = [("VolumeId", id.as_str()), ("Size", "20")];
    server.client().call("ModifyVolume", &modify).unwrap();
    assert_eq!(kinds(&server), ["grow from 10 GiB"]);
    server.client().call("ModifyVolume", &[("VolumeId", &id), ("Iops", "4000")]).unwrap();
    assert_eq!(kinds(&server), ["apply"]);
    server.stop().unwrap();
    server = Server::start(folder.path());
    assert_eq!(kinds(&server), ["apply"]);
}

#[test]
fn a_volume_without_its_bytes_is_in_error_and_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = create(&client, &[("VolumeType", "gp3"), ("Size", "10")]);
    let attach = |client: &Client, id: &str| {
        let hosts = client.call("DescribeInstances", &[]).unwrap();
        let host = hosts.items("reservationSet")[0].items("instancesSet")[0].clone();
        let host = text(&host, "instanceId").to_owned();
        let device = [("VolumeId", id), ("InstanceId", &host), ("Device", "/dev/sdf")];
        client.call("AttachVolume", &device).unwrap();
    };
    attach(&client, &id);
    server.stop().unwrap();
    let damaged: VolumeId = id.parse().unwrap();
    let agent = Arc::new(FakeAgent::default());
    agent.with(|state| _ = state.damaged.insert(damaged));
    let server = Server::start_with(config(folder.path()), Arc::clone(&agent)).unwrap();
    let client = server.client();
    assert_eq!(status(&client, &id), "error");
    // It stays in error across restarts, whatever clients request.
    let refused = client.call("ModifyVolume", &[("VolumeId", &id), ("Size", "20")]).unwrap_err();
    assert_eq!(refused.code, "IncorrectState");
    assert_eq!(status(&client, &id), "error");
    agent.with(|state| state.damaged.clear());
    becomes(&client, &id, "in-use");
    let held = agent.with(|state| state.volumes[&damaged].attachments.len());
    assert_eq!(held, 1, "its host may reach it again");
    // A volume whose bytes stay missing can be detached and deleted.
    agent.with(|state| {
        state.volumes.remove(&damaged);
        state.damaged.insert(damaged);
    });
    server.stop().unwrap();
    let server = Server::start_with(config(folder.path()), agent).unwrap();
    let client = server.client();
    assert_eq!(status(&client, &id), "error");
    client.call("DetachVolume", &[("VolumeId", &id)]).unwrap();
    assert_eq!(status(&client, &id), "error");
    client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
    assert!(client.call("DescribeVolumes", &[("VolumeId.1", &id)]).is_err());
}

#[test]
fn a_start_without_the_data_plane_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    create(&server.client(), &[]);
    server.stop().unwrap();
    let agent = Arc::new(FakeAgent::default());
    agent.with(|state| state.fail_always = Some(FailedKind::Down));
    let refused = Server::start_with(config(folder.path()), agent).err().unwrap();
    assert!(matches!(refused, ControlError::Start(_)), "{refused}");
}

#[test]
fn a_server_refuses_a_database_of_another_form() {
    let folder = tempfile::tempdir().unwrap();
    Server::start(folder.path()).stop().unwrap();
    let path = folder.path().join(DATABASE_FILE_NAME);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let refused = Server::start_with(config(folder.path()), Arc::default()).err().unwrap();
    let words = "written in form 99, and this program reads form 1";
    assert!(refused.to_string().contains(words), "{refused}");
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn stored_files_are_private_and_readable_old_ones_become_private() {
    let folder = tempfile::tempdir().unwrap();
    let modes = |to: Option<u32>| -> BTreeMap<String, u32> {
        let entries = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file()).map(|entry| {
            if let Some(mode) = to.filter(|_| entry.file_name() != credentials::FILE_NAME) {
                std::fs::set_permissions(entry.path(), Permissions::from_mode(mode)).unwrap();
            }
            let mode = entry.metadata().unwrap().permissions().mode() & 0o7777;
            (entry.file_name().into_string().unwrap(), mode)
        });
        files.collect()
    };
    let databases = ["control.db", "cloudwatch.db"];
    let files = databases
        .into_iter()
        .flat_map(|name| ["", "-shm", "-wal"].map(|beside| format!("{name}{beside}")));
    let others = ["control.lock", "control.reserve", "events.jsonl", credentials::FILE_NAME];
    let all: BTreeMap<String, u32> =
        files.chain(others.map(str::to_owned)).map(|name| (name, 0o600)).collect();
    // Killed, so that everything stays.
    let server = Killable::start(folder.path(), None);
    create(&server.client, &[]);
    assert_eq!(modes(None), all);
    let folder_of_audit = std::fs::metadata(folder.path().join(audit::FOLDER)).unwrap();
    assert_eq!(folder_of_audit.permissions().mode() & 0o7777, 0o700);
    server.kill();
    assert!(modes(Some(0o644)).values().any(|mode| *mode == 0o644));
    let server = Server::start(folder.path());
    create(&server.client(), &[]);
    assert_eq!(modes(None), all);
}

/// After a crash, the balances are those that the tick stored: the unleased ones.
#[test]
fn the_tick_stores_balances_and_survives_a_data_plane_that_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let first = plane(folder.path(), &agent);
    let id = gp2(&first);
    let spend = |balance| {
        let balances = Balances { operations: Some(balance), bytes: None };
        agent.with(|state| state.volumes.get_mut(&id).unwrap().balances = balances);
    };
    spend(3_000_000);
    first.tick();
    spend(2_990_000);
    agent.with(|state| state.fail_always = Some(FailedKind::Down));
    first.tick();
    first.tick();
    assert!(matches!(first.report(), Err(PlaneError::Agent(_))));
    drop(first); // without stop: a crash
    let agent = Arc::new(FakeAgent::default());
    let second = plane(folder.path(), &agent);
    // 200 GiB: a lease is 3,000 - 600 per second for 10 s, and 50 ms of burst.
    let left = agent.with(|state| state.volumes[&id].balances.operations);
    assert_eq!(left, Some(3_000_000 - 24_000 - 150));
    agent.with(|state| state.fail_always = Some(FailedKind::Down));
    second.tick();
    agent.with(|state| {
        state.fail_always = None;
        state.volumes.get_mut(&id).unwrap().balances.operations = Some(1_000_000);
    });
    second.tick();
    drop(second);
    let agent = Arc::new(FakeAgent::default());
    let _third = plane(folder.path(), &agent);
    let left = agent.with(|state| state.volumes[&id].balances.operations);
    assert_eq!(left, Some(1_000_000 - 24_000 - 150));
}

/// After a crash, a type with other credits does not get a full bucket.
#[test]
fn a_change_of_type_stores_the_new_balances_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let first = plane(folder.path(), &agent);
    let id = gp2(&first);
    let change = VolumeChange { volume_type: Some(VolumeType::St1), ..VolumeChange::default() };
    first.execute(&Change::ModifyVolume { id, change }, false).unwrap();
    drop(first);
    let agent = Arc::new(FakeAgent::default());
    let _second = plane(folder.path(), &agent);
    let balances = agent.with(|state| state.volumes[&id].balances);
    assert_eq!(balances, Balances { operations: None, bytes: Some(0) });
}

/// A growth without an answer is not rolled back if the bytes are then missing: no client waits for
/// its outcome any more, and it may have been carried out. The volume is in error until its bytes
/// are back, and then it has the new size.
#[test]
fn a_growth_without_an_answer_outlives_bytes_that_are_missing_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    let plane = plane(folder.path(), &agent);
    let id = gp2(&plane);
    let phase = || plane.model().volumes[&id].phase.clone();
    let is_modifying = || plane.model().volumes[&id].is_being_modified();
    agent.with(|state| state.silent = true);
    let change = VolumeChange { size_gib: Some(300), ..VolumeChange::default() };
    let failed = plane.execute(&Change::ModifyVolume { id, change }, false).unwrap_err();
    assert!(
        matches!(&failed, PlaneError::Agent(failed) if failed.kind == FailedKind::Unanswered),
        "{failed}"
    );
    agent.with(|state| {
        state.silent = false;
        state.damaged.insert(id);
    });
    plane.tick();
    assert!(matches!(phase(), Phase::Error(_)), "{:?}", phase());
    assert!(is_modifying());
    agent.with(|state| state.damaged.clear());
    (0..10).for_each(|_| plane.tick());
    assert_eq!(phase(), Phase::Ready);
    assert!(!is_modifying());
    let held = agent.with(|state| state.volumes[&id].size);
    assert_eq!(held, ByteCount::from_gib(300));
}
