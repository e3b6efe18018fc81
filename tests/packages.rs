//! The packages of a release: what an installed program needs beside itself, its messages to the
//! service manager and its units; the Debian package on a bare system, the wheel in a fresh
//! environment, the image without an engine, and the Python and Go packages for tests.

mod support;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use support::bench::run_within;
use support::clock::Deadline;
use support::pages::{ROOT, blocks, page};
use support::process::{Output, Running, run, start};
use support::server::{Server, evenkeel, without_settings};
use support::tools::{absent, in_venv, skipped, tool};

/// The longest time of a tool that makes or installs a package.
const TOOL_MAX: Duration = Duration::from_secs(600);
/// The longest wait for a message to the service manager.
const MESSAGE_MAX: Duration = Duration::from_secs(60);
/// Where `cargo x ci --full` unpacks a bare Debian.
const BARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bare-debian");

/// Runs a verb in an empty folder.
fn verb(words: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    run(evenkeel(folder.path()).args(words.split(' ')))
}

#[test]
fn the_version_names_the_commit_the_date_the_build_and_the_features() {
    let text = verb("--version").ok();
    let lines: Vec<&str> = text.lines().collect();
    let [version, commit, date, build, features] = lines[..] else { panic!("{text}") };
    assert_eq!(version, format!("evenkeel {}", env!("CARGO_PKG_VERSION")));
    let commit = commit.strip_prefix("commit: ").expect(&text);
    let digits = commit.trim_end_matches("-modified");
    let is_commit = digits.len() >= 12 && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{text}");
    let date = date.strip_prefix("date: ").expect(&text);
    let shape: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert!(shape == "0000-00-00" || date == "unknown", "{text}");
    assert!(build.starts_with("build: ") && build.contains("-linux-"), "{text}");
    assert!(build.contains("rustc 1."), "{text}");
    assert!(features.starts_with("features: io_uring, "), "{text}");
}

/// The packages take their versions from the workspace: their tests compare them.
#[test]
fn the_changelog_and_the_containers_have_the_version_of_the_program() {
    let changelog = page("CHANGELOG.md");
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    let mut releases = headings.filter(|heading| *heading != "Unreleased");
    let newest = releases.next().expect("a release");
    let (version, date) = newest.split_once(" - ").expect("a version and a date");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let shape: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00", "{date}");
    assert_eq!(verb("-V").ok(), format!("evenkeel {version}\n"));
    let of_debian = page("packaging/deb/changelog");
    assert!(of_debian.starts_with(&format!("evenkeel ({version}-1) ")), "{of_debian}");
    let mut rfc_2822 = tool("date", "--utc --rfc-email");
    let time = run(rfc_2822.arg(format!("--date={date}"))).ok();
    assert!(of_debian.ends_with(&format!(">  {time}")), "{of_debian}");
    let compose = page("deploy/compose.yaml");
    assert!(compose.contains(&format!("image: evenkeel:{version}\n")), "{compose}");
    let service = page("docs/operating/service.md");
    assert!(service.contains(&format!("evenkeel-{version}-image.tar\n")), "the page");
    assert!(service.contains(&format!(" evenkeel:{version}\n")), "the page");
}

#[test]
fn health_asks_without_keys_and_fails_without_a_server() {
    let server = Server::start("--store memory");
    let folder = tempfile::tempdir().expect("a folder");
    let ask = |words: &str| {
        let mut command = evenkeel(folder.path());
        run(command.arg("health").args(words.split_whitespace()))
    };
    let endpoint = format!("--endpoint http://{}", server.api);
    assert_eq!(ask(&endpoint).ok(), format!("{}: ok\n", server.api));
    assert_eq!(ask(&format!("{endpoint} --ready")).ok(), format!("{}: ok\n", server.api));
    assert_eq!(server.evenkeel("health").ok(), format!("{}: ok\n", server.api));
    drop(server);
    assert!(ask(&endpoint).fails_with(1).contains("no server at "));
}

