//! `evenkeel agent` on a real btrfs of two volumes, which nbdfuse and loop devices make disks: it
//! gives a filling file system a further volume before it is full, over the server's API and over
//! that of AWS, and continues after it was killed.

mod support;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use support::bench::run_within;
use support::clock::{Deadline, pass};
use support::file_system::has_no_mounts;
use support::machine::mounts;
use support::mount::Mount;
use support::process::{Output, Running, run, start};
use support::server::{Server, evenkeel};
use support::tools::{absent, in_venv, tool};

/// The longest wait for a volume that the agent adds, on a busy machine.
const ADDED_MAX: Duration = Duration::from_secs(240);
/// The longest run of a command.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Makes a device of a volume: nbdfuse presents it as a file, which a loop device makes a disk.
const ATTACH: &str = r#"#!/bin/sh
set -e
folder=$(dirname "$0")/disks/$1
mkdir -p "$folder"
setsid nbdfuse -C 4 "$folder/nbd" "$2" </dev/null >/dev/null 2>&1 &
tries=0
until [ -e "$folder/nbd" ]; do
    tries=$((tries + 1))
    test $tries -lt 300
    sleep 0.1
done
losetup --find --show --direct-io=on "$folder/nbd"
"#;

/// Removes it.
const DETACH: &str = r#"#!/bin/sh
folder=$(dirname "$0")/disks/$1
losetup -d "$2"
tries=0
until fusermount3 -u "$folder"; do
    tries=$((tries + 1))
    test $tries -lt 100 || exit 1
    sleep 0.1
done
"#;

/// A policy whose file system wants more room than two volumes of 1 GiB have.
const POLICY: &str = r#"
[[group]]
name = "files"
tags = { App = "files" }
mode = "observe"
[group.space]
grow_volumes = false
actuation_s = 10
reserve_mib_min = 64
grow_gib_min = 1
gib_max = 8
"#;

/// A server with a btrfs on two of its volumes.
struct Stack {
    server: Server,
    volumes: Vec<(String, String)>,
    mount: PathBuf,
}