#[test]
fn completions_are_scripts_that_their_shells_accept() {
    for shell in ["bash", "zsh", "fish"] {
        let script = verb(&format!("completions {shell}")).ok();
        assert!(script.contains("evenkeel"), "{script}");
        if absent(&[shell]) {
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("completion");
        fs::write(&file, script).expect("written");
        run(tool(shell, "-n").arg(&file)).ok();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("completion");
    fs::write(&file, verb("completions bash").ok()).expect("written");
    let complete = ". $0; COMP_WORDS=(evenkeel volu) COMP_CWORD=1
        _evenkeel evenkeel volu evenkeel; echo ${COMPREPLY[@]}";
    let completed = run(tool("bash", "-c").arg(complete).arg(&file)).ok();
    assert_eq!(completed, "volume\n");
}

#[test]
fn the_manual_page_is_the_one_of_the_reference() {
    let written = page("docs/reference/evenkeel.1");
    assert!(written.contains(".SH SYNOPSIS"));
    assert_eq!(verb("man").ok(), written, "`cargo x docs` writes it");
}

/// A service manager's socket.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(MESSAGE_MAX)).expect("a timeout");
        Self { folder, socket }
    }

    /// Starts a service that is to be alive every second.
    fn start(&self, command: &mut Command) -> Running {
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        command.env("WATCHDOG_USEC", "1000000").env_remove("WATCHDOG_PID");
        start(command.stdin(std::process::Stdio::null()))
    }

    /// Returns the next message.
    #[track_caller]
    fn message(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Returns the messages before one that begins so, and that one.
    #[track_caller]
    fn messages_to(&self, beginning: &str) -> Vec<String> {
        let deadline = Deadline::after(MESSAGE_MAX);
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|last: &String| last.starts_with(beginning)) {
            assert!(!deadline.left().is_zero(), "no {beginning} after {messages:?}");
            messages.push(self.message());
        }
        messages
    }

    /// Discards the messages so far.
    fn drain(&self) {
        self.socket.set_nonblocking(true).expect("not blocking");
        let mut bytes = [0; 4096];
        while self.socket.recv(&mut bytes).is_ok() {}
        let error = self.socket.recv(&mut bytes).expect_err("empty");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).expect("blocking");
    }
}

#[test]
fn serve_reports_ready_when_its_listeners_answer_then_life_then_its_stop() {
    let manager = Manager::new();
    let folder = manager.folder.path();
    let mut command = evenkeel(folder);
    command.args("serve --store memory --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0".split(' '));
    let server = manager.start(command.args(["--calibrate", "never"]));
    assert_eq!(manager.message(), "READY=1\n");
    // Both listeners answer, and the address is noted in the data folder.
    run(evenkeel(folder).args(["volume", "ls"])).ok();
    assert_eq!(manager.message(), "WATCHDOG=1\n");
    server.signal(Signal::STOP);
    manager.drain();
    let silent = Duration::from_secs(2);
    manager.socket.set_read_timeout(Some(silent)).expect("a timeout");
    assert!(manager.socket.recv(&mut [0; 64]).is_err(), "a stopped server reports no life");
    manager.socket.set_read_timeout(Some(MESSAGE_MAX)).expect("a timeout");
    server.signal(Signal::CONT);
    manager.messages_to("WATCHDOG=1");
    server.signal(Signal::TERM);
    manager.messages_to("STOPPING=1");
    let printed = server.finish().ok();
    // What a user at a terminal does next is not in a service's log.
    assert!(printed.contains("is serving") && !printed.contains("stops it"), "{printed}");
}

#[test]
fn serve_that_cannot_start_reports_nothing() {
    let manager = Manager::new();
    let server = Server::start("--store memory");
    let mut command = evenkeel(manager.folder.path());
    command.args(["serve", "--store", "memory", "--listen", &server.api.to_string()]);
    manager.start(&mut command).finish().fails_with(1);
    manager.drain();
    assert!(manager.socket.set_nonblocking(true).is_ok());
    assert!(manager.socket.recv(&mut [0; 64]).is_err());
}

#[test]
fn agent_reports_ready_life_changed_policies_and_its_stop() {
    if !geteuid().is_root() {
        return skipped("the agent needs root");
    }
    let manager = Manager::new();
    let folder = manager.folder.path();
    let policy = verb("agent --print-policy").ok();
    fs::write(folder.join("policy.toml"), &policy).expect("written");
    let mut command = evenkeel(folder);
    command.args("agent --policy policy.toml --mount . --agent-folder agent --every 1s".split(' '));
    let agent = manager.start(command.args(["--instance-id", "i-0123456789abcdef0"]));
    manager.messages_to("READY=1");
    manager.messages_to("WATCHDOG=1");
    fs::write(folder.join("policy.toml"), policy + "\n# changed\n").expect("written");
    let reloading = manager.messages_to("RELOADING=1").pop().expect("a message");
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(&reloading);
    assert!(time.trim().parse::<u64>().is_ok(), "{reloading}");
    assert_eq!(manager.message(), "READY=1\n");
    agent.signal(Signal::TERM);
    manager.messages_to("STOPPING=1");
    agent.finish().ok();
}

/// The conffile has the documented settings: each commented out, except the data folder.
#[test]
fn the_conffile_has_the_documented_settings() {
    let page = page("docs/operating/configuration.md");
    let documented = blocks(&page).into_iter().find(|block| block.text.starts_with("# evenkeel.t"));
    let documented = documented.expect("a block with every setting").text;
    let lines: Vec<String> = documented
        .lines()
        .skip(1)
        .filter(|line| !line.starts_with("data-dir"))
        .map(|line| match line {
            line if line.is_empty() || line.starts_with('#') => line.to_owned(),
            line => format!("# {line}"),
        })
        .collect();
    let conffile = support::pages::page("packaging/deb/evenkeel.toml");
    let (introduction, settings) = conffile.split_once("\n\n").expect("an introduction");
    assert!(introduction.lines().all(|line| line.starts_with('#')), "{introduction}");
    let settings: Vec<&str> = settings.lines().collect();
    assert_eq!(settings[..2], ["data-dir = \"/var/lib/evenkeel\"", ""]);
    assert_eq!(settings[2..], lines);
}

/// Held while a package is made: its parts are in the target folder.
static PACKAGING: Mutex<()> = Mutex::new(());

/// Returns the packages that `cargo x package` makes of the built program.
fn packaged(kind: &str, into: &Path) -> Vec<PathBuf> {
    let _one = PACKAGING.lock().unwrap_or_else(PoisonError::into_inner);
    let program = Path::new(env!("CARGO_BIN_EXE_evenkeel"));
    let mut package = Command::new(program.with_file_name("xtask"));
    package.args(["package", kind, "--program"]).arg(program).arg("--into").arg(into);
    run_within(&mut package, TOOL_MAX).ok();
    let entries = fs::read_dir(into).expect("a folder");
    let mut made: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    made.sort();
    made
}

/// Returns whether a tool of packages is absent, and prints that.
fn no_tool(name: &str) -> bool {
    let tools = fs::read_dir(Path::new(ROOT).join("target/tools")).into_iter().flatten().flatten();
    let is_there = tools.map(|tool| tool.file_name().to_string_lossy().into_owned());
    let is_absent = !is_there.into_iter().any(|tool| tool.starts_with(name));
    if is_absent {
        skipped(&format!("{name} is absent (cargo x setup or ci --full installs it)"));
    }
    is_absent || no_xtask()
}

/// Returns whether the program that makes packages is absent, and prints that.
fn no_xtask() -> bool {
    let is_built = Path::new(env!("CARGO_BIN_EXE_evenkeel")).with_file_name("xtask").is_file();
    if !is_built {
        skipped("xtask is not built (cargo x ci builds it)");
    }
    !is_built
}

/// The Debian package, unpacked.
struct Deb {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Deb {
    fn made() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made = packaged("deb", &folder.path().join("packages"));
        let [symbols, file] = made.as_slice() else { panic!("{made:?}") };
        assert!(symbols.to_string_lossy().contains("evenkeel-dbgsym_"), "{made:?}");
        let file = file.clone();
        run(tool("dpkg-deb", "-x").arg(&file).arg(folder.path().join("root"))).ok();
        Self { folder, file }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }
}

#[test]
fn the_debian_package_has_what_a_user_expects_and_its_units_are_valid() {
    if no_tool("cargo-deb") || absent(&["dpkg-deb"]) {
        return;
    }
    let deb = Deb::made();
    let fields = run(tool("dpkg-deb", "-f").arg(&deb.file)).ok();
    let field = |name: &str| {
        let line = fields.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("no {name}: {fields}")).to_owned()
    };
    assert_eq!(field("Version"), concat!(env!("CARGO_PKG_VERSION"), "-1"));
    let needed = field("Depends");
    let names = needed.split(", ").map(|name| name.split(' ').next().expect("a name"));
    let linked: Vec<&str> = names.collect();
    assert!(linked.iter().all(|name| ["libc6", "libgcc-s1"].contains(name)), "{needed}");
    assert!(field("Suggests").contains("librbd1"), "{fields}");
    for path in [
        "usr/bin/evenkeel",
        "usr/share/man/man1/evenkeel.1.gz",
        "usr/share/bash-completion/completions/evenkeel",
        "usr/share/zsh/vendor-completions/_evenkeel",
        "usr/share/fish/vendor_completions.d/evenkeel.fish",
        "usr/share/doc/evenkeel/copyright",
        "usr/share/evenkeel/prometheus/evenkeel.rules.yml",
        "etc/evenkeel/evenkeel.toml",
    ] {
        assert!(deb.root().join(path).is_file(), "{path}");
    }
    let conffiles = run(tool("dpkg-deb", "-I").arg(&deb.file).arg("conffiles")).ok();
    assert_eq!(conffiles, "/etc/evenkeel/evenkeel.toml\n/etc/default/evenkeel-agent\n");
    if absent(&["systemd-analyze"]) {
        return;
    }
    for unit in ["evenkeel.service", "evenkeel-agent.service"] {
        let mut verify = tool("systemd-analyze", "verify --man=no --recursive-errors=no");
        verify.arg(format!("--root={}", deb.root().display()));
        let verified = run(verify.arg(format!("/usr/lib/systemd/system/{unit}")));
        let complaints = format!("{}{}", verified.stdout, verified.stderr);
        assert!(!complaints.contains(unit), "{complaints}");
    }
}