impl Stack {
    /// Creates the volumes and the file system.
    fn new() -> Self {
        let server = Server::start("--region us-east-1 --zone us-east-1a");
        let mut stack = Self { mount: server.folder().join("mnt"), server, volumes: Vec::new() };
        fs::create_dir(&stack.mount).expect("a folder");
        stack.script("attach", ATTACH);
        stack.script("detach", DETACH);
        for _ in 0..2 {
            let flags = "--type gp3 --size 1 --tag App=files --region us-east-1";
            let volume = stack.server.attached(flags);
            let uri = stack.server.unix_uri(&volume);
            let attach = stack.path("attach");
            let made = run(tool("timeout", "60").arg(attach).args([&volume, &uri])).ok();
            stack.volumes.push((volume, made.trim().to_owned()));
        }
        let devices: Vec<&str> = stack.volumes.iter().map(|(_, device)| device.as_str()).collect();
        run(tool("mkfs.btrfs", "-q -f -K -d single -m single").args(&devices)).ok();
        stack.mount();
        stack
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.folder().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn policy(&self, mode: &str) {
        let text = POLICY.replace("observe", mode);
        fs::write(self.path("policy.toml"), text).expect("written");
    }

    /// Returns a command of the agent with these flags.
    fn agent(&self, flags: &str) -> std::process::Command {
        let mut command = evenkeel(self.server.folder());
        command.args("agent --policy policy.toml --agent-folder agent --mount".split(' '));
        command.arg(&self.mount);
        for (volume, device) in &self.volumes {
            command.args(["--device", &format!("{device}={volume}")]);
        }
        let attach = format!("{} {{volume}} {{uri}}", self.path("attach").display());
        let detach = format!("{} {{volume}} {{device}}", self.path("detach").display());
        command.args(["--attach-command", &attach, "--detach-command", &detach]);
        command.args(flags.split_whitespace());
        command.env("EVENKEEL_DATA_DIR", self.server.data_dir());
        command.args(["--region", "us-east-1"]);
        command
    }

    /// Returns a command of an agent with another folder, which finds the volumes of the devices by
    /// the paths of their files.
    fn agent_in(&self, folder: &Path, flags: &str) -> std::process::Command {
        let mut command = evenkeel(self.server.folder());
        command.args("agent --policy policy.toml --agent-folder".split(' '));
        command.arg(folder).arg("--mount").arg(&self.mount);
        command.args(flags.split_whitespace());
        command.env("EVENKEEL_DATA_DIR", self.server.data_dir());
        command.args(["--region", "us-east-1"]);
        command
    }

    fn mount(&self) {
        let devices: Vec<&str> = self.volumes.iter().map(|(_, device)| device.as_str()).collect();
        let options = format!("noatime,nodiscard,device={},device={}", devices[0], devices[1]);
        run(tool("mount", "-o").arg(options).arg(devices[0]).arg(&self.mount)).ok();
    }

    fn once(&self, flags: &str) -> Output {
        run_within(self.agent(flags).arg("--once"), COMMAND_MAX)
    }

    /// Returns the devices of the file system.
    fn devices(&self) -> usize {
        let shown = run(tool("btrfs", "filesystem show").arg(&self.mount)).ok();
        shown.lines().filter(|line| line.trim_start().starts_with("devid")).count()
    }

    fn server_volumes(&self) -> Vec<Value> {
        self.server.list("volume ls --region us-east-1")
    }

    /// Waits until the file system has this number of devices.
    fn wait_for_devices(&self, agent: &mut Running, count: usize) {
        let deadline = Deadline::after(ADDED_MAX);
        while self.devices() != count {
            assert!(agent.is_running(), "the agent has ended: {}", agent.logged());
            assert!(!deadline.left().is_zero(), "{} devices", self.devices());
            pass(Duration::from_millis(500));
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A failed test ends here, too. Errors must not hide its cause.
        run(tool("timeout", "30 umount").arg(&self.mount));
        let disks = fs::read_dir(self.path("disks")).into_iter().flatten().flatten();
        for folder in disks.map(|entry| entry.path()) {
            let file = folder.join("nbd");
            let found = run(tool("losetup", "-n -O NAME -j").arg(&file));
            for device in found.stdout.split_whitespace() {
                run(tool("losetup", "-d").arg(device));
            }
            run(tool("fusermount3", "-u -z").arg(&folder));
        }
    }
}

fn lacks_btrfs() -> bool {
    has_no_mounts() || absent(&["mkfs.btrfs", "btrfs"])
}

/// Writes `mib` MiB, a line of random text again and again, and makes them durable. The mount does
/// not compress.
fn fill(folder: &Path, name: &str, mib: u32) -> Output {
    let line = "$(head -c 48K /dev/urandom | base64 -w 0)";
    let script = format!("yes \"{line}\" | head -c {mib}M >\"$0\" && sync \"$0\"");
    let mut command = tool("timeout", "600 sh -c");
    run_within(command.arg(script).arg(folder.join(name)), ADDED_MAX)
}

#[test]
fn agent_adds_a_volume_before_a_filling_file_system_is_full_and_survives_kills() {
    if lacks_btrfs() {
        return;
    }
    let _turn = mounts();
    let stack = Stack::new();
    stack.policy("observe");
    let printed = stack.once("").ok();
    assert!(printed.contains(" group files, mode observe; "), "{printed}");
    assert!(printed.contains(" would add a volume of gp3 "), "{printed}");
    assert_eq!((stack.server_volumes().len(), stack.devices()), (2, 2));
    stack.policy("advise");
    let printed = stack.once("").ok();
    assert!(printed.contains(" advises to add a volume of gp3 "), "{printed}");
    assert!(printed.contains(" $ ") && printed.contains(" undo $ "), "{printed}");
    assert_eq!((stack.server_volumes().len(), stack.devices()), (2, 2));
    stack.policy("act");
    // Killed right after the volume is made.
    let mut agent = start(&mut stack.agent("--every 1s"));
    agent.wait_for_line(": create ");
    agent.kill_9();
    assert_eq!(stack.devices(), 2);
    let flags = "--every 1s --metrics-listen 127.0.0.1:0";
    let mut agent = start(&mut stack.agent(flags));
    let address = agent.wait_for_line("metrics at http://");
    stack.wait_for_devices(&mut agent, 3);
    let volumes = stack.server_volumes();
    assert_eq!(volumes.len(), 3, "one volume was made: {volumes:?}");
    let made = volumes.iter().find(|volume| volume["tags"]["evenkeel:operation"].is_string());
    let made = made.expect("it has the tag of its operation");
    assert_eq!(made["tags"]["App"], "files", "{made}");
    // More than the two volumes hold.
    fill(&stack.mount, "bytes", 2_300).ok();
    let address = address.split("http://").nth(1).expect("an address").trim();
    let address: SocketAddr = address.trim_end_matches("/metrics").parse().expect("an address");
    let metrics = get(address, "/metrics");
    assert!(metrics.contains("evenkeel_agent_devices{mount="), "{metrics}");
    let uuid = made["tags"]["evenkeel:fs"].as_str().expect("a UUID");
    deletes_a_retired_volume(&stack, uuid, &mut agent);
    agent.signal(rustix::process::Signal::TERM);
    agent.finish().ok();
    run(tool("btrfs", "scrub start -B").arg(&stack.mount)).ok();
}

/// Checks that the agent deletes a volume that was retired long ago, of which it has no probe: it
/// makes a device of it, finds no superblock, and removes the device.
fn deletes_a_retired_volume(stack: &Stack, uuid: &str, agent: &mut Running) {
    let flags = format!(
        "--type gp3 --size 1 --tag App=files --tag evenkeel:fs={uuid} --tag \
         evenkeel:retired=1 --region us-east-1"
    );
    let id = &stack.server.create(&flags);
    let deadline = Deadline::after(ADDED_MAX);
    while stack.server_volumes().iter().any(|volume| volume["volume_id"] == **id) {
        assert!(agent.is_running(), "the agent has ended: {}", agent.logged());
        assert!(!deadline.left().is_zero(), "{id} is there: {}", agent.logged());
        pass(Duration::from_millis(500));
    }
    let file = stack.path("disks").join(id).join("nbd");
    assert!(!file.exists(), "its device is removed");
}

#[test]
fn agent_over_the_api_of_aws_observes_decides_and_adds_alike() {
    if lacks_btrfs() || absent(&[&in_venv("aws")]) {
        return;
    }
    let _turn = mounts();
    let stack = Stack::new();
    stack.policy("act");
    let bin = Path::new(&in_venv("aws")).parent().expect("a folder").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let host = &stack.server.list("host ls --region us-east-1")[0];
    let host = host["host_id"].as_str().expect("an id").to_owned();
    let environment = stack.server.evenkeel("env --region us-east-1").ok();
    let variable = |name: &str| {
        let line = environment.lines().find(|line| line.contains(&format!("{name}=")));
        let value = line.and_then(|line| line.split_once('=')).expect(name).1;
        value.trim_matches(['\'', '"', ';']).to_owned()
    };
    let flags = format!("--aws --endpoint-url {} --instance-id {host}", stack.server.endpoint);
    // The address of a volume is the server's alone, so a file has them.
    let uri = format!("'nbd+unix:///'\"$1\"'?socket={}'", stack.server.socket().display());
    let attach = ATTACH.replace("\"$2\"", &uri);
    stack.script("attach", &attach);
    let deadline = Deadline::after(ADDED_MAX);
    while stack.devices() != 3 {
        let mut command = stack.agent(&flags);
        command.env("PATH", &path);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            command.env(name, variable(name));
        }
        let printed = run_within(command.arg("--once"), COMMAND_MAX).ok();
        assert!(!printed.contains("refused"), "{printed}");
        assert!(!deadline.left().is_zero(), "{printed}");
    }
    let made = stack.server_volumes();
    assert_eq!(made.len(), 3, "{made:?}");
}

/// The agent refuses what cannot work, names what is missing while it runs, and continues when it
/// is there again.
#[test]
fn agent_names_what_is_missing_while_it_runs_and_continues() {
    if lacks_btrfs() {
        return;
    }
    let _turn = mounts();
    let mut stack = Stack::new();
    let Some(disk) = Mount::tmpfs("size=1m") else { return };
    let folder = disk.path().join("agent");
    fs::write(stack.path("policy.toml"), POLICY.replace("grow_volumes = false", "")).expect("it");
    let error = run_within(&mut stack.agent_in(&folder, "--once"), COMMAND_MAX).fails_with(1);
    assert!(error.contains(" keeps its size when its volume grows"), "{error}");
    assert!(error.contains("set `grow_volumes = false` in [group.space]"), "{error}");
    stack.policy("observe");
    let mut agent = start(&mut stack.agent_in(&folder, "--every 1s"));
    agent.wait_for_line(" group files, mode observe; ");
    let other = stack.path("other");
    let error = run_within(&mut stack.agent_in(&other, "--once"), COMMAND_MAX).fails_with(1);
    assert!(error.contains("another agent has the file system "), "{error}");
    let fill = disk.path().join("fill");
    fs::write(&fill, vec![0; 1 << 20]).expect_err("the disk is full");
    agent.wait_for_line(
        "No space left on device (os error 28); it is tried again; nothing is executed",
    );
    fs::remove_file(&fill).expect("removed");
    agent.wait_for_line(" is observed again");
    fs::write(stack.path("policy.toml"), "[[group]]\nname = 1\n").expect("written");
    agent.wait_for_line("policy.toml: line 2: ");
    stack.policy("observe");
    agent.wait_for_line("policy.toml: it is well-formed again");
    run(tool("umount", "-l").arg(&stack.mount)).ok();
    agent.wait_for_line(": no file system is mounted there: mount it");
    stack.mount();
    agent.wait_for_line(" is observed again");
    agent.kill_9();
    let states = fs::read_dir(folder.join("state")).expect("a folder");
    let state = states.flatten().next().expect("a file").path();
    fs::write(&state, "{\"form\":1,").expect("written");
    let error = run_within(&mut stack.agent_in(&folder, "--once"), COMMAND_MAX).fails_with(1);
    assert!(error.contains(&format!("{}: it is damaged: ", state.display())), "{error}");
    assert!(error.contains("move the file away to begin with an empty state"), "{error}");
    fs::remove_file(&state).expect("removed");
    let mut agent = start(&mut stack.agent_in(&folder, "--every 1s"));
    agent.wait_for_line(" would add a volume of gp3 ");
    stack.server.stop();
    agent.wait_for_line(" the API: ");
    agent.signal(rustix::process::Signal::TERM);
    agent.finish().ok();
}

/// The flags of an agent that could start, except for its policy and folder.
const NOWHERE: &str = "--mount /nowhere --instance-id i-1 --once";

/// Runs an agent in a folder with its policy of defaults, if the user is root.
fn agent_in(folder: &Path, flags: &str) -> Output {
    run(evenkeel(folder).arg("agent").args(flags.split_whitespace()))
}

/// Returns a folder with the policy of defaults; `None` if the user is not root.
fn folder_of_root() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let printed = agent_in(folder.path(), "--print-policy").ok();
    fs::write(folder.path().join("usual.toml"), printed).expect("written");
    Some(folder)
}