/// The server's unit hides from it all that it does not need.
#[test]
fn the_units_are_hardened_as_far_as_the_page_says() {
    if absent(&["systemd-analyze"]) {
        return;
    }
    let page = page("docs/operating/service.md");
    for (unit, most) in [("evenkeel", "1.8"), ("evenkeel-agent", "7.8")] {
        let mut analyze = tool("systemd-analyze", "security --offline=true --no-pager");
        analyze.arg(format!("{ROOT}/deploy/systemd/{unit}.service"));
        let text = run(&mut analyze).stdout;
        let line = text.lines().find(|line| line.contains("Overall exposure")).expect(&text);
        assert!(line.contains(&format!(": {most} ")), "{line}");
        assert!(page.contains(&format!("{most} ")), "the page has {most} of {unit}");
    }
    let agent = fs::read_to_string(format!("{ROOT}/deploy/systemd/evenkeel-agent.service"));
    let agent = agent.expect("a unit");
    assert!(agent.contains("\nKillMode=process\n"), "moves outlive the agent");
    // Each of these gives the service mounts of its own, which the machine would not see.
    for option in [
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateMounts",
        "ReadOnlyPaths",
        "ProtectKernelTunables",
        "ProtectControlGroups",
        "ProtectProc",
        "PrivateDevices",
    ] {
        assert!(!agent.contains(&format!("\n{option}=")), "{option}");
    }
}

/// A bare Debian in a folder, in which programs run.
struct Bare(tempfile::TempDir);

impl Bare {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Entered by the user of the server, too.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let root = folder.path().join("root");
        run_within(tool("cp", "-a --reflink=auto").arg(BARE).arg(&root), TOOL_MAX).ok();
        Self(folder)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join("root").join(path)
    }

    /// Returns a command within it.
    fn command(&self, words: &str) -> Command {
        let mut command = without_settings(tool("chroot", ""));
        command.arg(self.path("")).args(words.split(' ')).env("LC_ALL", "C");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    #[track_caller]
    fn run(&self, words: &str) -> String {
        let output = run_within(&mut self.command(words), TOOL_MAX);
        assert!(output.status.success(), "{output}");
        output.stdout + &output.stderr
    }

    /// Runs commands of a page in its root. The programs of the package and of Debian run within
    /// it, and clients outside of it.
    #[track_caller]
    fn walk(&self, commands: &str) -> String {
        const WITHIN: &str = "
            apt_get() { chroot . env DEBIAN_FRONTEND=noninteractive apt-get \"$@\"; }
            evenkeel() { chroot . evenkeel \"$@\"; }
            volume() { evenkeel volume ls -o csv | grep -o 'vol-[0-9a-f]*' | head -n 1; }
            aws() { \"$AWS\" \"$@\"; }
            set -x\n";
        // The name of a function of a shell has no hyphen.
        let commands = commands.replace("apt-get ", "apt_get ").replace("vol-...", "$(volume)");
        let mut shell = without_settings(tool("sh", "-ec"));
        shell.arg(format!("{WITHIN}{commands}")).current_dir(self.path(""));
        shell.env("AWS", in_venv("aws"));
        run_within(&mut shell, TOOL_MAX).ok()
    }
}

/// The commands with which the first page installs each package.
fn installations() -> Vec<String> {
    let page = page("docs/start.md");
    let beginning = "# needs root and the package\n";
    let found = blocks(&page).into_iter();
    found.filter_map(|block| block.text.strip_prefix(beginning).map(str::to_owned)).collect()
}

#[test]
#[ignore = "full: tests/packages.rs::\
            the_debian_package_has_what_a_user_expects_and_its_units_are_valid stays"]
fn a_bare_debian_installs_starts_removes_and_purges_the_package() {
    if !geteuid().is_root() {
        return skipped("a chroot needs root");
    }
    if !Path::new(BARE).is_dir() {
        return skipped("there is no bare Debian (cargo x ci --full unpacks it)");
    }
    if no_tool("cargo-deb") || absent(&[&in_venv("aws"), "fio"]) {
        return;
    }
    let deb = Deb::made();
    let bare = Bare::new();
    let folder = bare.path("target/package");
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(&deb.file, folder.join(deb.file.file_name().expect("a name"))).expect("copied");
    let [first, by_aws, _] = installations().try_into().expect("three blocks");
    let (install, first_use) = first.split_once('\n').expect("two commands");
    bare.walk(install);
    assert!(bare.run("getent passwd evenkeel").contains(":/var/lib/evenkeel:/usr/sbin/nologin"));
    let wanted = bare.path("etc/systemd/system/multi-user.target.wants");
    assert!(fs::symlink_metadata(wanted.join("evenkeel.service")).is_ok(), "enabled");
    assert!(fs::symlink_metadata(wanted.join("evenkeel-agent.service")).is_err(), "not enabled");
    assert!(bare.run("evenkeel --version").starts_with("evenkeel "));
    let installed = Installed::start(&bare);
    bare.walk(&installed.here(first_use));
    bare.walk(&installed.here(&by_aws));
    let ids = "describe-volumes --query sort(Volumes[].VolumeId) --output text";
    let volumes = installed.aws(ids);
    assert_eq!(volumes.split_whitespace().count(), 2, "{volumes}");
    installed.stop();
    // Removal keeps the configuration and the data.
    bare.run("dpkg -r evenkeel");
    assert!(!bare.path("usr/bin/evenkeel").exists());
    assert!(bare.path("etc/evenkeel/evenkeel.toml").exists());
    assert!(bare.path("var/lib/evenkeel/control.db").exists());
    // A later installation finds the volumes.
    bare.walk(install);
    let installed = Installed::start(&bare);
    let found = installed.aws(ids);
    installed.stop();
    assert_eq!(found, volumes);
    // A purge deletes the configuration, and names the data that it keeps.
    let text = bare.run("dpkg -P evenkeel");
    assert!(text.contains("/var/lib/evenkeel stays, with the data in it"), "{text}");
    assert!(!bare.path("etc/evenkeel").exists());
    assert!(bare.path("var/lib/evenkeel/control.db").exists());
    assert!(fs::symlink_metadata(wanted.join("evenkeel.service")).is_err(), "not enabled");
}

/// The server of a bare Debian, as its unit starts it, but on free ports.
struct Installed {
    server: Running,
    /// The address of NBD.
    nbd: String,
    variables: Vec<(String, String)>,
}

impl Installed {
    fn start(bare: &Bare) -> Self {
        let mut command = bare.command("setpriv --reuid evenkeel --regid evenkeel --clear-groups");
        command.args("evenkeel serve --config /etc/evenkeel/evenkeel.toml".split(' '));
        command.env("EVENKEEL_LISTEN", "127.0.0.1:0").env("EVENKEEL_NBD_LISTEN", "127.0.0.1:0");
        command.env("EVENKEEL_CALIBRATE", "never").env("EVENKEEL_OVERSELL_SPACE", "unlimited");
        let mut server = start(&mut command);
        let nbd = server.wait_for_line(" NBD ");
        let nbd = nbd.split("nbd://").nth(1).and_then(|rest| rest.split('/').next());
        let nbd = nbd.expect("an address").to_owned();
        server.wait_for_line("SIGTERM stops it");
        let exports = bare.run("evenkeel env --data-dir /var/lib/evenkeel");
        let pair = |line: &str| {
            let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.trim_matches('\'').to_owned()))
        };
        Self { server, nbd, variables: exports.lines().filter_map(pair).collect() }
    }

    /// Returns commands of a page with this server's address, and with a short load.
    fn here(&self, commands: &str) -> String {
        commands.replace("127.0.0.1:10809", &self.nbd).replace("--runtime=20", "--runtime=1")
    }

    /// Runs a command of the aws-cli outside of the bare Debian.
    #[track_caller]
    fn aws(&self, words: &str) -> String {
        let mut command = without_settings(tool(&in_venv("aws"), "ec2"));
        command.args(words.split_whitespace()).envs(self.variables.iter().cloned());
        run(&mut command).ok().trim().to_owned()
    }

    #[track_caller]
    fn stop(self) {
        self.server.signal(Signal::TERM);
        self.server.finish().ok();
    }
}

/// A bare Debian that systemd has booted, with the network of this machine.
struct Booted {
    machine: Running,
}

impl Booted {
    fn new(bare: &Bare) -> Self {
        let mut command = tool("systemd-nspawn", "--quiet --boot --register=no --keep-unit");
        command.args(["--resolv-conf=off", "--directory"]).arg(bare.path(""));
        let machine = start(command.stdin(std::process::Stdio::null()));
        let booted = Self { machine };
        // Units of the bare system that do not fit a container may fail.
        booted.comes("systemctl is-system-running", |state| {
            ["running\n", "degraded\n"].contains(&state)
        });
        booted
    }

    /// Runs commands of a shell in it.
    fn output(&self, commands: &str) -> Output {
        // Its first process is the child of the program; another one precedes it for a moment.
        let children = format!("/proc/{0}/task/{0}/children", self.machine.id());
        let children = fs::read_to_string(children).expect("the container runs");
        let mut command = without_settings(tool("nsenter", "--mount --pid --uts --ipc --root"));
        command.arg(format!("--target={}", children.split(' ').next().unwrap_or_default()));
        command.args(["--wd", "sh", "-ec", commands]);
        command.env("LC_ALL", "C").env("HOME", "/root").env("DEBIAN_FRONTEND", "noninteractive");
        run_within(&mut command, TOOL_MAX)
    }

    #[track_caller]
    fn run(&self, commands: &str) -> String {
        self.output(commands).ok()
    }

    /// Waits until the output of commands is as expected.
    #[track_caller]
    fn comes(&self, commands: &str, is_expected: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let has_come = Deadline::after(MESSAGE_MAX).comes(|| {
            last = self.output(commands).stdout;
            is_expected(&last)
        });
        assert!(has_come, "{commands}: {last}");
    }

    /// Returns the log of a unit.
    fn log(&self, unit: &str) -> String {
        self.run(&format!("journalctl --no-pager --output=cat --unit={unit}"))
    }

    fn power_off(mut self) {
        self.output("systemctl poweroff");
        let has_ended = Deadline::after(MESSAGE_MAX).comes(|| !self.machine.is_running());
        assert!(has_ended, "{}", self.machine.logged());
    }
}

/// Returns the commands of the service's page that have these words.
fn of_service(words: &str) -> String {
    let page = page("docs/operating/service.md");
    let block = blocks(&page).into_iter().find(|block| block.text.contains(words));
    let text = block.unwrap_or_else(|| panic!("no commands with {words}")).text;
    text.strip_prefix("# needs root and the service\n").expect("its needs").to_owned()
}

#[test]
#[ignore = "full: tests/packages.rs::\
            serve_reports_ready_when_its_listeners_answer_then_life_then_its_stop stays"]
fn systemd_starts_restarts_and_stops_the_services_of_the_package() {
    if !geteuid().is_root() {
        return skipped("a container needs root");
    }
    if !Path::new(BARE).is_dir() {
        return skipped("there is no bare Debian (cargo x ci --full unpacks it)");
    }
    if no_tool("cargo-deb") || absent(&["systemd-nspawn", "nsenter"]) {
        return;
    }
    let deb = Deb::made();
    let bare = Bare::new();
    fs::copy(&deb.file, bare.path("root/evenkeel.deb")).expect("copied");
    let drop_in = bare.path("etc/systemd/system/evenkeel.service.d");
    fs::create_dir_all(&drop_in).expect("a folder");
    let settings = "[Service]\nEnvironment=EVENKEEL_LISTEN=127.0.0.1:0 \
                    EVENKEEL_NBD_LISTEN=127.0.0.1:0 EVENKEEL_CALIBRATE=never \
                    EVENKEEL_OVERSELL_SPACE=unlimited\n";
    fs::write(drop_in.join("ports.conf"), settings).expect("written");
    let booted = Booted::new(&bare);
    // The installation returns when the server is ready.
    booted.run("dpkg -i /root/evenkeel.deb");
    assert_eq!(booted.run("systemctl is-active evenkeel"), "active\n");
    booted.run("evenkeel volume create --size 1 --attach");
    let volumes = booted.run("evenkeel volume ls -o csv");
    // A server that is killed is started again, with its volumes.
    booted.run("systemctl kill --signal=KILL evenkeel");
    booted.comes("systemctl show --property=NRestarts --value evenkeel", |count| count == "1\n");
    booted.comes("systemctl is-active evenkeel || true", |state| state == "active\n");
    assert_eq!(booted.run("evenkeel volume ls -o csv"), volumes);
    booted.run("systemctl restart evenkeel");
    assert!(booted.log("evenkeel").contains("stopped cleanly"), "{}", booted.log("evenkeel"));
    assert_eq!(booted.run("evenkeel volume ls -o csv"), volumes);
    // A mistake in the configuration is named, and no start is tried again.
    booted.run("echo 'nonsense = 1' >> /etc/evenkeel/evenkeel.toml");
    assert!(!booted.output("systemctl restart evenkeel").status.success());
    assert_eq!(booted.output("systemctl is-active evenkeel").stdout, "failed\n");
    assert!(booted.log("evenkeel").contains("nonsense"), "{}", booted.log("evenkeel"));
    booted.run("sed -i /nonsense/d /etc/evenkeel/evenkeel.toml; systemctl start evenkeel");
    assert!(booted.run(&of_service("tls init")).contains(": ok"));
    booted.run("evenkeel volume ls; evenkeel tls server --dir /etc/evenkeel/tls");
    booted.comes("journalctl --no-pager --output=cat --unit=evenkeel", |log| {
        log.contains("new connections get the certificate")
    });
    assert!(booted.run(&of_service("evenkeel-agent")).contains("the agent runs"));
    booted.run("dpkg -r evenkeel");
    for unit in ["evenkeel", "evenkeel-agent"] {
        let state = booted.output(&format!("systemctl is-active {unit}")).stdout;
        assert_eq!(state, "inactive\n", "{unit}");
    }
    booted.power_off();
    assert!(bare.path("var/lib/evenkeel/control.db").exists(), "the data stays");
}

/// The image, unpacked without an engine.
struct Image {
    folder: tempfile::TempDir,
    /// The process that its configuration names, as the runtime specification has it.
    process: Value,
    /// The configuration.
    config: Value,
}

impl Image {
    /// Makes it, and unpacks its archive.
    fn made() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made = packaged("image", &folder.path().join("packages"));
        let [archive, layout] = made.as_slice() else { panic!("{made:?}") };
        assert!(layout.join("oci-layout").is_file());
        let unpacked = folder.path().join("layout");
        fs::create_dir(&unpacked).expect("a folder");
        run(tool("tar", "--extract --file").arg(archive).arg("--directory").arg(&unpacked)).ok();
        let named = concat!("evenkeel:", env!("CARGO_PKG_VERSION"));
        let named = format!("{}:{named}", unpacked.display());
        let bundle = folder.path().join("bundle");
        run_within(tool("umoci", "unpack --image").arg(named).arg(&bundle), TOOL_MAX).ok();
        let read = |path: &Path| -> Value {
            let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            serde_json::from_str(&text).expect("JSON")
        };
        let process = read(&bundle.join("config.json"))["process"].clone();
        // The list by which `docker load` finds the parts.
        let list = read(&unpacked.join("manifest.json"));
        let config = read(&unpacked.join(list[0]["Config"].as_str().expect("a path")));
        for layer in list[0]["Layers"].as_array().expect("layers") {
            assert!(unpacked.join(layer.as_str().expect("a path")).is_file(), "{layer}");
        }
        Self { folder, process, config: config["config"].clone() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("bundle/rootfs").join(path)
    }

    /// Returns a command in it, of its user and with its variables.
    fn command(&self, words: &Value) -> Command {
        let number = |name: &str| self.process["user"][name].as_u64().expect("a number");
        // By its path: the variables are those of the image.
        let mut command = tool("/usr/sbin/chroot", "");
        command.arg(format!("--userspec={}:{}", number("uid"), number("gid")));
        command.arg(self.path("")).args(strings(words)).env_clear();
        for variable in strings(&self.process["env"]) {
            let (name, value) = variable.split_once('=').expect("a variable");
            command.env(name, value);
        }
        command.env("EVENKEEL_LISTEN", "127.0.0.1:0").env("EVENKEEL_NBD_LISTEN", "127.0.0.1:0");
        command.env("EVENKEEL_CALIBRATE", "never").env("EVENKEEL_OVERSELL_SPACE", "unlimited");
        command
    }
}

/// Returns the strings in a list.
fn strings(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|item| item.as_str().expect("a string")).collect()
}