#[test]
fn agent_names_each_mistake_in_its_policy() {
    let Some(folder) = folder_of_root() else { return };
    let printed = fs::read_to_string(folder.path().join("usual.toml")).expect("the policy");
    let wrong = |name: &str, bytes: &[u8], part: &str| {
        fs::write(folder.path().join(name), bytes).expect("written");
        let error = agent_in(folder.path(), &format!("--policy {name} --agent-folder a {NOWHERE}"))
            .fails_with(2);
        assert!(error.contains(part), "{name}: {error}");
        assert!(error.contains("`evenkeel agent --print-policy` prints every key"), "{error}");
        // What is not read is no malformed policy.
        let code = if name == "large.toml" { 3 } else { 2 };
        let checked = run(evenkeel(folder.path()).args(["autopilot", "check", name]));
        let error = checked.fails_with(code);
        assert!(error.contains(part), "{name}: {error}");
    };
    wrong("empty.toml", b"", "empty.toml: it has no [[group]]: add one");
    wrong("latin.toml", b"[[group]]\nname = \"\xe4\"\n", "latin.toml: byte 18 is not UTF-8");
    wrong("large.toml", &[b'#'; 10 << 20], "large.toml: the policy has 10485760 bytes, of at most");
    for (key, value, part) in [
        (
            "keep = ",
            "kep = \"hard\" # ",
            "line 20: unknown key \"kep\" in [group.space]: did you mean",
        ),
        ("actuation_s = ", "actuation_s = \"4 min\" # ", "expected a whole number from 1 to 86400"),
        ("reserve_percent = ", "reserve_percent = 200 # ", "expected a whole number from 0 to 50"),
        ("saving_min = ", "saving_min = \"1 USD\" # ", "expected a number from 0 to 1000000000"),
        ("mode = ", "mode = act # ", "line 14: string values must be quoted"),
    ] {
        wrong(
            "wrong.toml",
            printed.replace(&format!("\n{key}"), &format!("\n{value}")).as_bytes(),
            part,
        );
    }
    run(std::process::Command::new("mkfifo").arg(folder.path().join("pipe.toml"))).ok();
    let error = agent_in(folder.path(), &format!("--policy pipe.toml --agent-folder a {NOWHERE}"))
        .fails_with(2);
    assert!(
        error.contains("pipe.toml: it is no regular file: name a file with policies"),
        "{error}"
    );
}