#[test]
fn the_image_serves_without_root_and_an_engine_and_reports_its_health() {
    if !geteuid().is_root() {
        return skipped("a chroot needs root");
    }
    if no_xtask() || absent(&["umoci", "objcopy", "dpkg-query"]) {
        return;
    }
    let image = Image::made();
    assert_eq!(image.config["User"], "65532:65532");
    assert_eq!(
        image.config["Labels"]["org.opencontainers.image.version"],
        env!("CARGO_PKG_VERSION")
    );
    assert!(!image.path("bin/sh").exists() && !image.path("usr/bin/sh").exists(), "no shell");
    let check = image.config["Healthcheck"]["Test"].as_array().expect("a health check");
    assert_eq!(check[0], "CMD");
    let check = Value::from(check[1..].to_vec());
    let mut server = start(&mut image.command(&image.process["args"]));
    server.wait_for_line("SIGTERM stops it");
    assert!(run(&mut image.command(&check)).ok().ends_with(": ok\n"));
    let create = json!(["evenkeel", "volume", "create", "--size", "1", "--attach", "--wait"]);
    assert!(run(&mut image.command(&create)).ok().contains("vol-"));
    server.signal(Signal::TERM);
    server.finish().ok();
    run(&mut image.command(&check)).fails_with(1);
    // A restarted container has its volume.
    let mut server = start(&mut image.command(&image.process["args"]));
    server.wait_for_line("SIGTERM stops it");
    let list = run(&mut image.command(&json!(["evenkeel", "volume", "ls"]))).ok();
    assert!(list.contains("vol-"), "{list}");
    server.signal(Signal::TERM);
    server.finish().ok();
}

#[test]
fn the_containers_beside_the_image_are_set_up_from_the_files_of_deploy() {
    if absent(&[&in_venv("python")]) {
        return;
    }
    let yaml = |path: &str| -> Value {
        let print = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
        let mut python = tool(&in_venv("python"), "-c");
        let text = run(python.arg(print).arg(format!("{ROOT}/{path}"))).ok();
        serde_json::from_str(&text).expect("JSON")
    };
    let compose = yaml("deploy/compose.yaml");
    let services = compose["services"].as_object().expect("services");
    for (name, service) in services {
        assert_eq!(service["network_mode"], "host", "{name}");
        for volume in strings(&service["volumes"]) {
            let source = volume.split(':').next().expect("a source");
            let is_there = match source.strip_prefix("./") {
                Some(path) => Path::new(ROOT).join("deploy").join(path).exists(),
                None => compose["volumes"].get(source).is_some(),
            };
            assert!(is_there, "{name}: {volume}");
        }
    }
    let settings = page("docs/operating/configuration.md");
    for name in services["evenkeel"]["environment"].as_object().expect("variables").keys() {
        let key = name.strip_prefix("EVENKEEL_").expect(name).to_lowercase().replace('_', "-");
        assert!(settings.contains(&format!("`{key}`")), "{name}");
    }
    assert_eq!(services["evenkeel"]["healthcheck"]["test"][2], "health");
    // Grafana asks the Prometheus beside it, and shows the dashboards that are mounted.
    let source = &yaml("deploy/grafana/provisioning/datasources/evenkeel.yaml")["datasources"][0];
    let address = source["url"].as_str().and_then(|url| url.strip_prefix("http://"));
    let listens = format!("--web.listen-address={}", address.expect("an address"));
    assert!(strings(&services["prometheus"]["command"]).contains(&listens.as_str()), "{listens}");
    let boards = yaml("deploy/grafana/provisioning/dashboards/evenkeel.yaml");
    let folder = boards["providers"][0]["options"]["path"].as_str().expect("a folder");
    let grafana = &services["grafana"];
    let mounted = strings(&grafana["volumes"]);
    for board in ["evenkeel.json", "evenkeel-agent.json"] {
        let mount = format!("./grafana/{board}:{folder}/{board}:ro");
        assert!(mounted.contains(&mount.as_str()), "{mount}");
    }
    let home = &grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"];
    assert_eq!(home, &format!("{folder}/evenkeel.json"));
}