#[test]
fn agent_names_a_wrong_folder_mount_or_server() {
    let Some(folder) = folder_of_root() else { return };
    fs::write(folder.path().join("file"), "").expect("written");
    let agent = |flags: &str| agent_in(folder.path(), &format!("--policy usual.toml {flags}"));
    let error = agent(&format!("--agent-folder file {NOWHERE}")).fails_with(2);
    assert!(error.contains("the agent's folder file: "), "{error}");
    assert!(error.contains("name a folder that can be written with --agent-folder"), "{error}");
    let error = agent(&format!("--agent-folder a --mount /nowhere/ {NOWHERE}")).fails_with(2);
    assert!(error.contains("--mount names /nowhere twice: name it once"), "{error}");
    let error = agent("--mount /proc --agent-folder a --instance-id i-1 --once").fails_with(1);
    assert!(error.contains("/proc: its file system is none of btrfs, XFS and ext4"), "{error}");
    let error = agent("--mount /nowhere --agent-folder a --once").fails_with(1);
    assert!(error.contains("there are no credentials"), "{error}");
}

#[test]
fn agent_names_what_it_cannot_start_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    let agent = |flags: &str| {
        let mut command = evenkeel(folder.path());
        run(command.arg("agent").args(flags.split_whitespace()))
    };
    let printed = agent("--print-policy").ok();
    write("usual.toml", &printed);
    assert!(printed.contains("[group.brakes]"), "{printed}");
    assert!(agent("--print-rights").ok().contains("ec2:ModifyVolume"));
    let error = agent("--policy usual.toml").fails_with(2);
    assert!(error.contains("--mount"), "{error}");
    if !rustix::process::geteuid().is_root() {
        let error = agent("--policy usual.toml --mount /nowhere").fails_with(2);
        assert!(error.contains("evenkeel agent needs root"), "{error}");
        return;
    }
    write("broken.toml", "[[group]]\nname = \"a\"\nmode = \"fly\"\n");
    let all = "--mount /nowhere --agent-folder agent --instance-id i-1 --once";
    let error = agent(&format!("--policy broken.toml {all}")).fails_with(2);
    assert!(error.contains("broken.toml: line 3: mode = \"fly\""), "{error}");
    let error = agent(&format!("--policy absent.toml {all}")).fails_with(2);
    assert!(error.contains("absent.toml: No such file"), "{error}");
    let output = agent(&format!("--policy usual.toml {all}"));
    let error = output.fails_with(1);
    assert!(error.contains("/nowhere"), "{error}");
    for (flags, part) in [
        ("--metrics-listen 0.0.0.0:9650", "must be on loopback"),
        ("--device /dev/sdb=sdb", "expected a device and its volume"),
        ("--profile a", "--aws"),
        ("--attach-command a", "--detach-command"),
        ("--every 2d", "expected 1s to 1h"),
    ] {
        let error = agent(&format!("--policy usual.toml {all} {flags}")).fails_with(2);
        assert!(error.contains(part), "{flags}: {error}");
    }
}

/// Sends a GET request; returns the answer.
fn get(address: SocketAddr, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