/// Returns a command of Python with the packages of `cargo x setup`.
fn python(interpreter: &Path) -> Command {
    let mut command = without_settings(Command::new(interpreter));
    let library = fs::read_dir(format!("{ROOT}/target/venv/lib")).expect("an environment");
    let library = library.map(|entry| entry.expect("an entry").path()).next().expect("a version");
    command.env("PYTHONPATH", library.join("site-packages")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The block of a user's test in the README of the Python package.
fn example() -> String {
    let page = page("packaging/python/README.md");
    let found = blocks(&page).into_iter().filter(|block| block.tag == "python");
    found.map(|block| block.text).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_python_package_passes_its_tests_and_the_example_of_its_page() {
    if absent(&[&in_venv("pytest")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("test_example.py"), example()).expect("written");
    let mut pytest = python(Path::new(&in_venv("python")));
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "evenkeel.pytest_plugin"]);
    pytest.arg(format!("{ROOT}/packaging/python/tests")).arg(folder.path());
    pytest.args(["--rootdir"]).arg(folder.path());
    pytest.env("EVENKEEL_PROGRAM", env!("CARGO_BIN_EXE_evenkeel"));
    pytest.env("PYTHONPATH", format!("{ROOT}/packaging/python/src"));
    let text = run_within(&mut pytest, TOOL_MAX).ok();
    assert!(text.contains(" passed"), "{text}");
}

#[test]
#[ignore = "full: tests/packages.rs::\
            the_python_package_passes_its_tests_and_the_example_of_its_page stays"]
fn the_wheel_puts_the_program_on_the_path_and_gives_pytest_the_fixture() {
    if no_tool("maturin") || absent(&[&in_venv("pytest"), "objcopy"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = packaged("wheel", &folder.path().join("target/package"));
    let [wheel] = made.as_slice() else { panic!("{made:?}") };
    let name = wheel.file_name().expect("a name").to_string_lossy().into_owned();
    let beginning = concat!("evenkeel_ebs-", env!("CARGO_PKG_VERSION"), "-py3-none-manylinux_2_");
    assert!(name.starts_with(beginning), "{name}");
    let fresh = folder.path().join("fresh");
    run_within(tool(&in_venv("python"), "-m venv").arg(&fresh), TOOL_MAX).ok();
    let [_, _, commands] = installations().try_into().expect("three blocks");
    let (install, serve) = commands.trim_end().split_once('\n').expect("two commands");
    let shell = |command: &str| {
        let path = std::env::var("PATH").expect("a path");
        let mut shell = without_settings(tool("sh", "-ec"));
        shell.arg(command).env("PATH", format!("{}:{path}", fresh.join("bin").display()));
        shell.env("PIP_NO_INDEX", "1").current_dir(folder.path());
        shell
    };
    run_within(&mut shell(install), TOOL_MAX).ok();
    let mut command = shell(&format!("exec {serve}"));
    command.env("EVENKEEL_LISTEN", "127.0.0.1:0").env("EVENKEEL_NBD_LISTEN", "127.0.0.1:0");
    let mut server = start(command.env("EVENKEEL_STORE", "memory"));
    server.wait_for_line("SIGTERM stops it");
    server.signal(Signal::TERM);
    server.finish().ok();
    let version = run(without_settings(Command::new(fresh.join("bin/evenkeel"))).arg("-V"));
    assert_eq!(version.ok(), format!("evenkeel {}\n", env!("CARGO_PKG_VERSION")));
    fs::write(folder.path().join("test_example.py"), example()).expect("written");
    let mut pytest = python(&fresh.join("bin/python"));
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(folder.path());
    let text = run_within(pytest.arg("test_example.py"), TOOL_MAX).ok();
    assert!(text.contains("2 passed"), "{text}");
}

#[test]
fn the_go_module_passes_its_tests() {
    if absent(&["go"]) {
        return;
    }
    let mut go = without_settings(tool("go", "test -count=1 ./..."));
    go.current_dir(format!("{ROOT}/packaging/go")).env("GOTOOLCHAIN", "local");
    go.env("EVENKEEL_PROGRAM", env!("CARGO_BIN_EXE_evenkeel"));
    let text = run_within(&mut go, TOOL_MAX).ok();
    assert!(text.starts_with("ok"), "{text}");
}
